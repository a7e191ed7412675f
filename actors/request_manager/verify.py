"""Verification: which draft nodes of a step the LLM accepts.

Every rule walks from the root of the step tree, so what it accepts is a path; the LLM's own token
after the last accepted node is the bonus. Rules are objects in `VERIFICATION_RULES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

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


class VerificationRule(Protocol):
    """Decides from what the LLM drew which draft nodes are accepted."""

    def verify(self, tree: TokenTree, drawn_ids: Sequence[int]) -> Verified:
        """Walk the step tree.

        Args:
            tree: the root, and the draft nodes below it.
            drawn_ids: for each node the token that the LLM drew after it.

        Raises:
            ProtocolError: if there is not one drawn token for each node.
        """


class CoupledRule:
    """A child is accepted when it equals the token that the LLM drew at its parent.

    The LLM draws at every node by argmax [score + T · G(seed, position, token)], so the output is
    the LLM's own for that noise, whatever the tree. Greedy decoding is T = 0. That drafts come
    from the same noise makes them likely to be right; the rule does not rely on it.
    """

    def verify(self, tree: TokenTree, drawn_ids: Sequence[int]) -> Verified:
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


VERIFICATION_RULES: Mapping[str, VerificationRule] = MappingProxyType({"coupled": CoupledRule()})
