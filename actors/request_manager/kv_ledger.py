"""Which request holds which KV blocks, and how far each is filled.

The ledger is the only place that hands out blocks; the ranks do as they are told. For every
request, at all times, in tokens: committed ≤ written ≤ reserved.

- *committed*: KV that belongs to committed tokens, in contiguous slots from 0 on;
- *written*: slots that some step may have written, drafts included;
- *reserved*: slots of the blocks that the request holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class KVAccount:
    """One request's blocks and marks."""

    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    written: int = 0


class KVLedger:
    """All blocks of one LLM.

    Args:
        num_blocks: blocks that the ranks have.
        block_tokens: tokens in each.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._accounts: dict[int, KVAccount] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks together hold."""
        return self.num_blocks * self.block_tokens

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._accounts

    def account(self, request_id: int) -> KVAccount:
        return self._accounts[request_id]

    def open(self, request_id: int) -> None:
        """Start an empty account."""
        assert request_id not in self._accounts, f"account {request_id} is open already"
        self._accounts[request_id] = KVAccount()

    def blocks_short(self, request_id: int, num_tokens: int) -> int:
        """Blocks missing, beyond those that are free, to write `num_tokens` more; 0 if it fits."""
        return max(0, self._blocks_wanted(request_id, num_tokens) - len(self._free))

    def write(self, request_id: int, num_tokens: int) -> tuple[int, ...]:
        """Reserve slots for `num_tokens` after the committed ones, and count them as written.

        Returns:
            The blocks newly granted. Call only if `blocks_short` is 0.
        """
        account = self._accounts[request_id]
        wanted = self._blocks_wanted(request_id, num_tokens)
        assert wanted <= len(self._free), "granting blocks that are not there"
        granted = tuple(self._free.pop() for _ in range(wanted))
        account.blocks.extend(granted)
        account.written = max(account.written, account.committed + num_tokens)
        return granted

    def commit(self, request_id: int, num_tokens: int) -> None:
        """`num_tokens` of what was written are committed, the rest is forgotten."""
        account = self._accounts[request_id]
        account.committed += num_tokens
        assert account.committed <= account.written, "committing KV that was never written"
        account.written = account.committed

    def close(self, request_id: int) -> None:
        """End the account; its blocks are free."""
        self._free.extend(reversed(self._accounts.pop(request_id).blocks))

    def reset(self, num_blocks: int | None = None) -> None:
        """Forget everything, as the ranks do at a new epoch.

        Args:
            num_blocks: blocks that there are from now on; None for as many as before.
        """
        self.num_blocks = self.num_blocks if num_blocks is None else num_blocks
        self._accounts.clear()
        self._free = list(range(self.num_blocks - 1, -1, -1))

    def audit(self) -> None:
        """Raise AssertionError if blocks were lost, doubled or overfilled."""
        held = [block for account in self._accounts.values() for block in account.blocks]
        assert sorted(held + self._free) == list(range(self.num_blocks)), "blocks lost or doubled"
        for request_id, account in self._accounts.items():
            reserved = len(account.blocks) * self.block_tokens
            assert account.committed <= account.written <= reserved, (request_id, account)

    def _blocks_wanted(self, request_id: int, num_tokens: int) -> int:
        account = self._accounts[request_id]
        needed = -(-(account.committed + num_tokens) // self.block_tokens)
        return max(0, needed - len(account.blocks))
