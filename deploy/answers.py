"""Producing one answer: whole, or as the frames of a stream.

Both go through the same choices and the same format, so that a stream's pieces joined are the
whole answer. The last frame before `[DONE]` carries the metrics, and with `include_usage` it is
the frame with the usage and no choices.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from actors.request_manager.generation import GenerationEvent
from actors.vocabulary import Vocabulary
from deploy.backend import Backend, require_good_end
from deploy.choices import GrowingChoice, Piece, cached_tokens, total_stats
from deploy.openai_schema import StreamOptions
from deploy.requests import Choice
from deploy.responses import Json, ResponseFormat, speculation_metrics, to_json, usage

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Envelope:
    """What every body and chunk of an answer says about it."""

    response_id: str
    created: int
    model: str
    fingerprint: str

    def around(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class Answer:
    """One request's choices, generated side by side. Use `whole` or `frames`, once."""

    def __init__(
        self,
        backend: Backend,
        vocabulary: Vocabulary,
        choices: Sequence[Choice],
        num_prompt_tokens: int,
        form: ResponseFormat,
        envelope: Envelope,
        *,
        echo: bool,
        num_shown: int,
        token_seen: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._growing = [GrowingChoice(choice, vocabulary, echo=echo) for choice in choices]
        self._num_prompt_tokens = num_prompt_tokens
        self._form = form
        self._envelope = envelope
        self._num_shown = num_shown
        self._token_seen = token_seen

    async def whole(self) -> bytes:
        """The body of the whole answer. Raises what the backend raises."""
        pieces = [Piece() for _ in self._growing]
        async with aclosing(self._events()) as events:
            async for place, event in events:
                if (piece := self._growing[place].feed(event)) is not None:
                    pieces[place].join(piece)
        finished = list(zip(self._growing, pieces, strict=True))
        choices = [
            self._form.whole(replace(growing.choice, index=index), piece)
            for index, (growing, piece) in enumerate(self._shown(finished))
        ]
        body = self._envelope.around(self._form.whole_object, choices)
        return to_json(body | {"usage": self._usage(), "metrics": self._metrics()})

    def _shown(
        self, finished: Sequence[tuple[GrowingChoice, Piece]]
    ) -> Iterator[tuple[GrowingChoice, Piece]]:
        """The outputs to show of each prompt: the most probable per token, if there are more."""
        by_prompt = itertools.groupby(finished, key=lambda pair: id(pair[0].choice.prompt))
        for _, candidates in by_prompt:
            ranked = list(candidates)
            if len(ranked) > self._num_shown:
                ranked.sort(key=lambda pair: -pair[0].mean_logprob)
            yield from ranked[: self._num_shown]

    async def frames(self, options: StreamOptions) -> AsyncGenerator[bytes, None]:
        """Server-sent events, the closing `[DONE]` included. Raises what the backend raises."""
        opened: set[int] = set()
        shown: set[int] = set()
        num_running = len(self._growing)
        async with aclosing(self._events()) as events:
            async for place, event in events:
                growing = self._growing[place]
                if place not in opened:
                    opened.add(place)
                    if (opening := self._form.opening(growing.choice)) is not None:
                        yield self._frame([opening], self._usage_so_far(options))
                if (piece := growing.feed(event)) is None:
                    continue
                num_running -= piece.finish_reason is not None
                choice = self._form.chunk(growing.choice, piece, first=place not in shown)
                shown.add(place)
                extra = self._usage_so_far(options)
                if num_running == 0 and not options.include_usage:
                    extra = {"metrics": self._metrics()}
                yield self._frame([choice], extra)
        if options.include_usage:
            yield self._frame([], {"usage": self._usage(), "metrics": self._metrics()})
        yield DONE

    async def _events(self) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        requests = [growing.choice.request for growing in self._growing]
        async with aclosing(self._backend.generate(requests)) as events:
            async for place, event in events:
                require_good_end(event)
                if event.token_ids:
                    self._token_seen()
                yield place, event

    def _frame(self, choices: list[Json], extra: Json) -> bytes:
        body = self._envelope.around(self._form.chunk_object, choices)
        return b"data: " + to_json(body | extra) + b"\n\n"

    def _usage_so_far(self, options: StreamOptions) -> Json:
        """What a chunk that is not the last says of the usage."""
        if not options.include_usage:
            return {}
        return {"usage": self._usage() if options.continuous_usage_stats else None}

    def _usage(self) -> Json:
        completion_tokens = sum(growing.num_tokens for growing in self._growing)
        return usage(self._num_prompt_tokens, completion_tokens, cached_tokens(self._growing))

    def _metrics(self) -> Json:
        return speculation_metrics(total_stats([growing.stats for growing in self._growing]))
