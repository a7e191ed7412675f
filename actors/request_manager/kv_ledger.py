"""Which request holds which KV blocks, how far each is filled, and what is kept for reuse.

The ledger is the only place that hands out blocks; the ranks do as they are told. For every
request, at all times, in tokens: committed ≤ written ≤ reserved.

- *committed*: KV that belongs to committed tokens, in contiguous slots from 0 on;
- *written*: slots that some step may have written, drafts included;
- *reserved*: slots of the blocks that the request holds.

A block that is full of committed tokens may be published under a key that stands for its tokens and
all before them (`prefix_reuse`). A request whose tokens begin alike holds it too instead of
computing it again. Nobody writes into a published block, so sharing needs no copies. When its last
holder is gone it is kept, and taken for something else when no free block is left: the one that
went unused for longest first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class KVAccount:
    """One request's blocks and marks.

    Attributes:
        blocks: in the order of the tokens.
        committed, written: see the module.
        published: so many of the first blocks were offered for reuse, or came from there.
    """

    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    written: int = 0
    published: int = 0


class KVLedger:
    """All blocks of one LLM.

    Args:
        num_blocks: blocks that the ranks have.
        block_tokens: tokens in each.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.reset()

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks together hold."""
        return self.num_blocks * self.block_tokens

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self._unused)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_available

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._accounts

    def account(self, request_id: int) -> KVAccount:
        return self._accounts[request_id]

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks published under the first of `keys`, up to the first that is missing."""
        found = []
        for key in keys:
            if (block := self._by_key.get(key)) is None:
                break
            found.append(block)
        return found

    def num_unused(self, blocks: Sequence[int]) -> int:
        """How many of these published blocks are held by nobody."""
        return sum(block in self._unused for block in blocks)

    def open(self, request_id: int, found: Sequence[int] = ()) -> None:
        """Start an account that holds the blocks `found`; they are committed."""
        assert request_id not in self._accounts, f"account {request_id} is open already"
        for block in found:
            self._holders[block] += 1
            self._unused.pop(block, None)
        num_tokens = len(found) * self.block_tokens
        self._accounts[request_id] = KVAccount(list(found), num_tokens, num_tokens, len(found))

    def blocks_short(self, request_id: int, num_tokens: int) -> int:
        """Blocks missing, beyond those available, to write `num_tokens` more; 0 if it fits."""
        return max(0, self.blocks_wanted(request_id, num_tokens) - self.num_available)

    def blocks_wanted(self, request_id: int, num_tokens: int) -> int:
        """Blocks that must be granted to write `num_tokens` after the committed ones."""
        account = self._accounts[request_id]
        return max(0, self.blocks_for(account.committed + num_tokens) - len(account.blocks))

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_tokens)

    def write(self, request_id: int, num_tokens: int) -> tuple[int, ...]:
        """Reserve slots for `num_tokens` after the committed ones, and count them as written.

        Returns:
            The blocks newly granted. Call only if `blocks_short` is 0.
        """
        account = self._accounts[request_id]
        wanted = self.blocks_wanted(request_id, num_tokens)
        assert wanted <= self.num_available, "granting blocks that are not there"
        granted = tuple(self._take() for _ in range(wanted))
        account.blocks.extend(granted)
        account.written = max(account.written, account.committed + num_tokens)
        return granted

    def commit(self, request_id: int, num_tokens: int) -> None:
        """`num_tokens` of what was written are committed, the rest is forgotten."""
        account = self._accounts[request_id]
        account.committed += num_tokens
        assert account.committed <= account.written, "committing KV that was never written"
        account.written = account.committed

    def publish(self, request_id: int, keys: Sequence[bytes]) -> None:
        """Offer a request's first blocks, one for each key, for reuse.

        Of two blocks with one key, filled side by side, the first to be published is offered.
        """
        account = self._accounts[request_id]
        assert len(keys) * self.block_tokens <= account.committed, "publishing half a block"
        for place in range(account.published, len(keys)):
            if keys[place] not in self._by_key:
                self._by_key[keys[place]] = account.blocks[place]
                self._keys[account.blocks[place]] = keys[place]
        account.published = max(account.published, len(keys))

    def trim(self, request_id: int) -> int:
        """Take back the blocks beyond what is committed, unless a step is writing into them.

        Returns:
            How many there were.
        """
        account = self._accounts[request_id]
        if account.written > account.committed:
            return 0
        kept = self.blocks_for(account.committed)
        surplus, account.blocks[kept:] = account.blocks[kept:], []
        self._drop(surplus)
        return len(surplus)

    def close(self, request_id: int) -> None:
        """End the account; blocks that nobody else holds are available."""
        self._drop(self._accounts.pop(request_id).blocks)

    def reset(self, num_blocks: int | None = None) -> None:
        """Forget everything, as the ranks do at a new epoch.

        Args:
            num_blocks: blocks that there are from now on; None for as many as before.
        """
        self.num_blocks = self.num_blocks if num_blocks is None else num_blocks
        self._accounts: dict[int, KVAccount] = {}
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._holders: Counter[int] = Counter()
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    def audit(self) -> None:
        """Raise AssertionError if blocks were lost, doubled or overfilled, or counts are wrong."""
        held = Counter(block for account in self._accounts.values() for block in account.blocks)
        assert held == self._holders, "holders are miscounted"
        everywhere = [*held, *self._free, *self._unused]
        assert sorted(everywhere) == list(range(self.num_blocks)), "blocks lost or doubled"
        assert self._by_key == {key: block for block, key in self._keys.items()}, "keys are wrong"
        assert self._unused.keys() <= self._keys.keys(), "a block is kept that nobody can find"
        assert not self._keys.keys() & set(self._free), "a free block can be found"
        for request_id, account in self._accounts.items():
            reserved = len(account.blocks) * self.block_tokens
            assert account.committed <= account.written <= reserved, (request_id, account)
            assert len(set(account.blocks)) == len(account.blocks), (request_id, account)
            for block in account.blocks[account.committed // self.block_tokens :]:
                is_shared = held[block] > 1 or block in self._keys
                assert not is_shared, "a block is shared that is not full"

    def _take(self) -> int:
        """A block that nobody holds, for one holder; forgets what was kept in it."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._unused.popitem(last=False)
            del self._by_key[self._keys.pop(block)]
        self._holders[block] = 1
        return block

    def _drop(self, blocks: Sequence[int]) -> None:
        """One holder less for each. Later tokens go first: without those before they are lost."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            del self._holders[block]
            if block in self._keys:
                self._unused[block] = None
            else:
                self._free.append(block)
