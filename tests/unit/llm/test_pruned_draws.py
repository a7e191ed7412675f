"""Drafts that a grammar forbids are left out of a step; what was drawn there follows the rest."""

from __future__ import annotations

from actors.llm.pruning import Verdict
from actors.messages import Row
from actors.tree import TokenTree
from actors.verification import Draws, NodeDraws


def drawn(node: int, token: int) -> NodeDraws:
    return NodeDraws(node, Draws((token,), (token,), (1.0,)))


def test_draws_keep_their_nodes_and_those_of_forbidden_ones_go():
    tree = TokenTree((0, 1, 2, 3), (-1, 0, 0, 2))  # r 1 2 3, the last below 2
    row = Row(7, 4, tree, draws=(drawn(0, 1), drawn(1, 5), drawn(2, 3)))
    (left,) = Verdict(kept={7: (0, 2, 3)}).rows([row])
    assert left.tree == TokenTree((0, 2, 3), (-1, 0, 1))
    assert left.draws == (drawn(0, 1), drawn(1, 3))
