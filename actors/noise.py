"""The shared noise: Gumbel variates addressed by (seed, position, token), the same everywhere.

Coupled verification lets the LLM and every draft model perturb their scores with *one* noise, so
that they tend to choose the same token, and ties a token stream to its seed alone. Therefore the
noise is a pure function of:

- key: the seed mod 2^64;
- counter: (token id >> 2, position, stream, 0), lane = token id & 3, of Philox-4x32-10
  (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

With v = (bits + 1/2) · 2^-32 in (0, 1), E = -log1p(-v) is exponential and G = -log E is standard
Gumbel. 32 bits and float64 up to the last step: a 24-bit uniform could never draw the rarest
tokens. The result is float32.

The bits are the same on every machine. The logarithms are numpy's: where two builds of it round
one differently, the float32 result may differ in its last place.

Cost on one current core: about a quarter of a millisecond for 49,152 words; natively
(`actors/decoder/native/`) a third of it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

Gumbel = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
_U64 = npt.NDArray[np.uint64]

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_MULTIPLIERS = np.array([[_MULTIPLIER_0], [_MULTIPLIER_1]], dtype=np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
_ROUNDS = np.arange(10, dtype=np.uint64)[:, np.newaxis]
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)
_WORD = 1 << 32

# 2^20 as a double, whose last place is worth 2^-32: its lowest 32 mantissa bits count in v's unit.
_EXPONENT = np.uint64(0x4130000000000000)
_ONE_MINUS_HALF_UNIT = 2.0**20 - 0.5 / _WORD


class Stream(IntEnum):
    """Independent noises for the different draws that one position may need."""

    DRAW = 0
    DRAFT = 1
    COIN = 2
    RESIDUAL = 3
    OUTSIDE = 4


def draft_stream(model: int) -> int:
    """The number of the noise that drafts are drawn under by one of several draft models.

    Args:
        model: its place among them; the first one's is `Stream.DRAFT`.
    """
    return Stream.DRAFT + model * len(Stream)


def philox_4x32_10(counters: _U64, key: int) -> None:
    """Philox-4x32-10 over many counters, in place.

    Args:
        counters: [4, n], each entry below 2^32; overwritten with the result.
        key: 64-bit key, low word first.
    """
    _rounds(counters, np.empty((2, counters.shape[1]), dtype=np.uint64), _round_keys(key))


def uniforms(seed: int, position: int, stream: int, count: int) -> npt.NDArray[np.float64]:
    """[count] uniform variates in (0, 1), addressed as if they were those of tokens 0, 1, …"""
    counters = np.zeros((4, -(-count // 4)), dtype=np.uint64)
    counters[0] = np.arange(counters.shape[1])
    counters[1], counters[2] = position % _WORD, stream
    philox_4x32_10(counters, seed % (1 << 64))
    return (counters.T.ravel()[:count] + 0.5) / _WORD


def _round_keys(key: int) -> _U64:
    """[10, 2]: both words of each round's key."""
    words = np.array([key % _WORD, (key >> 32) % _WORD], dtype=np.uint64)
    return (words + _ROUNDS * _WEYL) & _LOW


def _rounds(counters: _U64, products: _U64, keys: _U64) -> None:
    """One round of Philox, in place, for each row of `keys`; `products` is scratch, [2, n]."""
    even, odd = counters[0::2], counters[1::2]
    crossed = products[::-1]
    for key in keys[:, :, np.newaxis]:
        np.multiply(even, _MULTIPLIERS, out=products)
        np.right_shift(crossed, _HALF_WORD, out=even)
        np.bitwise_xor(even, odd, out=even)
        np.bitwise_xor(even, key, out=even)
        np.bitwise_and(crossed, _LOW, out=odd)


def gumbel_from_bits(bits: _U64, out: Gumbel) -> None:
    """Standard Gumbel variates from 32 random bits each, into `out`; overwrites `bits`.

    Exact up to the logarithms: -v = (2^20 - 2^-33) - (2^20 + bits · 2^-32) rounds nowhere.
    """
    np.bitwise_or(bits, _EXPONENT, out=bits)
    value = bits.view(np.float64)
    np.subtract(_ONE_MINUS_HALF_UNIT, value, out=value)  # -v
    np.log1p(value, out=value)  # -E
    np.negative(value, out=value)
    np.log(value, out=value)  # -G
    np.negative(value, out=out, casting="same_kind")


class GumbelMaker(Protocol):
    """Makes the noise of the counters that it was made for."""

    def fill(self, seed: int, position: int, stream: int, out: Gumbel) -> None:
        """The four variates of each counter into `out`, [counters, 4] float32."""


class NumpyGumbel:
    """The noise of some counters, by numpy.

    Args:
        counters: their first words, token id >> 2.
    """

    def __init__(self, counters: Words) -> None:
        # Scratch kept between calls: twice as fast as fresh arrays.
        scratch = np.empty((6, len(counters)), dtype=np.uint64)
        self._counters, self._products = scratch[:4], scratch[4:]
        product = counters.astype(np.uint64) * np.uint64(_MULTIPLIER_0)
        self._first_high, self._first_low = product >> _HALF_WORD, product & _LOW

    def fill(self, seed: int, position: int, stream: int, out: Gumbel) -> None:
        keys = _round_keys(seed % (1 << 64))
        self._first_two_rounds(position % _WORD, stream, keys)
        _rounds(self._counters, self._products, keys[2:])
        gumbel_from_bits(self._counters, out.T)

    def _first_two_rounds(self, position: int, stream: int, keys: _U64) -> None:
        """Rounds 0 and 1 of the counters (token id >> 2, position, stream, 0).

        All words but the first are the same for all tokens, and its first product does not
        depend on the position: a fifth of the work of two plain rounds.
        """
        (key_0, key_1), (key_2, key_3) = keys[:2].tolist()
        high, low = divmod(stream * _MULTIPLIER_1, _WORD)
        c0, c1 = high ^ position ^ key_0, low
        high, low = divmod(c0 * _MULTIPLIER_0, _WORD)
        product = self._products[1]
        np.bitwise_xor(self._first_high, np.uint64(key_1), out=product)
        np.multiply(product, np.uint64(_MULTIPLIER_1), out=product)
        even_0, odd_0, even_1, odd_1 = self._counters
        np.right_shift(product, _HALF_WORD, out=even_0)
        np.bitwise_xor(even_0, np.uint64(c1 ^ key_2), out=even_0)
        np.bitwise_and(product, _LOW, out=odd_0)
        np.bitwise_xor(self._first_low, np.uint64(high ^ key_3), out=even_1)
        odd_1[:] = low


class NoiseSource:
    """The noise of a vocabulary, with the most recent (seed, position) pairs remembered.

    All nodes of one depth share a position, and the next step asks again for positions that
    this one has only speculated about. Not safe for use from several threads at once.

    Args:
        vocab_size: number of the LLM's token ids.
        token_ids: those whose noise is wanted; None for all.
        capacity: how many positions to remember (4 bytes a token each).
        maker: what makes the noise of given counters.

    Attributes:
        hits, misses: how often a position was remembered, and how often not.
    """

    def __init__(
        self,
        vocab_size: int,
        token_ids: npt.NDArray[np.int64] | None = None,
        capacity: int = 256,
        maker: Callable[[Words], GumbelMaker] = NumpyGumbel,
    ) -> None:
        self._token_ids = np.arange(vocab_size) if token_ids is None else token_ids
        self.hits = 0
        self.misses = 0
        self._capacity = capacity
        self._entries: OrderedDict[tuple[int, int, int], Gumbel] = OrderedDict()
        counters, which = np.unique(self._token_ids >> 2, return_inverse=True)
        self._maker = maker(counters.astype(np.uint32))
        # Where the tokens' variates stand among those of their counters; None if in order.
        places = 4 * which + (self._token_ids & 3)
        self._places = None if np.array_equal(places, np.arange(len(places))) else places
        self._num_variates = 4 * len(counters)
        self._scratch = self._new_block()
        # A view counts as a reference. How many there are without one depends on the interpreter.
        self._entries[0, 0, 0] = self._new_block()
        _, self._unshared = self._evict()

    def get(self, seed: int, position: int, stream: int = Stream.DRAW) -> Gumbel:
        """[tokens] float32, read-only: the noise of one position.

        Args:
            seed: any integer; taken mod 2^64.
            position: 0-based index, in prompt + output, of the token being *drawn*.
            stream: which of the position's independent noises.
        """
        key = (seed, position, int(stream))
        block = self._entries.get(key)
        if block is not None:
            self.hits += 1
            self._entries.move_to_end(key)
        else:
            self.misses += 1
            block = self._room()
            self._fill(*key, out=block)
            self._entries[key] = block
        noise = block[: len(self._token_ids)]
        noise.flags.writeable = False
        return noise

    def take_counts(self) -> tuple[int, int]:
        """How often a position was remembered and how often computed, since the last call."""
        counts = self.hits, self.misses
        self.hits = self.misses = 0
        return counts

    def _room(self) -> Gumbel:
        """A block for one more position: the oldest one's, unless somebody still looks at it."""
        if len(self._entries) >= self._capacity:
            block, num_references = self._evict()
            if num_references <= self._unshared:
                return block
        return self._new_block()

    def _new_block(self) -> Gumbel:
        return np.empty(self._num_variates, dtype=np.float32)

    def _evict(self) -> tuple[Gumbel, int]:
        """Forget the oldest position; its block, and how many references there are to it."""
        _, block = self._entries.popitem(last=False)
        return block, sys.getrefcount(block)

    def _fill(self, seed: int, position: int, stream: int, out: Gumbel) -> None:
        if self._places is None:
            self._maker.fill(seed, position, stream, out.reshape(-1, 4))
        else:
            self._maker.fill(seed, position, stream, self._scratch.reshape(-1, 4))
            np.take(self._scratch, self._places, out=out[: len(self._places)], mode="clip")
