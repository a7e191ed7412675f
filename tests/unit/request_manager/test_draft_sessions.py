"""What is sent to a draft model: everything once, then what is new."""

from __future__ import annotations

import pytest

from actors.drafts import DraftReply, DraftRequest, SessionDraft
from actors.request_manager import draft_sessions
from actors.request_manager.draft_sessions import DraftSessions
from actors.request_manager.ports import DraftTask
from actors.sampling import SamplingParams

SAMPLING = SamplingParams(temperature=0.5, min_tokens=3, seed=9)


def task(request_id: int, *tokens: int) -> DraftTask:
    return DraftTask(request_id, tokens, 2, SAMPLING, 8, 4, None, (7,))


def sent(request: DraftRequest) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(one.session_id, one.keep_tokens, one.token_ids) for one in request.sessions]


def answer(*drafts: SessionDraft) -> DraftReply:
    return DraftReply(drafts)


def test_the_whole_text_then_what_is_new() -> None:
    sessions = DraftSessions()
    first = sessions.request([task(1, 5, 6, 7)])
    assert sent(first) == [(1, 0, (5, 6, 7))]
    sessions.confirm(first, answer(SessionDraft(1)))
    assert sent(sessions.request([task(1, 5, 6, 7, 8, 9)])) == [(1, 3, (8, 9))]


def test_what_was_not_confirmed_is_sent_again() -> None:
    sessions = DraftSessions()
    sessions.confirm(sessions.request([task(1, 5)]), answer(SessionDraft(1)))
    sessions.request([task(1, 5, 6)])
    assert sent(sessions.request([task(1, 5, 6, 7)])) == [(1, 1, (6, 7))]


def test_an_unknown_session_is_sent_whole_and_the_others_are_not() -> None:
    sessions = DraftSessions()
    both = sessions.request([task(1, 5), task(2, 6)])
    sessions.confirm(both, answer(SessionDraft(1, unknown_session=True), SessionDraft(2)))
    again = sessions.request([task(1, 5, 8), task(2, 6, 8)])
    assert sent(again) == [(1, 0, (5, 8)), (2, 1, (8,))]


def test_a_draft_model_that_was_restarted_is_sent_everything() -> None:
    sessions = DraftSessions()
    sessions.confirm(sessions.request([task(1, 5, 6)]), answer(SessionDraft(1)))
    sessions.reset()
    assert sent(sessions.request([task(1, 5, 6)])) == [(1, 0, (5, 6))]


def test_texts_that_do_not_fit_into_one_request_come_with_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_sessions, "MAX_NEW_TOKENS", 5)
    sessions = DraftSessions()
    tasks = [task(1, 1, 2, 3, 4), task(2, 5, 6), task(3, 7)]
    first = sessions.request(tasks)
    assert [number for number, _, _ in sent(first)] == [1, 3]
    sessions.confirm(first, answer(SessionDraft(1), SessionDraft(3)))
    assert sent(sessions.request(tasks)) == [(1, 4, ()), (2, 0, (5, 6)), (3, 1, ())]


def test_only_sessions_that_may_exist_are_released() -> None:
    sessions = DraftSessions()
    sessions.confirm(sessions.request([task(1, 5)]), answer(SessionDraft(1)))
    assert sessions.forget(1)
    assert not sessions.forget(1)
    assert not sessions.forget(2)


def test_a_session_is_told_how_its_tokens_are_drawn() -> None:
    (asked,) = DraftSessions().request([task(1, 5, 6, 7)]).sessions
    assert (asked.prompt_len, asked.sampling, asked.banned_early) == (2, SAMPLING, (7,))
    assert (asked.max_nodes, asked.max_depth) == (8, 4)


def test_a_session_that_was_never_confirmed_is_released_too() -> None:
    sessions = DraftSessions()
    sessions.request([task(1, 5)])
    assert 1 in sessions
    assert sessions.forget(1)
    assert 1 not in sessions


def test_an_answer_for_a_request_that_is_over_leaves_nothing() -> None:
    sessions = DraftSessions()
    both = sessions.request([task(1, 5), task(2, 6)])
    sessions.forget(1)
    assert sessions.confirm(both, answer(SessionDraft(1), SessionDraft(2))) == [1]
    assert 1 not in sessions
    assert not sessions.forget(1)
    assert sent(sessions.request([task(2, 6, 8)])) == [(2, 1, (8,))]
