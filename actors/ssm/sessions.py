"""The sessions of a draft model: token ids and the keys and values computed from them.

A session is a pure function of its token ids, so it may be forgotten at any time: the least
recently used ones go when memory runs out. Only the ids say what is cached; how they came, in one
go or bit by bit, with tokens taken back or a restart between, makes no difference.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from torch import Tensor

_GROWTH_TOKENS = 256
"""Caches grow in steps of this many positions."""


class Session:
    """One session.

    Attributes:
        token_ids: all of them; the last one is the root of the next tree.
        cache: [layers, 2, heads, capacity, head size], valid up to `num_cached`.
        num_cached: positions whose keys and values stand; always fewer than there are tokens, as
            the last token has to be run to see what follows it.
    """

    def __init__(self, cache: Tensor) -> None:
        self.token_ids: list[int] = []
        self.cache = cache
        self.num_cached = 0

    @property
    def pending(self) -> list[int]:
        """Tokens that are not cached yet; at least the last one."""
        return self.token_ids[self.num_cached :]

    @property
    def capacity(self) -> int:
        return int(self.cache.shape[3])

    def replace(self, keep: int, token_ids: Sequence[int]) -> None:
        """Let `token_ids` follow the first `keep` tokens; what is cached of the same ids stays."""
        old = self.token_ids[keep : keep + len(token_ids)]
        pairs = zip(old, token_ids, strict=False)
        same = next((i for i, (was, now) in enumerate(pairs) if was != now), len(old))
        self.token_ids[keep:] = token_ids
        self.num_cached = min(self.num_cached, keep + same, len(self.token_ids) - 1)

    def context(self, window: int) -> Tensor:
        """The cached positions that the next token can see, as `Lanes` takes them."""
        first = max(0, self.num_cached - window) if window else 0
        return self.cache[:, :, :, first : self.num_cached]

    def append(self, keys_values: Tensor) -> None:
        """Cache the next positions, [layers, 2, heads, positions, head size]."""
        end = self.num_cached + keys_values.shape[3]
        self.cache[:, :, :, self.num_cached : end] = keys_values
        self.num_cached = end


class SessionStore:
    """Sessions by id, within a bound of memory.

    Args:
        new_cache: makes an empty cache for a number of positions.
        bytes_per_token: of one position in it.
        max_bytes: of all caches together.
    """

    def __init__(
        self, new_cache: Callable[[int], Tensor], bytes_per_token: int, max_bytes: int
    ) -> None:
        self._new_cache = new_cache
        self._max_tokens = max_bytes // bytes_per_token
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    @property
    def num_tokens(self) -> int:
        """Positions that the caches have room for, all together."""
        return sum(session.capacity for session in self._sessions.values())

    def sync(
        self, session_id: int, keep: int, token_ids: Sequence[int], in_use: Collection[int] = ()
    ) -> Session | None:
        """Bring a session up to date and make room for its cache.

        Args:
            keep: the session's first so many tokens stand; 0 begins it anew.
            token_ids: follow them; at least one token is left.
            in_use: sessions that must not make room for this one.

        Returns:
            The session; None if it holds fewer than `keep` tokens or memory has no room for it.
            It is forgotten then.
        """
        num_tokens = keep + len(token_ids)
        session = self._sessions.pop(session_id, None)
        if keep > (len(session.token_ids) if session else 0):
            return None
        session = session or Session(self._new_cache(0))
        missing = num_tokens - session.capacity
        if missing > 0:
            capacity = -(-num_tokens // _GROWTH_TOKENS) * _GROWTH_TOKENS
            if not self._make_room(capacity, in_use):
                return None
            cache = self._new_cache(capacity)
            cache[:, :, :, : session.num_cached] = session.cache[:, :, :, : session.num_cached]
            session.cache = cache
        session.replace(keep, token_ids)
        self._sessions[session_id] = session
        return session

    def release(self, session_id: int) -> None:
        """Forget a session; does nothing if there is none."""
        self._sessions.pop(session_id, None)

    def _make_room(self, num_tokens: int, in_use: Collection[int]) -> bool:
        """Forget the least recently used sessions until so many more positions fit."""
        idle = [session_id for session_id in self._sessions if session_id not in in_use]
        while self.num_tokens + num_tokens > self._max_tokens and idle:
            del self._sessions[idle.pop(0)]
        return self.num_tokens + num_tokens <= self._max_tokens
