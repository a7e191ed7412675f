"""A small made-up language to tune drafts on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from actors.ssm.boost_tuning.records import Record
from actors.ssm.model import LLMMatrices

VOCAB, HIDDEN, BEST = 60, 24, 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def matrices() -> LLMMatrices:
    torch.manual_seed(5)
    table = torch.randn(VOCAB, HIDDEN)
    return LLMMatrices(table, table)


@pytest.fixture
def records() -> list[Record]:
    """Each word is followed by the third one after it, with fair certainty."""
    rng = np.random.default_rng(3)
    made: list[Record] = []
    for number in range(40):
        prompt_len, length = int(rng.integers(1, 5)), int(rng.integers(8, 20))
        tokens = ((rng.integers(VOCAB) + 3 * np.arange(length)) % VOCAB).astype(np.int32)
        answer = tokens[prompt_len:]
        top_ids = (answer[:, None] + np.arange(BEST)) % VOCAB
        logprobs = np.log(np.tile([0.7, 0.1, 0.1, 0.05], (len(answer), 1)))
        made.append(
            Record(
                f"source {number % 2}",
                tokens,
                prompt_len,
                top_ids.astype(np.int32),
                logprobs.astype(np.float16),
            )
        )
    return made
