"""How an LLM's tokens are distributed under a verification rule, by exact enumeration.

Everything that chance decides is summed over: what the draft models draw, the coins, the rest. A
way to draw and a planner make a case, so that each known mistake is a case too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from actors.llm.rules.plan import Below, Plan
from actors.request_manager.verify import verify
from actors.tree import TokenTree
from actors.verification import Draws

Planner = Callable[[np.ndarray, Below], Plan]
Drawn = Iterator[tuple[tuple[int, ...], float]]
Draw = Callable[[np.ndarray, int], Drawn]
"""From a draft distribution and a number of drafts to everything that may be drawn, with its
probability."""


def without_replacement(q: np.ndarray, count: int) -> Drawn:
    if count == 0:
        yield (), 1.0
        return
    for token in np.flatnonzero(q):
        left = q.copy()
        left[token] = 0.0
        if count == 1 or not left.any():
            yield (int(token),), q[token]
            continue
        for tokens, probability in without_replacement(left / left.sum(), count - 1):
            yield (int(token), *tokens), q[token] * probability


def with_replacement(q: np.ndarray, count: int) -> Drawn:
    for tokens in product(np.flatnonzero(q).tolist(), repeat=count):
        yield tokens, float(np.prod(q[list(tokens)]))


def best(q: np.ndarray, count: int) -> Drawn:
    """No draw at all: the most probable tokens."""
    yield tuple(np.argsort(-q, kind="stable")[:count].tolist()), 1.0


def draws_of(q: np.ndarray, tokens: Sequence[int]) -> Draws:
    support = np.flatnonzero(q)
    return Draws(tuple(tokens), tuple(support.tolist()), tuple(q[support].tolist()))


def outcome(plan: Plan) -> np.ndarray:
    """[vocab] the distribution of the LLM's token, over coins and the draw from the rest."""
    output, reached = np.zeros(len(plan.rest)), 1.0
    for token, acceptance in plan.tries:
        output[token] += reached * acceptance
        reached *= 1.0 - acceptance
    return output + reached * plan.rest


def acceptance(plan: Plan) -> float:
    """The probability that some draft is accepted."""
    return 1.0 - float(np.prod([1.0 - one.acceptance for one in plan.tries]))


def all_draws(
    drafters: Sequence[tuple[np.ndarray, int]], draw: Draw
) -> Iterator[tuple[tuple[Draws, ...], float]]:
    """Everything that draft models may draw below one node, side by side."""
    laws = [[(draws_of(q, tokens), chance) for tokens, chance in draw(q, k)] for q, k in drafters]
    for combination in product(*laws):
        chance = float(np.prod([one for _, one in combination]))
        yield tuple(drawn for drawn, _ in combination if drawn.token_ids), chance


def one_token(
    target: np.ndarray, drafters: Sequence[tuple[np.ndarray, int]], draw: Draw, planner: Planner
) -> np.ndarray:
    """[vocab] the distribution of one token."""
    output = np.zeros(len(target))
    for draws, chance in all_draws(drafters, draw):
        output += chance * outcome(planner(target, below(draws)))
    return output


def mean_acceptance(
    target: np.ndarray, drafters: Sequence[tuple[np.ndarray, int]], draw: Draw, planner: Planner
) -> float:
    return sum(
        chance * acceptance(planner(target, below(draws)))
        for draws, chance in all_draws(drafters, draw)
    )


def below(draws: Sequence[Draws]) -> Below:
    children = dict.fromkeys(token for drawn in draws for token in drawn.token_ids)
    return Below(tuple(children), draws)


Prune = Callable[[int, Sequence[Draws], Sequence[Draws]], bool]
"""Whether a child stays in the tree: its token, what was drawn beside it and below it."""


def two_tokens(
    targets: np.ndarray,
    drafts: np.ndarray,
    count: int,
    draw: Draw,
    planner: Planner,
    keep: Prune = lambda token, beside, beneath: True,
) -> np.ndarray:
    """[vocab, vocab] the distribution of two consecutive tokens: a tree of two levels, walked by
    the manager; where a step ends after one token, the next step's is the LLM's.

    Args:
        targets, drafts: [vocab + 1, vocab] after each token, and at the root last.
    """
    size = len(targets) - 1
    output = np.zeros((size, size))
    for root_draws, root_chance in all_draws([(drafts[-1], count)], draw):
        children = below(root_draws).children
        laws = [list(all_draws([(drafts[child], count)], draw)) for child in children]
        for combination in product(*laws):
            chance = root_chance * float(np.prod([one for _, one in combination]))
            draws = [one for one, _ in combination]
            kept = [
                place
                for place, child in enumerate(children)
                if keep(child, root_draws, draws[place])
            ]
            nodes = [outcome(planner(targets[-1], Below(children, root_draws)))]
            nodes += [outcome(planner(targets[children[at]], below(draws[at]))) for at in kept]
            tree = TokenTree.from_paths([[children[at]] for at in kept]).rooted(0)
            output += chance * _walked(tree, nodes, targets)
    return output


def _walked(tree: TokenTree, nodes: Sequence[np.ndarray], targets: np.ndarray) -> np.ndarray:
    size = len(targets) - 1
    output = np.zeros((size, size))
    for drawn in product(range(size), repeat=len(nodes)):
        chance = float(np.prod([node[token] for node, token in zip(nodes, drawn, strict=True)]))
        tokens = verify(tree, drawn).token_ids
        if len(tokens) == 1:
            output[tokens[0]] += chance * targets[tokens[0]]
        else:
            output[tokens] += chance
    return output


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).sum() / 2)


def random_distribution(random: np.random.Generator, size: int) -> np.ndarray:
    """Over `size` words: any sharpness, and now and then words that cannot be drawn."""
    weights = random.dirichlet(np.full(size, random.choice([0.2, 1.0, 5.0])))
    if random.random() < 0.4:
        weights[random.choice(size, size // 2, replace=False)] = 0.0
    return weights / weights.sum() if weights.sum() > 0.0 else np.full(size, 1.0 / size)
