"""How much time and memory drafts from grammars may take, however slow the grammars."""

from __future__ import annotations

import itertools

from actors.grammar import Matcher, grammar_of_choice
from actors.request_manager.drafters.grammar import (
    LAYOUT_BYTES,
    MAX_SLOW_STEPS,
    MAX_STEP_S,
    PIECE_BYTES,
    QUICK_STEPS,
    GrammarDrafter,
    _Slowness,
)
from tests.unit.request_manager.grammar_tasks import (
    SCHEMA,
    VOCABULARY,
    compiled,
    drafts_of,
    encode,
    task,
)


def clock_of_pieces(monkeypatch, piece_s):
    """A clock that goes on in calls of `accept` alone, and how many bytes each is given."""
    now_s, sizes = [0.0], []
    accept = Matcher.accept

    def accept_slowly(self, token_ids):
        now_s[0] += piece_s
        sizes.append(len(token_ids))
        return accept(self, token_ids)

    monkeypatch.setattr(Matcher, "accept", accept_slowly)
    return (lambda: now_s[0]), sizes


LONG = '{"answerable": true, "answer": "' + "x" * 4000 + '"'


async def test_a_long_output_that_was_resumed_is_followed_over_several_steps(monkeypatch):
    clock, sizes = clock_of_pieces(monkeypatch, MAX_STEP_S / 50)
    drafter, asked = GrammarDrafter(VOCABULARY, encode, clock), task(SCHEMA, LONG)
    await compiled(drafter, [asked])
    found = [await drafter.draft([asked]) for _ in range(4)]
    assert [len(drafts) for drafts in found] == [0, 0, 1, 1]
    assert max(sizes) == PIECE_BYTES
    assert drafter._walks[0].num_followed == len(LONG)
    assert drafter._slowness._num_slow == {}  # it was only much to follow
    monkeypatch.undo()
    short = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(SCHEMA, LONG[:32] + '"'))
    assert found[-1][0] == short


async def test_little_is_kept_of_a_long_output():
    drafter = GrammarDrafter(VOCABULARY, encode)
    for length in range(0, len(LONG) + 1, 100):
        await drafts_of(drafter, task(SCHEMA, LONG[:length]))
    walk = drafter._walks[0]
    kept = LONG[:LAYOUT_BYTES] + LONG[:4000][-LAYOUT_BYTES:]
    assert (walk._followed.decode(), walk._ahead) == (kept, b"")


async def test_requests_share_the_time_of_a_step_in_turns(monkeypatch):
    clock, sizes = clock_of_pieces(monkeypatch, MAX_STEP_S / 3.5)
    drafter = GrammarDrafter(VOCABULARY, encode, clock)
    asked = [task(SCHEMA, LONG, request_id) for request_id in range(4)]
    await compiled(drafter, asked)
    for _ in range(4):
        await drafter.draft(asked)
    assert len(sizes) == 4 * 4
    followed = [drafter._walks[request_id].num_followed for request_id in range(4)]
    assert followed == [4 * PIECE_BYTES] * 4


async def test_a_slow_grammar_is_left_alone_in_all_requests(monkeypatch):
    clock, sizes = clock_of_pieces(monkeypatch, 5 * MAX_STEP_S)
    drafter = GrammarDrafter(VOCABULARY, encode, clock)
    slow = [task(SCHEMA, LONG, request_id) for request_id in (0, 1)]
    await compiled(drafter, slow)
    for _ in range(3 * MAX_SLOW_STEPS):
        await drafter.draft(slow)
    assert sizes == [PIECE_BYTES] * (MAX_SLOW_STEPS + 1)
    assert await drafter.draft([task(SCHEMA, "{", request_id=2)]) == {}
    assert drafter._walks == {}
    assert await drafts_of(drafter, task(grammar_of_choice(["red"], "c"), request_id=3))


def test_slow_steps_are_made_up_for_by_quick_ones_and_few_grammars_are_remembered():
    slowness = _Slowness()
    for _ in range(10 * MAX_SLOW_STEPS):
        for step in range(QUICK_STEPS + 1):
            slowness.note("seldom", is_slow=step == 0)
    assert not slowness.is_too_much("seldom")
    for number in range(1000):
        for _ in range(MAX_SLOW_STEPS + 1):
            slowness.note(str(number), is_slow=True)
        assert slowness.is_too_much(str(number))
    assert len(slowness._num_slow) < 100


async def test_a_grammar_that_takes_long_is_followed_less_far_and_then_no_more():
    ticks = itertools.count()
    slow = GrammarDrafter(VOCABULARY, encode, lambda: next(ticks) * MAX_STEP_S / 4)
    short = await drafts_of(slow, task(SCHEMA, '{"'))
    whole = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(SCHEMA, '{"'))
    assert 0 < len(short.tree) < len(whole.tree)
    found = [await slow.draft([task(SCHEMA, '{"')]) for _ in range(MAX_SLOW_STEPS)]
    assert found[-1] != {}
    assert await slow.draft([task(SCHEMA, '{"')]) == {}
