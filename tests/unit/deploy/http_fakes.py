"""A backend that plays a script, a toy tokenizer, and a client without sockets.

The backend ends outputs by the request manager's own rules (`commit`), so that what is tested over
HTTP is what a real one would show.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from opentelemetry.trace import Tracer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from actors.messages import TopLogprobs
from actors.request_manager.commit import OutputRules, OutputState, commit
from actors.request_manager.generation import (
    GenerationEvent,
    GenerationRequest,
    SpeculationStats,
    TokenLogprob,
)
from actors.request_manager.step_tree import StepTree
from actors.vocabulary import Vocabulary
from cluster.metrics_server import Target
from cluster.tokenizer import build_vocabulary
from deploy.api import build_app
from deploy.backend import BackendDescription
from deploy.doorkeeper import Door
from deploy.settings import ApiSettings

MODEL = "toy"
CONTEXT = 200
PAD_ROWS = 8
"""The toy model's head has more rows than its tokenizer has tokens, as real ones do."""

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'developer' %}{{ raise_exception('no developers here') }}{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
WORDS = ("Hello", "DEF", "HI", "GH", "STOP", " world")


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: a token for each byte, a few words, two special tokens, no BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: place for place, character in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        shown = word.replace(" ", "\u0120")
        for end in range(2, len(shown) + 1):
            if shown[:end] not in vocab:
                vocab[shown[:end]] = len(vocab)
                merges.append((shown[: end - 1], shown[end - 1]))
    toy = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    toy.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    toy.decoder = decoders.ByteLevel()
    toy.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=toy, eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def toy_vocabulary(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return build_vocabulary(tokenizer.backend_tokenizer, frozenset({tokenizer.eos_token_id}))


Script = Callable[[GenerationRequest], Sequence[int]]


@dataclass
class ScriptedBackend:
    """Implements `deploy.backend.Backend` over a script.

    Attributes:
        script: the tokens that the "LLM" goes on with, for a request; then EOS for ever.
        blocks: sizes of the blocks that are committed at once, repeated.
        errors: by number of events that come first, an exception to raise.
        num_cached: prompt tokens that it says it need not have computed, for a request.
        hold_after: wait for `released` after so many events.
        requests: every request so far.
        cancelled: ids of requests that were closed before their end.
    """

    vocabulary: Vocabulary
    script: Script
    blocks: Sequence[int] = (1,)
    errors: dict[int, Exception] = field(default_factory=dict)
    num_cached: Callable[[GenerationRequest], int] = lambda request: 0
    hold_after: int | None = None
    note: str | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def description(self) -> BackendDescription:
        return BackendDescription(
            model_name=MODEL,
            max_context_tokens=CONTEXT,
            vocab_size=len(self.vocabulary) + PAD_ROWS,
            drafters=("ssm", "prompt_lookup"),
            verifications=("coupled", "naive"),
            batch_invariant=True,
            quantization="int8",
            note=self.note,
        )

    async def metrics_text(self) -> str:
        return "treeserve_requests_running 0\n"

    async def targets(self) -> list[Target]:
        return [Target("10.0.0.7:9100", {"part": "llm", "index": "0"})]

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        """Requests take turns, an event each."""
        self.requests.extend(requests)
        running = {place: iter(self._events(request)) for place, request in enumerate(requests)}
        number = 0
        try:
            while running:
                await self._wait(number)
                for place, events in list(running.items()):
                    event = next(events)
                    if event.finish_reason is not None:
                        del running[place]
                    yield place, event
                number += 1
        finally:
            self.cancelled.extend(requests[place].request_id for place in running)

    async def _wait(self, number: int) -> None:
        if number in self.errors:
            raise self.errors[number]
        if number == self.hold_after:
            self.held.set()
            await self.released.wait()
        await asyncio.sleep(0)

    def _events(self, request: GenerationRequest) -> list[GenerationEvent]:
        rules = OutputRules(
            request.stop,
            self.vocabulary,
            len(request.prompt_ids),
            CONTEXT,
            request.sampling.min_tokens,
        )
        eos = min(self.vocabulary.eos_ids)
        tokens = itertools.chain(self.script(request), itertools.repeat(eos))
        state, events = OutputState(), []
        stats = SpeculationStats(num_cached_tokens=self.num_cached(request))
        sizes = itertools.chain((0,) if rules.max_tokens == 0 else (), itertools.cycle(self.blocks))
        while state.finish_reason is None:
            size = next(sizes)
            done = commit(rules, state, tuple(itertools.islice(tokens, size)))
            first = state.num_tokens
            state = done.state
            stats.record(
                size, max(0, len(done.token_ids) - 1), draft_s=0.125, step_s=0.5, forward_s=0.25
            )
            events.append(
                GenerationEvent(
                    done.token_ids,
                    state.visible_bytes,
                    self._logprobs(request, first, done.token_ids),
                    self._prompt_logprobs(request) if not events else (),
                    state.finish_reason,
                    stats if state.finish_reason else None,
                    (scripted_tree(len(events), done.token_ids),) if request.return_trees else (),
                )
            )
        return events

    def _logprobs(
        self, request: GenerationRequest, first: int, token_ids: Sequence[int]
    ) -> tuple[TokenLogprob, ...]:
        if request.num_logprobs is None:
            return ()
        return tuple(
            scripted_logprob(first + place, token, request.num_logprobs)
            for place, token in enumerate(token_ids)
        )

    def _prompt_logprobs(self, request: GenerationRequest) -> tuple[TokenLogprob, ...]:
        if request.prompt_logprobs is None:
            return ()
        return tuple(
            scripted_logprob(place, token, request.prompt_logprobs)
            for place, token in enumerate(request.prompt_ids)
            if place
        )


def scripted_logprob(place: int, token: int, num_top: int) -> TokenLogprob:
    """Another value for each place; the chosen token is the best of the top ones."""
    best = -0.125 * (place + 1)
    others = [other for other in range(num_top + 1) if other != token][: max(0, num_top - 1)]
    ids = ((token, *others) if num_top else ())[:num_top]
    return TokenLogprob(
        token, best, TopLogprobs(ids, tuple(best - rank for rank in range(len(ids))))
    )


def scripted_tree(step: int, token_ids: Sequence[int]) -> StepTree:
    """A chain below token 0, all but the last drafted by two and accepted; a wrong draft beside."""
    drafts = tuple(token_ids[:-1])
    return StepTree(
        step,
        (0, *drafts, 1),
        (-1, *range(len(drafts)), 0),
        ((), *(("ssm", "prompt_lookup"),) * len(drafts), ("ssm",)),
        (1.0, *(0.75,) * len(drafts), 0.12345),
        tuple(range(1, len(drafts) + 1)),
        tuple(token_ids),
        {"draft": 0.125, "step": 0.5},
    )


@dataclass
class Served:
    """An application over a scripted backend, and ways to ask it."""

    backend: ScriptedBackend
    tokenizer: PreTrainedTokenizerFast
    settings: ApiSettings = field(default_factory=ApiSettings)
    clock: Callable[[], float] = lambda: 0.0
    door: Door | None = None
    tracer: Tracer | None = None

    def __post_init__(self) -> None:
        self.app = build_app(
            self.backend,
            self.tokenizer,
            self.backend.vocabulary,
            self.settings,
            self.door,
            self.tracer,
            clock=self.clock,
            wall_clock=lambda: 1_700_000_000.0,
            new_seed=lambda: 7,
        )
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://toy")

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.post_raw(path, json.dumps(body))

    async def post_raw(self, path: str, content: str | bytes) -> httpx.Response:
        headers = {"content-type": "application/json"}
        return await self.http.post(path, content=content, headers=headers)

    async def complete(self, **body: Any) -> dict[str, Any]:
        return await self._whole("/v1/completions", body)

    async def chat(self, **body: Any) -> dict[str, Any]:
        return await self._whole("/v1/chat/completions", body)

    async def stream_complete(self, **body: Any) -> list[dict[str, Any]]:
        return await self._chunks("/v1/completions", body)

    async def stream_chat(self, **body: Any) -> list[dict[str, Any]]:
        return await self._chunks("/v1/chat/completions", body)

    async def _whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    async def _chunks(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return sse_chunks(response.content)


def sse_chunks(body: bytes) -> list[dict[str, Any]]:
    """The chunks of a well-formed, finished stream; checks that each is one line of ASCII JSON."""
    frames = body.split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    chunks = []
    for frame in frames[:-2]:
        assert frame.startswith(b"data: ")
        assert b"\n" not in frame
        chunks.append(json.loads(frame[6:].decode("ascii")))
    return chunks


def joined_text(chunks: Sequence[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream, of either endpoint."""
    parts = []
    for choice in choices_of(chunks, index):
        parts.append(choice["text"] if "text" in choice else choice["delta"].get("content", ""))
    return "".join(parts)


def finish_of(chunks: Sequence[dict[str, Any]], index: int = 0) -> str:
    """The one finish reason of a choice of a stream."""
    reasons = [choice["finish_reason"] for choice in choices_of(chunks, index)]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return reasons[-1]


def choices_of(chunks: Sequence[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def assert_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """Check that a response is an error in the one shape; returns what it says."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["param"] == param, error
    return error
