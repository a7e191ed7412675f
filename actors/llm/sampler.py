"""From logits to the LLM's own next token at every output node.

The logit steps, per node: `min_tokens` ban → temperature → top-k → top-p → min-p. Then the draw by
the Gumbel-max rule with the shared noise: argmax over the kept tokens of l + T * G(seed, position),
ties to the lowest id. Greedy requests take the plain argmax. Log-probabilities are of the raw
logits.

Every node is worked on by itself, in arrays of one fixed shape, so its result does not depend on
what else is in the step. No step sorts the vocabulary unless a nucleus really spans it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from actors.logit_steps import Logits, kept_ids, top_k_ids
from actors.messages import NewRequest, Row, RowResult, TopLogprobs
from actors.noise import NoiseSource


@dataclass(frozen=True)
class Node:
    """One output node.

    Attributes:
        new: the request it belongs to.
        position: 0-based index, in prompt + output, of the token being drawn.
        scored_id: whose log-probability is wanted; None for that of the drawn token.
    """

    new: NewRequest
    position: int
    scored_id: int | None = None

    @property
    def banned(self) -> tuple[int, ...]:
        """Token ids that cannot be drawn here yet."""
        early = self.position - self.new.prompt_len < self.new.sampling.min_tokens
        return self.new.banned_early if early else ()


def output_nodes(row: Row, new: NewRequest) -> list[Node]:
    """The output nodes of a row, in order."""
    depths = row.tree.depths[row.first_output :]
    return [
        Node(new, row.start + depth + 1, scored)
        for depth, scored in zip_longest(depths, row.scored_ids)
    ]


class Sampler:
    """Draws tokens; keeps the noise of recent positions.

    Args:
        noise: of the LLM's vocabulary.
    """

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise

    def sample(
        self, rows: Sequence[Row], news: Sequence[NewRequest], logits: Tensor
    ) -> list[RowResult]:
        """Results of all rows that have outputs, in row order.

        Args:
            news: each row's request.
            logits: [outputs, vocab] of all rows' output nodes; not changed.
        """
        nodes = [
            node for row, new in zip(rows, news, strict=True) for node in output_nodes(row, new)
        ]
        host = logits.numpy() if logits.device.type == "cpu" else None
        # numpy's argmax is several times as fast as torch's on CPUs; both take the first of equals.
        best = (torch.argmax(logits, -1) if host is None else host.argmax(-1)).tolist()
        if host is None and any(map(_needs_logits, nodes)):
            host = logits.cpu().numpy()
        drawn = [
            best[index] if host is None else self._draw(node, host[index], best[index])
            for index, node in enumerate(nodes)
        ]
        return list(_results(rows, nodes, drawn, host))

    def _draw(self, node: Node, logits: Logits, best: int) -> int:
        sampling = node.new.sampling
        if node.banned:
            logits = logits.copy()
            logits[list(node.banned)] = -np.inf
            best = int(np.argmax(logits))
        if sampling.is_greedy:
            return best
        noise = self._noise.get(sampling.seed, node.position)
        temperature = np.float32(sampling.temperature)
        if not sampling.truncates:
            return int(np.argmax(logits + temperature * noise))
        kept = kept_ids(logits, sampling)
        return int(kept[np.argmax(logits[kept] + temperature * noise[kept])])


def _needs_logits(node: Node) -> bool:
    new = node.new
    return bool(not new.sampling.is_greedy or node.banned or new.num_logprobs is not None)


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
            row.request_id, tuple(drawn[index] for index in span), tuple(logprobs), tuple(top)
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
