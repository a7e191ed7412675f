"""Verification: which draft nodes of a step the LLM accepts.

The walk begins at the root of the step tree, so what is accepted is a path; the LLM's own token
after the last accepted node is the bonus.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from actors.errors import ProtocolError
from actors.tree import TokenTree

ROOT = 0
"""The step tree's first node: the last committed token."""


@dataclass(frozen=True)
class Verified:
    """What one step brings a request, before it is trimmed to the request's limits.

    Attributes:
        accepted: draft nodes of the step tree, from the root down; the root is not among them.
        token_ids: their tokens, then the bonus.
        is_cut: the token after these could not be drawn as it should.
    """

    accepted: tuple[int, ...]
    token_ids: tuple[int, ...]
    is_cut: bool = False

    @property
    def kept_nodes(self) -> tuple[int, ...]:
        """Nodes of the step tree whose KV belongs to committed tokens: root and accepted."""
        return (ROOT, *self.accepted)

    def before(self, faulty: Collection[int]) -> Verified:
        """What was drawn before the first of the kept nodes that is `faulty`."""
        for num_good, node in enumerate(self.kept_nodes):
            if node in faulty:
                return Verified(self.accepted[:num_good], self.token_ids[:num_good], is_cut=True)
        return self


def verify(tree: TokenTree, drawn_ids: Sequence[int]) -> Verified:
    """Walk the step tree: a child is accepted when it equals the token drawn at its parent.

    The LLM's token at every node came about by the request's rule (`actors.verification`), where
    its logits are. The walk is the same for all of them. Under `coupled` that token is the LLM's
    own, by argmax [score + T · G(seed, position, token)], so the output is, whatever the tree. That
    drafts come from the same noise makes them likely to be right; nothing relies on it.

    Args:
        tree: the root, and the draft nodes below it.
        drawn_ids: for each node the token that the LLM drew after it.

    Raises:
        ProtocolError: if there is not one drawn token for each node.
    """
    if len(drawn_ids) != len(tree):
        raise ProtocolError(f"{len(drawn_ids)} drawn tokens for {len(tree)} nodes")
    accepted: list[int] = []
    token_ids = [drawn_ids[ROOT]]
    child = tree.child(ROOT, drawn_ids[ROOT])
    while child is not None:
        accepted.append(child)
        token_ids.append(drawn_ids[child])
        child = tree.child(child, drawn_ids[child])
    return Verified(tuple(accepted), tuple(token_ids))
