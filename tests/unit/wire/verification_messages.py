"""Draws as they may travel."""

from __future__ import annotations

from hypothesis import strategies as st

from actors.verification import MAX_SUPPORT, Draws, NodeDraws, Rule

rules = st.sampled_from(Rule)
_tokens = st.integers(0, 2**32 - 1)
_weights = st.floats(0, 1, width=32, exclude_min=True)


@st.composite
def draws(draw: st.DrawFn) -> Draws:
    support = draw(st.lists(_tokens, min_size=1, max_size=MAX_SUPPORT, unique=True))
    size = len(support)
    return Draws(
        tuple(draw(st.lists(st.sampled_from(support), max_size=8))),
        tuple(support),
        tuple(draw(st.lists(_weights, min_size=size, max_size=size))),
    )


def node_draws(first: int, num_nodes: int) -> st.SearchStrategy[tuple[NodeDraws, ...]]:
    """Below nodes from `first` on; at most as many as a row may have."""
    if num_nodes <= max(first, 0):
        return st.just(())
    one = st.builds(NodeDraws, st.integers(first, num_nodes - 1), draws())
    return st.lists(one, max_size=min(3, 8 * num_nodes)).map(tuple)
