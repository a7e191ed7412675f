"""How far down the trees the LLM follows the drafts: counts by depth, of the trees and by drafter.

Depths count from 0, the children of the root. A step of a request *reaches* a depth when it accepts
a draft at every depth above; it is *offered* a draft there if the tree goes on below the last one
accepted. So of the steps that reach a depth, offered / reached have something to verify there,
accepted / offered is the acceptance, and those accepted reach the next depth. What was accepted
and cut off after the end of an output counts as accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from actors.tree import CONTEXT, TokenTree

DrafterDepth = tuple[str, int]


@dataclass
class DepthCounts:
    """Counts over steps, one for each request in a step.

    Attributes:
        reached, offered: by depth; at depth 0 every step is reached.
        offered_by, accepted_by: by drafter and depth; a draft counts for each of its proposers.
        tree_depths: how many trees were so many drafts deep; steps without drafts are left out.
    """

    reached: Counter[int] = field(default_factory=Counter)
    offered: Counter[int] = field(default_factory=Counter)
    offered_by: Counter[DrafterDepth] = field(default_factory=Counter)
    accepted_by: Counter[DrafterDepth] = field(default_factory=Counter)
    tree_depths: Counter[int] = field(default_factory=Counter)

    def count(
        self, tree: TokenTree, proposers: Sequence[Collection[str]], accepted: Sequence[int]
    ) -> None:
        """Add one request's part of one step.

        Args:
            tree: its drafts, without the root; may be empty.
            proposers: of each node of `tree`.
            accepted: nodes of `tree`, from the root down.
        """
        self.reached.update(range(len(accepted) + 1))
        if not len(tree):
            return
        self.tree_depths[max(tree.depths) + 1] += 1
        path = {CONTEXT, *accepted}
        tried = [node for node, parent in enumerate(tree.parents) if parent in path]
        self.offered.update({tree.depths[node] for node in tried})
        self.offered_by.update(
            {(drafter, tree.depths[node]) for node in tried for drafter in proposers[node]}
        )
        self.accepted_by.update(
            {(drafter, tree.depths[node]) for node in accepted for drafter in proposers[node]}
        )
