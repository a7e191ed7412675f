"""Virtual time: an event loop that never waits, and a sender that plays the stub's scripts."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from loadtest.lab import Measurement, Stretch
from loadtest.plan import PlannedRequest, Session
from loadtest.records import Chunk, Outcome, RequestRecord
from loadtest.scrape import Scrapes
from loadtest.stub.script import WORD, Behaviour
from loadtest.summary import Judging, Summary, summarize
from loadtest.target import Target
from loadtest.vitals import Vitals


class _Selector(selectors.SelectSelector):
    """Instead of waiting it moves the loop's clock on."""

    now_s = 0.0

    def select(self, timeout=None):
        if timeout is not None and timeout > 0:
            self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock begins at zero and jumps to the next thing that is due."""

    def __init__(self) -> None:
        self.virtual = _Selector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_s


def run_virtual(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def now_s() -> float:
    return asyncio.get_running_loop().time()


class ScriptedSender:
    """Answers by behaviours, request i by number i mod length; no socket."""

    def __init__(self, behaviours: Sequence[Behaviour]) -> None:
        self._behaviours = behaviours
        self.histories: list[list[dict[str, str]]] = []

    async def __call__(self, planned, history, record) -> None:
        self.histories.append(list(history))
        behaviour = self._behaviours[planned.index % len(self._behaviours)]
        record.sent_s = now_s()
        for pause_s, tokens in behaviour.chunks(planned.params["max_tokens"]):
            await asyncio.sleep(pause_s)
            record.chunks.append(Chunk(now_s(), WORD * tokens, tokens))
            record.token_ids += range(tokens)
        record.end_s = now_s()
        record.outcome = Outcome.HTTP_5XX if behaviour.status != 200 else Outcome.OK
        record.completion_tokens = len(record.token_ids)


def session(index: int, at_s: float | None = 0.0, turns: int = 1, max_tokens: int = 10) -> Session:
    """A session whose requests are numbered from `index`."""
    return Session(
        at_s,
        tuple(
            PlannedRequest(
                index + turn,
                turn,
                ({"role": "user", "content": f"question {index + turn}"},),
                {"max_tokens": max_tokens},
            )
            for turn in range(turns)
        ),
    )


def summary_of(
    records: Sequence[RequestRecord],
    judging: Judging | None = None,
    *,
    end_s: float | None = None,
    vitals: Vitals | None = None,
    arm: str = "",
) -> Summary:
    """The figures of records of one stretch that began at zero."""
    last_s = max(record.end_s or 0.0 for record in records)
    stretch = Stretch(
        0.0,
        last_s if end_s is None else end_s,
        max(record.scheduled_s for record in records),
        len(records),
        list(records),
        vitals or Vitals([0.0] * 100, 0.1, 1.0),
        Scrapes(),
    )
    measurement = Measurement(Target(arm, "http://stub"), "1/s", 1.0, True, [stretch])
    return summarize(measurement, judging or Judging(), np.random.default_rng(0))
