"""The sessions of a draft model: token ids and the keys and values computed from them.

A session is a pure function of its token ids, so it may be forgotten at any time: the least
recently used ones go when memory runs out. Only the ids say what is cached; how they came, in one
go or bit by bit, with tokens taken back or a restart between, makes no difference.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np
import torch

from actors.decoder.attention_groups import Span
from actors.decoder.kv_cache import KVCache, KVShape, Slots
from actors.errors import ConfigError
from actors.tree import TokenTree

BLOCK_TOKENS = 64
"""Sessions grow in steps of this many positions."""

_TREE_BLOCKS = 64
"""Room for the nodes of one call's trees, beside the sessions and beyond their bound."""


class Session:
    """One session.

    Attributes:
        token_ids: all of them; the last one is the root of the next tree.
        blocks: of the cache that it holds.
        slots: [capacity] of the cache, in order of position.
        num_cached: positions whose keys and values stand.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.blocks: list[int] = []
        self.slots: Slots = np.empty(0, dtype=np.int64)
        self.num_cached = 0

    @property
    def pending(self) -> list[int]:
        """Tokens that are not cached yet; after `replace`, at least the last one, which has to be
        run to see what follows it."""
        return self.token_ids[self.num_cached :]

    def replace(self, keep: int, token_ids: Sequence[int]) -> None:
        """Let `token_ids` follow the first `keep` tokens; what is cached of the same ids stays."""
        old = self.token_ids[keep : keep + len(token_ids)]
        pairs = zip(old, token_ids, strict=False)
        same = next((i for i, (was, now) in enumerate(pairs) if was != now), len(old))
        self.token_ids[keep:] = token_ids
        self.num_cached = min(self.num_cached, keep + same, len(self.token_ids) - 1)

    def take_pending(self, count: int, first_row: int) -> Span:
        """The next `count` tokens as rows of a step; they count as cached from now on."""
        chain = TokenTree.chain(self.pending[:count])
        span = Span(chain, self.num_cached, first_row, self.slots)
        self.num_cached += count
        return span


class SessionStore:
    """Sessions by id, within a bound of memory.

    Args:
        shape: of keys and values.
        dtype: of them.
        max_bytes: of all sessions together.

    Attributes:
        cache: holds the keys and values.
        tree_slots: of it, for the nodes of one call's trees.

    Raises:
        ConfigError: not even one block of positions fits.
    """

    def __init__(self, shape: KVShape, dtype: torch.dtype, max_bytes: int) -> None:
        block_bytes = BLOCK_TOKENS * shape.token_bytes(dtype)
        num_blocks = max_bytes // block_bytes
        if not num_blocks:
            problem = f"{max_bytes} bytes of a draft model's KV do not hold one block"
            raise ConfigError([f"{problem} of {block_bytes} bytes"])
        cpu = torch.device("cpu")
        self.cache = KVCache(shape, _TREE_BLOCKS + num_blocks, BLOCK_TOKENS, dtype, cpu)
        self.tree_slots: Slots = np.arange(_TREE_BLOCKS * BLOCK_TOKENS)
        # The first ones are taken first: pages of memory are touched as they are needed.
        self._free = list(reversed(range(_TREE_BLOCKS, _TREE_BLOCKS + num_blocks)))
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def sync(
        self, session_id: int, keep: int, token_ids: Sequence[int], in_use: Collection[int] = ()
    ) -> Session | None:
        """Bring a session up to date and make room for its keys and values.

        Args:
            keep: the session's first so many tokens stand; 0 begins it anew.
            token_ids: follow them; at least one token is left.
            in_use: sessions that must not make room for this one.

        Returns:
            The session; None if it holds fewer than `keep` tokens or memory has no room for it.
            It is forgotten then.
        """
        session = self._sessions.pop(session_id, None) or Session()
        known = keep <= len(session.token_ids)
        if not known or not self._extend(session, keep + len(token_ids), in_use):
            self._free.extend(session.blocks)
            return None
        session.replace(keep, token_ids)
        self._sessions[session_id] = session
        return session

    def release(self, session_id: int) -> None:
        """Forget a session; does nothing if there is none."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._free.extend(session.blocks)

    def _extend(self, session: Session, num_tokens: int, in_use: Collection[int]) -> bool:
        """Give a session blocks for so many positions, if need be those of idle ones."""
        missing = -(-num_tokens // BLOCK_TOKENS) - len(session.blocks)
        if missing <= 0:
            return True
        idle = [session_id for session_id in self._sessions if session_id not in in_use]
        while len(self._free) < missing and idle:
            self.release(idle.pop(0))
        if len(self._free) < missing:
            return False
        session.blocks += [self._free.pop() for _ in range(missing)]
        starts = np.asarray(session.blocks, dtype=np.int64) * BLOCK_TOKENS
        session.slots = (starts[:, None] + np.arange(BLOCK_TOKENS)).reshape(-1)
        return True
