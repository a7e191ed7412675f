"""From logits to the LLM's own next token at every output node.

The logit steps, per node and from the node's own path: bias → penalties → `min_tokens` ban →
grammar → temperature → top-k → top-p → min-p. Then the draw by the Gumbel-max rule with the shared
noise: argmax over the kept tokens of l + T * G(seed, position), ties to the lowest id. Greedy
requests take the plain argmax. Where a request's verification rule has drafts tried first, see
`ruled_draws`. Log-probabilities are of the raw logits.

Every node is worked on by itself, in arrays of one fixed shape, so its result does not depend on
what else is in the step. No step sorts the vocabulary unless a nucleus really spans it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from actors.decoder.native.draws import Perturbation, draw_rows
from actors.llm.constraints import NodeMasks
from actors.llm.ruled_draws import PLANNERS, ruled_draw
from actors.llm.rules.plan import Below
from actors.llm.texts import Text
from actors.logit_steps import Logits, Mask, adjusted, kept_ids, top_k_ids
from actors.messages import NewRequest, Row, RowResult, TopLogprobs
from actors.noise import NoiseSource


@dataclass(frozen=True)
class Node:
    """One output node.

    Attributes:
        new: the request it belongs to.
        row: the row it stands in.
        place: its index in the row's tree.
        scored_id: whose log-probability is wanted; None for that of the drawn token.
        text: of the request, if its draws depend on it.
        mask: what its grammar allows; None also where the grammar has no say or has failed.
    """

    new: NewRequest
    row: Row
    place: int
    scored_id: int | None = None
    text: Text | None = None
    mask: Mask | None = None

    @property
    def has_failed(self) -> bool:
        """True if it has a grammar that could not tell what it allows here."""
        return bool(self.new.grammar) and self.draws and self.mask is None

    @property
    def position(self) -> int:
        """0-based index, in prompt + output, of the token being drawn."""
        return self.row.start + self.row.tree.depths[self.place] + 1

    @property
    def draws(self) -> bool:
        """False inside the prompt, where only log-probabilities can be wanted."""
        return self.position >= self.new.prompt_len

    @property
    def is_ruled(self) -> bool:
        """True if drafts below it may be tried before its token is drawn."""
        rule, is_greedy = self.new.verification, self.new.sampling.is_greedy
        return rule in PLANNERS and not is_greedy and self.draws and not self.has_failed

    @property
    def below(self) -> Below:
        """What was proposed below it."""
        tree = self.row.tree
        return Below(
            [
                token
                for token, parent in zip(tree.token_ids, tree.parents, strict=True)
                if parent == self.place
            ],
            [one.draws for one in self.row.draws if one.node == self.place],
        )

    @property
    def banned(self) -> tuple[int, ...]:
        """Token ids that cannot be drawn here yet."""
        early = self.position - self.new.prompt_len < self.new.sampling.min_tokens
        return self.new.banned_early if early else ()

    def adjusted(self, logits: Logits) -> Logits:
        """The node's logits after every step before the temperature; see `logit_steps`."""
        sampling = self.new.sampling
        if self.text is None or not sampling.penalizes:
            return adjusted(logits, sampling, None, self.banned, self.mask)
        path = self.row.tree.path_tokens(self.place)
        with self.text.before(self.row.start, path) as occurrences:
            return adjusted(logits, sampling, occurrences, self.banned, self.mask)


@dataclass(frozen=True)
class Context:
    """What the draws of one row may depend on beside its logits.

    Attributes:
        new: the row's request.
        text: its text, if draws depend on it.
        masks: what its grammar allows, by node.
    """

    new: NewRequest
    text: Text | None = None
    masks: NodeMasks = field(default_factory=dict)


def output_nodes(row: Row, context: Context) -> list[Node]:
    """The output nodes of a row, in order."""
    places = range(row.first_output, len(row.tree))
    return [
        Node(context.new, row, place, scored, context.text, context.masks.get(place))
        for place, scored in zip_longest(places, row.scored_ids)
    ]


class Sampler:
    """Draws tokens; keeps the noise of recent positions.

    Args:
        noise: of the LLM's vocabulary.
    """

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise

    def sample(
        self, rows: Sequence[Row], contexts: Sequence[Context], logits: Tensor
    ) -> list[RowResult]:
        """Results of all rows that have outputs, in row order.

        Args:
            contexts: each row's.
            logits: [outputs, vocab] of all rows' output nodes; not changed.
        """
        nodes = [
            node
            for row, context in zip(rows, contexts, strict=True)
            for node in output_nodes(row, context)
        ]
        if logits.device.type != "cpu" and not any(map(_needs_logits, nodes)):
            return list(_results(rows, nodes, torch.argmax(logits, -1).tolist(), None))
        host = np.ascontiguousarray(logits.cpu().numpy())
        adjusted_logits = [_adjusted(node, host[index]) for index, node in enumerate(nodes)]
        drawn = self._draw(nodes, adjusted_logits)
        return list(_results(rows, nodes, drawn, host))

    def _draw(self, nodes: Sequence[Node], logits: Sequence[Logits]) -> list[int]:
        """Every node's token: by its request's rule where drafts have a say, else plainly."""
        drawn = {
            index: token
            for index, node in enumerate(nodes)
            if node.is_ruled and (token := self._ruled(node, logits[index])) is not None
        }
        plain = [index for index in range(len(nodes)) if index not in drawn]
        tokens = draw_rows(
            [logits[index] for index in plain],
            [self._perturbation(nodes[index]) for index in plain],
        )
        drawn.update(zip(plain, tokens, strict=True))
        return [drawn[index] for index in range(len(nodes))]

    def _ruled(self, node: Node, logits: Logits) -> int | None:
        new = node.new
        return ruled_draw(
            new.verification, node.below, logits, new.sampling, node.position, self._noise
        )

    def _perturbation(self, node: Node) -> Perturbation | None:
        sampling = node.new.sampling
        if sampling.is_greedy or not node.draws:
            return None
        return Perturbation(self._noise.get(sampling.seed, node.position), sampling.temperature)


def _adjusted(node: Node, logits: Logits) -> Logits:
    """[vocab] what the node's token is drawn from; what the steps cut off is -inf."""
    if not node.draws:
        return logits
    logits, sampling = node.adjusted(logits), node.new.sampling
    if sampling.is_greedy or not sampling.truncates:
        return logits
    kept = kept_ids(logits, sampling)
    left = np.full_like(logits, -np.inf)
    left[kept] = logits[kept]
    return left


def _needs_logits(node: Node) -> bool:
    """False if the best of the raw logits is all that is asked for."""
    sampling = node.new.sampling
    adjusts = sampling.logit_bias or sampling.penalizes or node.banned or node.mask is not None
    return bool(adjusts or not sampling.is_greedy or node.new.num_logprobs is not None)


def _results(
    rows: Sequence[Row], nodes: Sequence[Node], drawn: Sequence[int], host: Logits | None
) -> Iterator[RowResult]:
    first = 0
    for row in rows:
        span = range(first, first + row.num_outputs)
        first += row.num_outputs
        if not span:
            continue
        logprobs: list[float] = []
        top: list[TopLogprobs] = []
        wanted = nodes[span[0]].new.num_logprobs
        if wanted is not None and host is not None:
            for index in span:
                scored = nodes[index].scored_id
                token = drawn[index] if scored is None else scored
                logprob, best = _logprobs(host[index], token, wanted)
                logprobs.append(logprob)
                top.append(best)
        yield RowResult(
            row.request_id,
            tuple(drawn[index] for index in span),
            tuple(logprobs),
            tuple(top),
            tuple(number for number, index in enumerate(span) if nodes[index].has_failed),
        )


def _logprobs(logits: Logits, token: int, count: int) -> tuple[float, TopLogprobs]:
    """The log-probability of `token`, and the `count` most probable tokens, best first."""
    exact = logits.astype(np.float64)
    best = exact.max()
    total = best + np.log(np.exp(exact - best).sum())
    ids = top_k_ids(logits, count) if count else np.empty(0, dtype=np.int64)
    ids = ids[np.argsort(-exact[ids], kind="stable")][:count]
    values = exact[ids] - total
    top = TopLogprobs(tuple(ids.tolist()), tuple(values.tolist()))
    return float(exact[token] - total), top
