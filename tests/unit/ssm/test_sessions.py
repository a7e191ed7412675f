"""Sessions: bookkeeping of tokens and slots within a bound of memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.decoder.kv_cache import KVShape
from actors.errors import ConfigError
from actors.ssm.sessions import BLOCK_TOKENS, Session, SessionStore

SHAPE = KVShape(1, 1, 1)
TOKEN_BYTES = SHAPE.token_bytes(torch.float32)


def store(num_blocks: int) -> SessionStore:
    return SessionStore(SHAPE, torch.float32, num_blocks * BLOCK_TOKENS * TOKEN_BYTES)


def run_all(session: Session) -> None:
    """Count every token as cached, as a draft does."""
    span = session.take_pending(len(session.pending), 0)
    assert span.start + len(span.tree) == len(session.token_ids) <= len(session.slots)


def test_a_session_grows_by_what_is_new() -> None:
    sessions = store(8)
    session = sessions.sync(1, 0, [5, 6, 7])
    assert session is not None
    assert session.pending == [5, 6, 7]
    run_all(session)
    assert sessions.sync(1, 3, [8, 9]) is session
    assert (session.token_ids, session.pending) == ([5, 6, 7, 8, 9], [8, 9])


def test_tokens_that_are_sent_again_are_not_computed_again() -> None:
    sessions = store(8)
    session = sessions.sync(1, 0, list(range(10)))
    assert session is not None
    run_all(session)
    assert sessions.sync(1, 4, [4, 5, 6, 99, 8]) is session
    assert session.token_ids == [0, 1, 2, 3, 4, 5, 6, 99, 8]
    assert (session.num_cached, session.pending) == (7, [99, 8])


def test_the_last_token_is_always_run_again() -> None:
    sessions = store(8)
    session = sessions.sync(1, 0, list(range(10)))
    assert session is not None
    run_all(session)
    sessions.sync(1, 10, [])
    assert session.pending == [9]
    sessions.sync(1, 6, [])
    assert session.pending == [5]


def test_slots_stay_when_a_session_grows_and_are_shared_with_nobody() -> None:
    sessions = store(8)
    session, other = sessions.sync(1, 0, [0] * 50), sessions.sync(2, 0, [0] * 70)
    assert session is not None
    assert other is not None
    before = session.slots.copy()
    assert sessions.sync(1, 50, [0] * 100) is session
    assert np.array_equal(session.slots[: len(before)], before)
    assert len(session.slots) >= 150
    taken = np.concatenate((session.slots, other.slots, sessions.tree_slots))
    assert len(np.unique(taken)) == len(taken)
    assert taken.max() < sessions.cache.num_slots


def test_what_is_not_there_is_unknown_and_forgotten() -> None:
    sessions = store(8)
    assert sessions.sync(1, 3, [8]) is None
    sessions.sync(1, 0, [5, 6])
    assert sessions.sync(1, 3, [8]) is None
    assert 1 not in sessions
    assert sessions.num_free_blocks == 8


def test_the_least_recently_used_session_makes_room() -> None:
    sessions = store(2)
    sessions.sync(1, 0, [1])
    sessions.sync(2, 0, [2])
    sessions.sync(1, 1, [1])
    assert sessions.sync(3, 0, [3]) is not None
    assert [key in sessions for key in (1, 2, 3)] == [True, False, True]
    assert sessions.num_free_blocks == 0


def test_sessions_in_use_do_not_make_room() -> None:
    sessions = store(2)
    in_use = {1, 2, 3}
    held = [sessions.sync(key, 0, [key], in_use) for key in (1, 2, 3)]
    assert held[2] is None
    assert [key in sessions for key in (1, 2, 3)] == [True, True, False]


def test_a_text_that_never_fits_has_no_session() -> None:
    sessions = store(8)
    assert sessions.sync(1, 0, [0] * 600) is None
    assert len(sessions) == 0
    assert sessions.num_free_blocks == 8


def test_released_sessions_are_gone() -> None:
    sessions = store(8)
    sessions.sync(1, 0, [1])
    sessions.release(1)
    sessions.release(7)
    assert sessions.num_free_blocks == 8


def test_memory_for_not_even_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not hold one block"):
        SessionStore(SHAPE, torch.float32, BLOCK_TOKENS * TOKEN_BYTES - 1)
