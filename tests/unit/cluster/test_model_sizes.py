"""Splits that a model's sizes do not allow are told of before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.errors import ConfigError
from cluster.config import Config, parse_config
from cluster.model_sizes import EXPERT_COUNTS, ModelSizes, check_split, read_sizes


def split(shards: int, stages: int) -> Config:
    llm = {"tensor_parallel": shards, "pipeline_parallel": stages}
    return parse_config(json.dumps({"llm": llm}))


def test_the_embedded_model_has_three_key_heads_and_thirty_layers(smollm2_path: Path) -> None:
    check_split(split(3, 30), smollm2_path)
    with pytest.raises(ConfigError) as raised:
        check_split(split(7, 31), smollm2_path)
    assert raised.value.problems == (
        "llm.tensor_parallel: 3 key heads cannot be split over 7 ranks",
        "llm.pipeline_parallel: 30 layers cannot be split into 31 stages",
    )


def test_a_model_that_does_not_say_is_left_to_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"n_layer": 3}')
    check_split(split(7, 31), tmp_path)


@pytest.mark.parametrize("within", [True, False], ids=["text_config", "plain"])
@pytest.mark.parametrize("name", [None, *EXPERT_COUNTS])
def test_experts_are_counted_under_each_name(
    tmp_path: Path, name: str | None, within: bool
) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    if name is not None:
        sizes[name] = 6
    content = {"text_config": sizes} if within else sizes
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_sizes(tmp_path) == ModelSizes(2, 4, 8, 0 if name is None else 6)
