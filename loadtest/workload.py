"""From due times and a description of the workload to a plan.

Every prompt of a run is distinct unless the workload says otherwise, so that a server's prefix
cache does not flatter it: the second and later passes over a prompt set put the pass's number in
front of the text, where it spoils a shared prefix from the first token on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.errors import UsageError
from loadtest.numerals import MOST
from loadtest.plan import Message, Plan, PlannedRequest, Session
from loadtest.prompts import Prompt, Turn, user
from loadtest.synthetic import Filler
from loadtest.traces import BLOCK_TOKENS, TraceRow

# First elements of the keys of synthetic text, so that none is made twice.
_BODY, _FAMILY, _BLOCK, _FOLLOW_UP = range(4)


@dataclass(frozen=True)
class LengthRange:
    """Uniformly from `low` to `high` tokens, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> LengthRange:
        """Out of `128` or `50-400`.

        Raises:
            UsageError: for anything else.
        """
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
        if not found:
            raise UsageError(f"{text}: a length is written as 128 or 50-400")
        low = int(found[1])
        high = int(found[2] or low)
        if not 1 <= low <= high <= MOST:
            raise UsageError(f"{text}: a length begins at 1, does not fall, ends at {MOST:,}")
        return cls(low, high)

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high + 1))


@dataclass(frozen=True)
class WorkloadSpec:
    """What to ask for.

    Attributes:
        prompts: to go through, in a seeded order; none for synthetic text.
        prompt_tokens: fit user texts to this; None leaves prompts as they are.
        output_tokens: `max_tokens`, unless the prompt's row says otherwise.
        families, prefix_tokens: that many shared prefixes of that length, used in turn.
        max_turns: of a conversation.
        think_s: mean pause of a user between turns (exponential).
        cancel_share: of requests hung up on, at a uniform place of their `max_tokens`.
        params: fields of every body.
        choices: for a field of the body, the values to choose among for each request.
        distinct: whether later passes over the prompts are made different.
    """

    output_tokens: LengthRange
    prompts: tuple[Prompt, ...] = ()
    prompt_tokens: LengthRange | None = None
    families: int = 0
    prefix_tokens: int = 0
    max_turns: int = 1
    think_s: float = 0.0
    cancel_share: float = 0.0
    params: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, list[Any]] = field(default_factory=dict)
    distinct: bool = True

    def check(self) -> None:
        """Whether bodies can be made of it.

        Raises:
            UsageError: naming the field that is not what it should be.
        """
        varied = ({name: value} for name, values in self.choices.items() for value in values)
        for params in (self.params, *varied, *(prompt.params for prompt in self.prompts)):
            tokens, temperature = params.get("max_tokens", 1), params.get("temperature", 0)
            if not isinstance(tokens, int):
                raise UsageError(f"max_tokens: a whole number, not {tokens!r}")
            if not isinstance(temperature, int | float):
                raise UsageError(f"temperature: a number, not {temperature!r}")
            if params.get("stream", True) is not True:
                raise UsageError("stream: only streams can be measured")


class PlanMaker:
    """Makes plans whose prompts do not repeat from one plan to the next.

    Args:
        spec: the workload.
        filler: source of synthetic text.
        rng: of everything drawn but the text.
        length_scale: what a trace's lengths were multiplied by.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        filler: Filler,
        rng: np.random.Generator,
        length_scale: float = 1.0,
    ) -> None:
        self._spec = spec
        self._filler = filler
        self._rng = rng
        self._block_tokens = max(1, round(BLOCK_TOKENS * length_scale))
        self._order: list[int] = [int(place) for place in rng.permutation(len(spec.prompts))]
        self._made = 0

    def plan(
        self,
        times: Iterable[float | None],
        rows: Sequence[TraceRow] | None = None,
        notes: Sequence[str] = (),
    ) -> Plan:
        """A session for each time; `rows`, if given, say how long each is."""
        sessions: list[Session] = []
        index = 0
        for place, at_s in enumerate(times):
            row = None if rows is None else rows[place]
            turns, params = self._content(row)
            requests = tuple(
                self._request(index + turn, turn, messages, params)
                for turn, messages in enumerate(turns)
            )
            sessions.append(Session(at_s, requests))
            index += len(requests)
            self._made += 1
        return Plan(tuple(sessions), tuple(notes))

    def _content(self, row: TraceRow | None) -> tuple[list[Turn], dict[str, Any]]:
        if self._spec.prompts:
            place = self._order[self._made % len(self._order)]
            prompt = self._spec.prompts[place]
            turns = list(prompt.turns[: self._spec.max_turns])
            params = prompt.params
        else:
            turns, params = self._synthetic_turns(), {}
        if row is not None:
            turns, params = turns[:1], {**params, "max_tokens": row.output_tokens}
        *before, last = turns[0]
        turns[0] = (*before, {**last, "content": self._opening(last["content"], row)})
        return turns, params

    def _synthetic_turns(self) -> list[Turn]:
        more = range(1, self._spec.max_turns)
        length = self._spec.prompt_tokens or LengthRange(1, 1)
        later: list[Turn] = [
            (user(self._filler.text((_FOLLOW_UP, self._made, turn), length.draw(self._rng))),)
            for turn in more
        ]
        return [(user(""),), *later]

    def _opening(self, text: str, row: TraceRow | None) -> str:
        """The user's first text: prefix, mark of the pass, and the text fitted to its length."""
        prefix = self._prefix(row)
        if self._spec.distinct and text and self._made >= len(self._order):
            text = f"({self._made // len(self._order) + 1}) {text}"
        text = f"{prefix} {text}".strip()
        if row is not None:
            return self._filler.fit(text, (_BODY, self._made), row.prompt_tokens)
        if self._spec.prompt_tokens is not None:
            wanted = self._spec.prompt_tokens.draw(self._rng) + self._spec.prefix_tokens
            return self._filler.fit(text, (_BODY, self._made), wanted)
        return text

    def _prefix(self, row: TraceRow | None) -> str:
        if row is not None and row.blocks:
            return " ".join(
                self._filler.text((_BLOCK, block), self._block_tokens) for block in row.blocks[:-1]
            )
        if self._spec.families:
            family = self._made % self._spec.families
            return self._filler.text((_FAMILY, family), self._spec.prefix_tokens)
        return ""

    def _request(
        self, index: int, turn: int, messages: tuple[Message, ...], params: dict[str, Any]
    ) -> PlannedRequest:
        rng = self._rng
        body = {"max_tokens": self._spec.output_tokens.draw(rng), **self._spec.params}
        for name, values in self._spec.choices.items():
            body[name] = values[int(rng.integers(len(values)))]
        body |= params
        if body.get("temperature", 0) > 0:
            body.setdefault("seed", int(rng.integers(1 << 31)))
        hangs_up = rng.random() < self._spec.cancel_share
        place = int(rng.integers(1, max(2, body["max_tokens"])))
        pause_s = float(rng.exponential(self._spec.think_s)) if self._spec.think_s else 0.0
        return PlannedRequest(
            index, turn, messages, body, pause_s if turn else 0.0, place if hangs_up else None
        )
