"""Sessions: bookkeeping of tokens and caches within a bound of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.ssm.sessions import Session, SessionStore


def new_cache(capacity: int) -> Tensor:
    return torch.full((1, 2, 1, capacity, 1), -1.0)


def store(max_tokens: int) -> SessionStore:
    return SessionStore(new_cache, 1, max_tokens)


def cache_all(session: Session) -> None:
    """Cache every token but the last, as its own id."""
    ids = torch.tensor(session.pending[:-1], dtype=torch.float32)
    session.append(ids.view(1, 1, 1, -1, 1).expand(1, 2, 1, -1, 1))


def cached(session: Session) -> list[int]:
    return [int(value) for value in session.cache[0, 0, 0, : session.num_cached, 0]]


def test_a_session_grows_by_what_is_new() -> None:
    sessions = store(1000)
    session = sessions.sync(1, 0, [5, 6, 7])
    assert session is not None
    assert session.pending == [5, 6, 7]
    cache_all(session)
    assert sessions.sync(1, 3, [8]) is session
    assert (session.token_ids, session.pending) == ([5, 6, 7, 8], [7, 8])


def test_tokens_that_are_sent_again_are_not_computed_again() -> None:
    sessions = store(1000)
    session = sessions.sync(1, 0, list(range(10)))
    assert session is not None
    cache_all(session)
    assert sessions.sync(1, 4, [4, 5, 6, 99, 8]) is session
    assert session.token_ids == [0, 1, 2, 3, 4, 5, 6, 99, 8]
    assert session.pending == [99, 8]
    assert cached(session) == list(range(7))


def test_a_shorter_text_leaves_its_last_token_to_run() -> None:
    sessions = store(1000)
    session = sessions.sync(1, 0, list(range(10)))
    assert session is not None
    cache_all(session)
    sessions.sync(1, 6, [])
    assert session.pending == [5]


def test_a_cache_keeps_its_content_when_it_grows() -> None:
    sessions = store(10_000)
    session = sessions.sync(1, 0, list(range(250)))
    assert session is not None
    cache_all(session)
    assert sessions.sync(1, 250, list(range(250, 700))) is session
    assert cached(session) == list(range(249))
    assert session.capacity >= 700


def test_what_is_not_there_is_unknown_and_forgotten() -> None:
    sessions = store(1000)
    assert sessions.sync(1, 3, [8]) is None
    sessions.sync(1, 0, [5, 6])
    assert sessions.sync(1, 3, [8]) is None
    assert 1 not in sessions


def test_the_least_recently_used_session_makes_room() -> None:
    sessions = store(512)
    sessions.sync(1, 0, [1])
    sessions.sync(2, 0, [2])
    sessions.sync(1, 1, [1])
    assert sessions.sync(3, 0, [3]) is not None
    assert [key in sessions for key in (1, 2, 3)] == [True, False, True]
    assert sessions.num_tokens <= 512


def test_sessions_in_use_do_not_make_room() -> None:
    sessions = store(512)
    in_use = {1, 2, 3}
    held = [sessions.sync(key, 0, [key], in_use) for key in (1, 2, 3)]
    assert held[2] is None
    assert [key in sessions for key in (1, 2, 3)] == [True, True, False]


def test_a_text_that_never_fits_has_no_session() -> None:
    sessions = store(512)
    assert sessions.sync(1, 0, [0] * 600) is None
    assert len(sessions) == 0


def test_released_sessions_are_gone() -> None:
    sessions = store(512)
    sessions.sync(1, 0, [1])
    sessions.release(1)
    sessions.release(7)
    assert sessions.num_tokens == 0


def test_the_context_is_what_the_window_shows() -> None:
    session = Session(new_cache(64))
    session.replace(0, list(range(20)))
    cache_all(session)
    assert session.context(0).shape[3] == 19
    assert session.context(4)[0, 0, 0, :, 0].tolist() == [15, 16, 17, 18]
