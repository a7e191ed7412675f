"""Token trees: two parallel arrays, `token_ids` and `parents`, parents before children.

Words used everywhere in TreeServe:

- *draft*: a proposed token; *node*: its place in a tree; *proposal*: who proposed it.
- *root*: the last committed token. The LLM sees it together with its draft nodes.
- *accepted*: a node whose token is the one the LLM drew at the node's parent.
- *bonus*: the LLM's own token after the last accepted node.
- *committed*: a token that is part of the output for good.

A `TokenTree` is a forest: parent -1 means "hangs off the context". Drafts hang off the
committed tokens; the tree of an LLM step is the root with the drafts below it.
Pure Python and numpy; knows nothing of models, requests or transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

CONTEXT = -1
"""The parent of a node that hangs off the context."""


@dataclass(frozen=True)
class TokenTree:
    """An immutable forest of tokens.

    Invariants, checked on construction: both arrays have one length; a parent stands before
    its children; token ids are not negative; no two children of a node have the same token
    (nodes are keyed by *path*: the same token under another parent is another node).

    Raises:
        ValueError: if an invariant is broken.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents):
            raise ValueError(
                f"token_ids has {len(self.token_ids)} entries, parents has {len(self.parents)}"
            )
        seen: set[tuple[int, int]] = set()
        for node, (token, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if token < 0:
                raise ValueError(f"token_ids[{node}] is {token}: token ids are not negative")
            if not CONTEXT <= parent < node:
                raise ValueError(f"parents[{node}] is {parent}: must be in [-1, {node})")
            if (parent, token) in seen:
                raise ValueError(f"node {node} repeats token {token} under parent {parent}")
            seen.add((parent, token))

    @classmethod
    def chain(cls, token_ids: Iterable[int]) -> TokenTree:
        """A single path."""
        ids = tuple(token_ids)
        return cls(ids, tuple(range(CONTEXT, len(ids) - 1)))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> TokenTree:
        """Merge token sequences that start at the same place; depth-first order.

        Shared prefixes are stored once; siblings keep the order in which they first appear.
        """
        return cls.union([cls.chain(path) for path in paths])[0]

    @classmethod
    def union(cls, trees: Sequence[TokenTree]) -> tuple[TokenTree, list[tuple[int, ...]]]:
        """Every path of `trees` in one tree, shared prefixes once, in depth-first order.

        Siblings keep the order in which they first appear.

        Returns:
            The tree, and for each of `trees` where its nodes stand in it.
        """
        below: list[dict[int, int]] = [{}]  # entry 0 is the context; token → entry of the child
        entered: list[list[int]] = []
        for tree in trees:
            entries = [0]  # of the context and the tree's nodes
            for token, parent in zip(tree.token_ids, tree.parents, strict=True):
                children = below[entries[parent + 1]]
                if token not in children:
                    children[token] = len(below)
                    below.append({})
                entries.append(children[token])
            entered.append(entries)
        token_ids: list[int] = []
        parents: list[int] = []
        places = [CONTEXT] * len(below)
        stack = [(CONTEXT, token, entry) for token, entry in reversed(below[0].items())]
        while stack:
            parent, token, entry = stack.pop()
            places[entry] = node = len(token_ids)
            token_ids.append(token)
            parents.append(parent)
            stack.extend((node, child, place) for child, place in reversed(below[entry].items()))
        union = cls(tuple(token_ids), tuple(parents))
        return union, [tuple(places[entry] for entry in entries[1:]) for entries in entered]

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of ancestors of each node; nodes that hang off the context have depth 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == CONTEXT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def is_chain(self) -> bool:
        """True if every node is the child of the one before it."""
        return self.parents == tuple(range(CONTEXT, len(self) - 1))

    @cached_property
    def _child_index(self) -> dict[tuple[int, int], int]:
        pairs = zip(self.parents, self.token_ids, strict=True)
        return {pair: node for node, pair in enumerate(pairs)}

    def child(self, parent: int, token: int) -> int | None:
        """The child of `parent` (or of the context, -1) that carries `token`, if there is one."""
        return self._child_index.get((parent, token))

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the context down to `node`, `node` included."""
        nodes: list[int] = []
        while node != CONTEXT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Tokens from the context down to `node`, its own included."""
        return tuple(self.token_ids[step] for step in self.path(node))

    def leaves(self) -> Iterator[int]:
        """Nodes without children, in order."""
        inner = set(self.parents)
        return (node for node in range(len(self)) if node not in inner)

    def visibility(self) -> npt.NDArray[np.bool_]:
        """[n, n]: entry (i, j) is true when node i sees node j, i.e. j is i or its ancestor."""
        size = len(self)
        if self.is_chain:
            return np.tri(size, dtype=np.bool_)
        mask = np.eye(size, dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent != CONTEXT:
                mask[node, :node] |= mask[parent, :node]
        return mask

    def rooted(self, root: int) -> TokenTree:
        """The tree of an LLM step: `root` first, everything else below it."""
        return TokenTree(
            (root, *self.token_ids), (CONTEXT, *(parent + 1 for parent in self.parents))
        )

    def restricted(self, nodes: Sequence[int]) -> TokenTree:
        """The tree of `nodes` alone: ascending, and with every node its ancestors.

        Raises:
            ValueError: if a node's parent is left out or the order is not ascending.
        """
        places = {CONTEXT: CONTEXT} | {node: place for place, node in enumerate(nodes)}
        if any(self.parents[node] not in places for node in nodes):
            raise ValueError("a node was kept without its parent")
        return TokenTree(
            tuple(self.token_ids[node] for node in nodes),
            tuple(places[self.parents[node]] for node in nodes),
        )
