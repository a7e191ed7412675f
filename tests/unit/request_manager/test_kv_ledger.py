"""The ledger's books: committed ≤ written ≤ reserved, no block lost or doubled, sharing counted."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.request_manager.kv_ledger import KVLedger

A, B, C, D = b"a", b"ab", b"abc", b"d"


def filled(ledger: KVLedger, request_id: int, keys: list[bytes], num_tokens: int) -> None:
    """Open, fill and publish an account, as a prefill does."""
    found = ledger.find(keys)
    ledger.open(request_id, found)
    num_new = num_tokens - len(found) * ledger.block_tokens
    ledger.write(request_id, num_new)
    ledger.commit(request_id, num_new)
    ledger.publish(request_id, keys)
    ledger.audit()


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


def test_publishing_what_is_not_full_is_a_bug() -> None:
    ledger = KVLedger(2, 4)
    ledger.open(0)
    ledger.write(0, 7)
    ledger.commit(0, 7)
    with pytest.raises(AssertionError, match="half a block"):
        ledger.publish(0, [A, B])


def spoil_holders(ledger: KVLedger) -> None:
    ledger.account(0).blocks.append(ledger.account(1).blocks[0])


def spoil_free(ledger: KVLedger) -> None:
    ledger._free.append(ledger.account(0).blocks[0])


def spoil_marks(ledger: KVLedger) -> None:
    ledger.account(0).written = 99


def spoil_keys(ledger: KVLedger) -> None:
    ledger._by_key[C] = ledger._free[0]


def spoil_fullness(ledger: KVLedger) -> None:
    block = ledger.account(1).blocks[-1]
    ledger._by_key[C], ledger._keys[block] = block, C


def spoil_unused(ledger: KVLedger) -> None:
    ledger._unused[ledger._free.pop()] = None


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (spoil_holders, "holders are miscounted"),
        (spoil_free, "blocks lost or doubled"),
        (spoil_marks, "KVAccount"),
        (spoil_keys, "keys are wrong"),
        (spoil_fullness, "shared that is not full"),
        (spoil_unused, "nobody can find"),
    ],
)
def test_audit_sees_what_is_wrong(spoil, complaint: str) -> None:
    ledger = KVLedger(num_blocks=8, block_tokens=4)
    filled(ledger, 0, [A, B], 9)
    filled(ledger, 1, [D], 6)
    spoil(ledger)
    with pytest.raises(AssertionError, match=complaint):
        ledger.audit()


def test_what_begins_alike_is_held_together() -> None:
    ledger = KVLedger(num_blocks=8, block_tokens=4)
    filled(ledger, 0, [A, B], 9)
    filled(ledger, 1, [A, B, C], 13)
    assert ledger.account(0).blocks[:2] == ledger.account(1).blocks[:2]
    assert ledger.num_used == 5
    ledger.close(0)
    ledger.audit()
    assert ledger.num_used == 4
    assert ledger.find([A, B, C]) == ledger.account(1).blocks[:3]
    assert ledger.find([D, A]) == []


def test_of_two_equal_blocks_one_is_kept() -> None:
    ledger = KVLedger(num_blocks=8, block_tokens=4)
    for request_id in (0, 1):
        ledger.open(request_id)
        ledger.write(request_id, 5)
        ledger.commit(request_id, 5)
    for request_id in (0, 1):
        ledger.publish(request_id, [A])
    ledger.audit()
    ledger.close(0)
    ledger.close(1)
    ledger.audit()
    assert ledger.num_available == 8
    assert ledger.num_unused(ledger.find([A])) == 1


def test_what_went_unused_for_longest_is_evicted_first_and_from_its_end() -> None:
    ledger = KVLedger(num_blocks=4, block_tokens=4)
    filled(ledger, 0, [A, B], 8)
    filled(ledger, 1, [D], 4)
    ledger.close(0)
    ledger.close(1)
    assert ledger.num_available == 4
    ledger.open(2)
    ledger.write(2, 8)
    assert (len(ledger.find([A, B])), len(ledger.find([D]))) == (1, 1)
    ledger.close(2)
    ledger.open(3, ledger.find([A]))
    ledger.close(3)
    ledger.open(4)
    ledger.write(4, 12)
    assert (len(ledger.find([A])), len(ledger.find([D]))) == (1, 0)
    ledger.audit()


def test_blocks_in_use_are_never_evicted() -> None:
    ledger = KVLedger(num_blocks=3, block_tokens=4)
    filled(ledger, 0, [A, B], 8)
    ledger.open(1)
    assert ledger.blocks_short(1, 8) == 1
    assert ledger.blocks_short(1, 4) == 0


def test_trim_gives_back_what_drafts_had() -> None:
    ledger = KVLedger(num_blocks=8, block_tokens=4)
    ledger.open(0)
    ledger.write(0, 14)
    assert ledger.trim(0) == 0
    ledger.commit(0, 5)
    assert ledger.trim(0) == 2
    assert ledger.num_available == 6
    ledger.audit()


def test_a_new_epoch_forgets_what_was_kept() -> None:
    ledger = KVLedger(num_blocks=8, block_tokens=4)
    filled(ledger, 0, [A, B], 9)
    ledger.close(0)
    ledger.reset(6)
    assert ledger.find([A]) == []
    assert ledger.num_available == ledger.num_blocks == 6
    ledger.audit()


class LedgerHistory(RuleBasedStateMachine):
    """Any order of calls, with texts of few different blocks; the books balance after each."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = KVLedger(num_blocks=9, block_tokens=3)
        self.texts: dict[int, list[bytes]] = {}
        self.next_id = 0

    @rule(text=st.lists(st.sampled_from("xy"), min_size=1, max_size=4), cut=st.integers(0, 4))
    def open(self, text: list[str], cut: int) -> None:
        keys = ["".join(text[: place + 1]).encode() for place in range(len(text))]
        self.ledger.open(self.next_id, self.ledger.find(keys[:cut]))
        self.texts[self.next_id] = keys
        self.next_id += 1

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.texts)))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), size=st.integers(1, 8))
    def run_and_publish(self, data: st.DataObject, size: int) -> None:
        request_id = self.pick(data)
        if self.ledger.blocks_short(request_id, size):
            return
        self.ledger.write(request_id, size)
        self.ledger.audit()
        self.ledger.commit(request_id, data.draw(st.integers(1, size)))
        num_full = self.ledger.account(request_id).committed // self.ledger.block_tokens
        self.ledger.publish(request_id, self.texts[request_id][:num_full])

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.ledger.trim(self.pick(data))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        self.ledger.close(request_id)
        del self.texts[request_id]

    @rule(num_blocks=st.integers(5, 12))
    def new_epoch(self, num_blocks: int) -> None:
        self.ledger.reset(num_blocks)
        self.texts.clear()

    @invariant()
    def books_balance(self) -> None:
        self.ledger.audit()
        held = {b for r in self.texts for b in self.ledger.account(r).blocks}
        assert self.ledger.num_used == len(held)


TestLedgerHistory = LedgerHistory.TestCase
TestLedgerHistory.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
