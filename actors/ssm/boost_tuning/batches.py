"""Which records make up which training step: a pure function of the seed and the step.

So training that goes on after a kill sees what it would have seen. Each pass over the records is
a new permutation, cut into steps of about the same number of answer tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from actors.ssm.boost_tuning.loss import Targets
from actors.ssm.boost_tuning.records import Record

MAX_PADDED_TOKENS = 4096


class BatchOrder:
    """Steps over a fixed list of records.

    Args:
        records: at least one.
        step_tokens: answer tokens that a step has at least, but at the end of a pass.
        seed: of the permutations.
    """

    def __init__(self, records: Sequence[Record], step_tokens: int, seed: int) -> None:
        self._records = records
        self._step_tokens = step_tokens
        self._seed = seed
        self._pass = -1
        self._first_step = 0
        self._steps: list[list[Record]] = []

    def at(self, step: int) -> list[Record]:
        """The records of a step; steps are asked for in ascending order."""
        while self._pass < 0 or step >= self._first_step + len(self._steps):
            self._first_step += len(self._steps)
            self._pass += 1
            self._steps = self._cut(self._pass)
        return self._steps[step - self._first_step]

    def _cut(self, pass_number: int) -> list[list[Record]]:
        rng = np.random.default_rng((self._seed, pass_number))
        steps: list[list[Record]] = [[]]
        tokens = 0
        for index in rng.permutation(len(self._records)):
            if tokens >= self._step_tokens:
                steps.append([])
                tokens = 0
            steps[-1].append(self._records[index])
            tokens += self._records[index].answer_len
        return steps


def padded_groups(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Records of similar length together, each group within the bound on padded tokens."""
    group: list[Record] = []
    for record in sorted(records, key=lambda record: len(record.tokens)):
        if group and len(record.tokens) * (len(group) + 1) > MAX_PADDED_TOKENS:
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def pad(records: Sequence[Record]) -> tuple[Tensor, Tensor]:
    """Token ids [records, length], zero-padded, and the places whose next token is an answer's.

    The places are indices into the flattened [records * length], record by record.
    """
    length = max(len(record.tokens) for record in records)
    token_ids = np.zeros((len(records), length), dtype=np.int64)
    places: list[np.ndarray] = []
    for row, record in enumerate(records):
        token_ids[row, : len(record.tokens)] = record.tokens
        places.append(row * length + np.arange(record.prompt_len - 1, len(record.tokens) - 1))
    return torch.from_numpy(token_ids), torch.from_numpy(np.concatenate(places))


def targets_of(records: Sequence[Record], cut_index: Tensor, hard_share: float) -> Targets:
    """Soft targets at the places that `pad` names, in the same order, beside `cut_index`."""
    ids, logprobs, weights = (
        torch.from_numpy(np.concatenate(arrays)).to(cut_index.device)
        for arrays in zip(
            *((record.top_ids, record.top_logprobs, record.place_weights) for record in records),
            strict=True,
        )
    )
    return Targets(ids, logprobs, weights, cut_index, hard_share)
