"""Coupled decoding with a toy LLM: plain, and with token trees, by the rule under test.

The toy's next-token scores depend on the last two tokens. Where a draw takes its noise from can be
changed, to make the mistakes that the checks must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from actors.request_manager.verify import verify
from actors.tree import TokenTree


class Place(NamedTuple):
    """Where a draw happens. Only `position` may decide its noise.

    Attributes:
        position: index, in prompt + output, of the token being drawn.
        node: of the step tree.
        row: of the batch.
        step: how many steps the request has had.
        draw: 1 for a second draw at the same place.
    """

    position: int
    node: int = 0
    row: int = 0
    step: int = 0
    draw: int = 0


Noise = Callable[[Place], np.ndarray]
Draw = Callable[[tuple[int, ...], Place], int]
Drafter = Callable[[tuple[int, ...]], TokenTree]


class ToyModel:
    """Scores (log-probabilities) over a few words, given the last two tokens."""

    def __init__(self, vocab_size: int, seed: int, spread: float = 1.0) -> None:
        raw = np.random.default_rng(seed).normal(0.0, spread, (vocab_size,) * 3)
        self.scores = raw - np.log(np.exp(raw).sum(axis=-1, keepdims=True))

    def probabilities(self, context: tuple[int, ...]) -> np.ndarray:
        return np.exp(self.scores[context[-2:]])

    def draw_with(self, noise: Noise) -> Draw:
        """The Gumbel-max rule; `argmax` gives ties to the lowest id."""
        return lambda context, place: int(np.argmax(self.scores[context[-2:]] + noise(place)))


@cache
def step_tree(drafts: TokenTree, root: int) -> TokenTree:
    return drafts.rooted(root)


def plain_stream(draw: Draw, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """One token a step, no drafts, alone in the batch."""
    tokens = prompt
    for step in range(num_tokens):
        tokens += (draw(tokens, Place(len(tokens), step=step)),)
    return tokens[len(prompt) :]


def tree_stream(
    draw: Draw,
    drafter: Drafter,
    prompt: tuple[int, ...],
    num_tokens: int,
    row: int = 0,
    redraw_misses: bool = False,
) -> tuple[int, ...]:
    """The same with token trees, as one row of a batch.

    `redraw_misses` makes the mistake of drawing again where no child equals the draw.
    """
    tokens, step = prompt, 0
    while len(tokens) < len(prompt) + num_tokens:
        tree = step_tree(drafter(tokens), tokens[-1])
        inner = set(tree.parents)
        drawn_ids = []
        for node in range(len(tree)):
            context = tokens[:-1] + tree.path_tokens(node)
            place = Place(len(tokens) + tree.depths[node], node, row, step)
            token = draw(context, place)
            if redraw_misses and node in inner and tree.child(node, token) is None:
                token = draw(context, place._replace(draw=1))
            drawn_ids.append(token)
        tokens += verify(tree, drawn_ids).token_ids
        step += 1
    return tokens[len(prompt) :][:num_tokens]
