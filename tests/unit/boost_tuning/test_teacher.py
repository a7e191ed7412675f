"""The LLM as a teacher, against itself in plain transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cluster.tune_teacher import NUM_BEST, Task, Teacher

EOS = 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama with random weights that bfloat16 holds exactly."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=80,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=96,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path)
    return tmp_path


def expected_logprobs(folder: Path, tokens: np.ndarray, prompt_len: int) -> torch.Tensor:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    return torch.log_softmax(logits[prompt_len - 1 : -1].float(), -1)


def test_answers_and_their_best_words(folder: Path) -> None:
    teacher = Teacher(folder, [EOS], 512)
    tasks = [Task("set", tuple(range(20, 20 + size))) for size in (3, 9, 5)]
    (batch,) = teacher.split(tasks, most=8, answer_tokens=12)
    for record in teacher.answer(batch, 12, seed=0):
        logprobs = expected_logprobs(folder, record.tokens, record.prompt_len)
        answer = record.tokens[record.prompt_len :]
        assert 1 <= record.answer_len <= 12
        assert record.answer_len == 12 or answer[-1] == EOS
        assert EOS not in answer[:-1]
        np.testing.assert_array_equal(answer, record.top_ids[:, 0])  # greedy
        assert record.top_ids.shape == (record.answer_len, NUM_BEST)
        own = logprobs.gather(1, torch.from_numpy(record.top_ids).long())
        assert (own - torch.from_numpy(record.top_logprobs).float()).abs().max() < 0.1


def test_a_given_answer_is_scored_as_its_generation_was(folder: Path) -> None:
    teacher = Teacher(folder, [EOS], 512)
    (made,) = teacher.answer([Task("set", (4, 5, 6), temperature=1.0)], 10, seed=3)
    given = tuple(made.tokens[3:].tolist())
    (scored,) = teacher.answer([Task("set", (4, 5, 6), answer=given)], 10, seed=0)
    np.testing.assert_array_equal(scored.tokens, made.tokens)
    difference = np.abs(scored.top_logprobs[:, :5] - made.top_logprobs[:, :5])
    assert difference.max() < 0.1


def test_draws_follow_the_seed(folder: Path) -> None:
    teacher = Teacher(folder, [EOS], 512)
    task = Task("set", (4, 5, 6), temperature=1.0)

    def draw(seed: int) -> list[int]:
        return teacher.answer([task], 20, seed)[0].tokens.tolist()

    assert draw(1) == draw(1)
    assert len({tuple(draw(seed)) for seed in range(4)}) > 1


def test_splits_by_size_and_kind_and_leaves_out_what_is_too_long(folder: Path) -> None:
    teacher = Teacher(folder, [EOS], 64)
    tasks = [Task("set", (1,) * size) for size in (3, 20, 40, 60, 10)]
    tasks.append(Task("set", (1, 2), answer=(3, 4)))
    batches = teacher.split(tasks, most=2, answer_tokens=10)
    sizes = sorted(sorted(len(task.prompt) for task in batch) for batch in batches)
    assert sizes == [[2], [3, 10], [20], [40]]
    assert batches == teacher.split(tasks, most=2, answer_tokens=10)
