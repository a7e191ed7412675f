"""The ledger's books: committed ≤ written ≤ reserved, no block lost or doubled."""

from __future__ import annotations

import random

import pytest

from actors.request_manager.kv_ledger import KVLedger


def test_blocks_are_granted_as_tokens_need_them() -> None:
    ledger = KVLedger(num_blocks=4, block_tokens=4)
    ledger.open(7)
    assert len(ledger.write(7, 5)) == 2
    ledger.commit(7, 5)
    assert ledger.write(7, 3) == ()
    assert len(ledger.write(7, 4)) == 1
    assert ledger.blocks_short(7, 12) == 1
    assert ledger.num_used == 3
    ledger.close(7)
    assert ledger.num_used == 0


def test_committing_what_was_not_written_is_a_bug() -> None:
    ledger = KVLedger(2, 4)
    ledger.open(0)
    ledger.write(0, 3)
    with pytest.raises(AssertionError):
        ledger.commit(0, 4)


def test_audit_sees_a_doubled_block() -> None:
    ledger = KVLedger(2, 4)
    ledger.open(0)
    ledger.write(0, 3)
    ledger.audit()
    ledger.account(0).blocks.append(0 if ledger.account(0).blocks[0] else 1)
    with pytest.raises(AssertionError, match="blocks lost or doubled"):
        ledger.audit()


@pytest.mark.parametrize("seed", range(20))
def test_books_balance_through_any_history(seed: int) -> None:
    chance = random.Random(seed)
    ledger = KVLedger(num_blocks=20, block_tokens=3)
    running: set[int] = set()
    for turn in range(300):
        action = chance.randrange(4)
        if action == 0:
            ledger.open(turn)
            running.add(turn)
        elif running:
            request_id = chance.choice(sorted(running))
            if action == 1:
                ledger.close(request_id)
                running.discard(request_id)
            else:
                wanted = chance.randrange(1, 9)
                if not ledger.blocks_short(request_id, wanted):
                    ledger.write(request_id, wanted)
                    ledger.commit(request_id, chance.randrange(1, wanted + 1))
        ledger.audit()
    for request_id in running:
        ledger.close(request_id)
    assert ledger.num_used == 0
