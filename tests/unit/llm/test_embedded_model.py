"""The embedded model in float32: trees against paths, and greedy text, by stock transformers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tiny_models import House, random_tree
from transformers import AutoModelForCausalLM

from actors.llm.loading import load_model
from actors.tree import TokenTree

pytestmark = pytest.mark.model
PROMPT = [1, 504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 4062, 314]


@pytest.fixture(scope="module")
def house(smollm2_path: Path) -> House:
    reference = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()
    loaded = load_model(smollm2_path, torch.float32, torch.device("cpu"))
    return House(loaded, reference, block_tokens=16)


def test_tree_equals_its_paths(house):
    house.add(0)
    prompt = house.row(0, TokenTree.chain(PROMPT))
    house.step(prompt)
    house.commit(prompt, range(len(PROMPT)))
    row = house.row(0, random_tree(random.Random(2), 12, 49152))
    _, logits = house.step(row)
    torch.testing.assert_close(logits, house.expected(row), atol=5e-4, rtol=0)


def test_greedy_text_is_that_of_transformers(house):
    house.add(1, prompt_len=len(PROMPT))
    row = house.row(1, TokenTree.chain(PROMPT), first_output=len(PROMPT) - 1)
    text = []
    for _ in range(12):
        reply, _ = house.step(row)
        house.commit(row, range(len(row.tree)))
        text += reply.results[0].drawn_ids
        row = house.row(1, TokenTree.chain(text[-1:]))
    prompt = torch.tensor([PROMPT])
    expected = house.reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
    )
    assert text == expected[0, len(PROMPT) :].tolist()
