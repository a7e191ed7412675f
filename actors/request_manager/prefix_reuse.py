"""Which of a request's KV blocks can be shared with others, and under which keys.

A block's key is a digest of its tokens and of the key before it: equal keys mean equal tokens from
the first on, and so, the model being the same, equal KV. Only full blocks have one. KV of output
tokens was computed in trees and moved; it equals what a prefill would compute only where the ranks
are batch invariant, and is shared only there. All requests of a server share with each other;
nothing here keeps its users apart.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from actors.request_manager.request import Request

_DIGEST_BYTES = 20


class PrefixReuse:
    """The rules of sharing.

    Args:
        enabled: False shares nothing.
        block_tokens: tokens of a block.
        batch_invariant: what the ranks promise.
    """

    def __init__(self, *, enabled: bool, block_tokens: int, batch_invariant: bool) -> None:
        self._enabled = enabled
        self._block_tokens = block_tokens
        self.batch_invariant = batch_invariant

    def wanted(self, request: Request) -> Sequence[bytes]:
        """Keys of the blocks that a request could take over before it runs.

        Never all of its tokens, since the last one has to be run for its logits; and none while
        the prompt is to be scored, which takes the logits at each of its tokens.
        """
        if request.wants_prompt_logprobs:
            return ()
        return self._keys(request, len(request.tokens) - 1)

    def offered(self, request: Request, num_committed: int) -> Sequence[bytes]:
        """Keys of the request's blocks that others may take over, once so much is committed."""
        num_tokens = min(num_committed, len(request.tokens))
        if not self.batch_invariant:
            num_tokens = min(num_tokens, request.prompt_len)
        return self._keys(request, num_tokens)

    def _keys(self, request: Request, num_tokens: int) -> Sequence[bytes]:
        if not self._enabled:
            return ()
        num_blocks = num_tokens // self._block_tokens
        extend_keys(request.block_keys, request.tokens, self._block_tokens, num_blocks)
        return request.block_keys[:num_blocks]


def extend_keys(
    keys: list[bytes], tokens: Sequence[int], block_tokens: int, num_blocks: int
) -> None:
    """Bring the keys of a text's blocks to `num_blocks`; those that are there stay."""
    for block in range(len(keys), num_blocks):
        digest = hashlib.blake2b(keys[-1] if keys else b"", digest_size=_DIGEST_BYTES)
        digest.update(array("q", tokens[block * block_tokens : (block + 1) * block_tokens]))
        keys.append(digest.digest())
