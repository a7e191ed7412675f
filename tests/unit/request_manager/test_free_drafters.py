"""Drafters that cost next to nothing: who is asked although trials have found it of no use."""

from __future__ import annotations

import pytest

from actors.request_manager.commit import OutputRules
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.drafters import DRAFTERS
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.guessing import Guessing
from actors.request_manager.outbox import Outbox
from actors.request_manager.request import Request, State
from actors.request_manager.turns import Turn
from tests.unit.request_manager.house import VOCABULARY, OracleDrafter, ask

REPEATS = (1, 2, 3, 4, 1, 2, 3)


def decode(number: int) -> Turn:
    """The next step of a request whose text repeats itself."""
    asked = ask(REPEATS)
    rules = OutputRules(asked.stop, VOCABULARY, len(REPEATS), 100)
    request = Request(number, asked, rules, Outbox().sink(str(number)), 0.0)
    request.state = State.DECODE
    return Turn(request, len(REPEATS) - 1, 1)


@pytest.mark.parametrize(("num_requests", "looks_up"), [(1, True), (2, False)])
async def test_a_single_request_is_always_asked_of_drafters_without_a_model(
    monkeypatch: pytest.MonkeyPatch, num_requests: int, looks_up: bool
) -> None:
    """What was of no use to the texts before may be of much to this one."""
    guessing = Guessing(
        SpeculationConfig(budget="adaptive"), [PromptLookup(), OracleDrafter()], 100
    )
    judged: set[str] = set()
    monkeypatch.setattr(
        guessing._budget, "considers", lambda name, kind: judged.update(kind.drafters)
    )
    guesses = await guessing.ask([decode(number) for number in range(num_requests)])
    assert (PromptLookup.name in guesses.considered) is looks_up
    assert bool(guesses.trees) is looks_up
    assert judged - DRAFTERS.keys() == {OracleDrafter.name}  # a model is on trial all the same
    assert OracleDrafter.name not in guesses.considered
