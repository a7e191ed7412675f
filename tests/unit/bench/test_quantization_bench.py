"""int8 beside the weights as they are stored: what the bench makes of models and answers."""

from __future__ import annotations

import math

import pytest
import torch

from actors.llm.config import LLMConfig
from actors.llm.rank import RankOptions, load_whole
from cluster.bench.modes import PLAIN, ModeResult
from cluster.bench.quantization import (
    KINDS,
    SPECULATION,
    Text,
    compare,
    equal_texts,
    time_steps,
    with_quantization,
)
from cluster.bench.scoring import score
from cluster.config import parse_config
from tests.unit.bench.test_offload_bench import result
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model

IDS = [place * place % VOCAB_SIZE for place in range(40)]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", torch.float32)


@pytest.fixture(scope="module")
def models(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(path)
    return {
        kind: load_whole(RankOptions(path, "tiny", "float32", llm=LLMConfig(quantization=kind)))
        for kind in KINDS
    }


@torch.inference_mode()
def test_a_score_is_that_of_transformers(model, models):
    logits = model(torch.tensor([IDS])).logits[0, 9:-1]
    found = score(models["none"], IDS, 10)
    expected = logits.log_softmax(-1)[range(30), IDS[10:]]
    assert list(found.logprobs) == pytest.approx(expected.tolist(), abs=1e-4)
    assert list(found.best) == logits.argmax(-1).tolist()
    assert found.perplexity == pytest.approx(math.exp(-expected.mean()), rel=1e-4)


def test_kinds_are_compared_place_by_place(models):
    texts = [Text(IDS, 10), Text(IDS[:5], 1)]
    same = compare({"none": models["none"], "int8": models["none"]}, texts)
    assert (same["equal_best"], same["places"]) == (1.0, 34)
    assert same["perplexity_none"] == same["perplexity_int8"]
    found = compare(models, texts)
    assert 0.5 < found["equal_best"] <= 1.0
    assert found["perplexity_none"] != found["perplexity_int8"]


def test_steps_of_both_are_timed(models):
    found = time_steps(models, 40, 1)
    assert set(found) == set(KINDS)
    assert found["int8"]["weight_mb"] < found["none"]["weight_mb"]
    assert all(row["step_16_ms"] > 0 for row in found.values())


def test_texts_that_speculation_changes_are_told():
    def modes(tokens) -> dict[str, ModeResult]:
        return {PLAIN: result(1, 1, 1), SPECULATION: result(1, 1, 1, tokens=tokens)}

    assert equal_texts(modes((1, 2, 3, 4, 5))) == 1
    assert equal_texts(modes((1, 2, 3, 4, 6))) == 0


def test_nothing_is_streamed():
    config = parse_config("llm: {offload: nvme, offload_dir: /somewhere}")
    changed = with_quantization(config, "int8").llm
    assert (changed.quantization, changed.offload) == ("int8", "none")
