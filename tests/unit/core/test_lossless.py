"""Coupled verification is lossless: the stream is the LLM's own, for every noise and every tree.

Two checks: on a discretised noise grid, stream for stream, over all trees up to a size; and by
chi-square, of single and of consecutive tokens against the toy LLM's distribution. Each known
mistake must be rejected by at least one of them.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from coupled_decoding import ToyModel, plain_stream, tree_stream
from scipy import stats

from actors.errors import ProtocolError
from actors.noise import NoiseSource, Stream
from actors.request_manager.verify import Verified, verify
from actors.tree import CONTEXT, TokenTree

WORDS = 3
PROMPT = (0, 1)
NUM_TOKENS = 3


# ------------------------------------------------------------------------------- the rule itself


def test_the_longest_matching_path_and_the_bonus():
    tree = TokenTree.from_paths([[1, 2, 3], [1, 4], [5]]).rooted(0)  # r 1 2 3 4 5
    assert verify(tree, [1, 2, 9, 9, 9, 9]) == Verified((1, 2), (1, 2, 9))
    assert verify(tree, [1, 4, 9, 9, 8, 9]) == Verified((1, 4), (1, 4, 8))
    assert verify(tree, [7, 2, 3, 9, 9, 9]) == Verified((), (7,))
    assert verify(tree, [5, 2, 3, 9, 9, 6]).kept_nodes == (0, 5)


def test_a_root_alone_brings_one_token():
    assert verify(TokenTree.chain([4]), [6]) == Verified((), (6,))


@pytest.mark.parametrize("drawn_ids", [[], [1], [1, 2, 3]])
def test_one_drawn_token_for_each_node(drawn_ids):
    with pytest.raises(ProtocolError, match="drawn tokens"):
        verify(TokenTree.chain([0, 1]), drawn_ids)


# ----------------------------------------------------------------- every noise cell, every tree


@cache
def all_trees(max_nodes):
    """Every forest over three words with at most `max_nodes` nodes."""
    paths = [path for size in (1, 2, 3) for path in product(range(WORDS), repeat=size)]
    return [
        TokenTree.from_paths(chosen)
        for size in range(max_nodes + 1)
        for chosen in combinations(paths, size)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    ]


@cache
def draws_by_cell():
    """Cells of a three-level noise grid, as the token that each context draws.

    Cells that draw alike in every context are one.
    """
    model = ToyModel(WORDS, seed=3)
    cells = {}
    for levels in product((-1.0, 0.0, 1.5), repeat=WORDS):
        draws = np.argmax(model.scores + np.array(levels), axis=-1)
        cells[draws.tobytes()] = {context: int(draws[context]) for context in np.ndindex(3, 3)}
    return list(cells.values())


def keep(place):
    return place


def stream_is_plain(mistake=keep, redraw_misses=False, row=0):
    """Whether trees never change the stream, over all cells of all positions and all trees."""
    cells = draws_by_cell()
    trees = [lambda tokens, tree=tree: tree for tree in all_trees(3)]
    for grid in product(range(len(cells)), repeat=NUM_TOKENS):

        def draw(context, place, grid=grid):
            place = mistake(place)
            cell = grid[(place.position - len(PROMPT)) % NUM_TOKENS] + place.draw
            return cells[cell % len(cells)][context[-2:]]

        expected = plain_stream(draw, PROMPT, NUM_TOKENS)
        for drafter in trees:
            if tree_stream(draw, drafter, PROMPT, NUM_TOKENS, row, redraw_misses) != expected:
                return False
    return True


def test_the_grid_covers_what_it_should():
    assert len(all_trees(3)) == 1 + 3 + 12 + 55
    assert len(draws_by_cell()) >= 8
    assert {draw for cell in draws_by_cell() for draw in cell.values()} == {0, 1, 2}


def test_no_tree_changes_the_stream_on_any_noise():
    assert stream_is_plain()


# ------------------------------------------------------------------------------------ chi-square

VOCAB = 4
SAMPLES = 6000
LLM = ToyModel(VOCAB, seed=11)
SSM = ToyModel(VOCAB, seed=12, spread=0.5)
SOURCE = NoiseSource(VOCAB, capacity=64)


def shared_noise_drafter(seed):
    """A draft model that expands with the LLM's own noise: the two best of each of two levels."""

    def best(context):
        scores = SSM.scores[context[-2:]] + SOURCE.get(seed, len(context))
        return [int(token) for token in np.argsort(-scores, kind="stable")[:2]]

    def drafter(tokens):
        return TokenTree.from_paths(
            [[first, second] for first in best(tokens) for second in best((*tokens, first))]
        )

    return drafter


def sampled_streams(mistake=keep, redraw_misses=False):
    streams = []
    for seed in range(SAMPLES):

        def noise(place, seed=seed):
            place = mistake(place)
            return SOURCE.get(seed, place.position, Stream.RESIDUAL if place.draw else Stream.DRAW)

        draw, drafter = LLM.draw_with(noise), shared_noise_drafter(seed)
        streams.append(tree_stream(draw, drafter, PROMPT, NUM_TOKENS, 0, redraw_misses))
    return np.array(streams)


def exact_distribution():
    """[VOCAB, VOCAB, VOCAB]: the probability of every stream of three tokens."""
    joint = np.zeros((VOCAB,) * NUM_TOKENS)
    for stream in product(range(VOCAB), repeat=NUM_TOKENS):
        tokens = PROMPT + stream
        joint[stream] = np.prod(
            [LLM.probabilities(tokens[:end])[tokens[end]] for end in range(2, len(tokens))]
        )
    return joint


def least_p_value(streams):
    """The least p-value of chi-square tests of single and of consecutive tokens."""
    counts = np.zeros((VOCAB,) * NUM_TOKENS)
    np.add.at(counts, tuple(streams.T), 1)
    joint = exact_distribution()
    p_values = []
    for others in [(1, 2), (0, 2), (0, 1), (2,), (0,)]:
        seen, due = counts.sum(axis=others).ravel(), joint.sum(axis=others).ravel()
        p_values.append(stats.chisquare(seen, due * len(streams)).pvalue)
    return min(p_values)


def test_tokens_are_distributed_as_the_llm_says():
    assert least_p_value(sampled_streams()) > 1e-3


def test_drafts_are_accepted_often_enough_for_the_check_to_mean_something():
    steps = []

    for seed in range(200):
        draw = LLM.draw_with(lambda place, seed=seed: SOURCE.get(seed, place.position))
        first = plain_stream(draw, PROMPT, 1)
        steps.append(shared_noise_drafter(seed)(PROMPT).child(CONTEXT, first[0]) is not None)
    assert 0.5 < np.mean(steps) < 1.0


# -------------------------------------------------------------------------------- known mistakes

MISTAKES = {
    "noise keyed by node": lambda place: place._replace(position=place.position + place.node),
    "noise keyed by batch row": lambda place: place._replace(position=place.position + place.row),
    "noise keyed by step": lambda place: place._replace(position=len(PROMPT) + place.step),
    "one noise for two positions": lambda place: place._replace(position=place.position // 2 * 2),
}


@pytest.mark.parametrize(
    "name", ["noise keyed by node", "noise keyed by batch row", "noise keyed by step"]
)
def test_noise_that_is_not_keyed_by_position_changes_the_stream(name):
    assert not stream_is_plain(MISTAKES[name], row=1)


def test_a_redraw_after_a_miss_changes_the_stream():
    assert not stream_is_plain(redraw_misses=True)


@pytest.mark.parametrize("name", ["noise keyed by step", "one noise for two positions"])
def test_noise_used_twice_changes_the_distribution(name):
    assert least_p_value(sampled_streams(MISTAKES[name])) < 1e-6


def test_a_redraw_after_a_miss_changes_the_distribution():
    assert least_p_value(sampled_streams(redraw_misses=True)) < 1e-6
