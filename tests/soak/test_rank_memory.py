"""No rank of a split LLM ever holds more than its share and one layer; the model is over 1 GB."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from actors.llm.config import LLMConfig
from actors.llm.rank import RankOptions
from actors.messages import LLMDescription
from tests.integration.split_ranks import SplitRanks, client_of

FLOAT_BYTES = 4
TOLERANCE = 1.3
SIZES = {"hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 12}
SMALL = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3}


def save_model(folder: Path, **sizes: int) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=16384, num_attention_heads=12, num_key_value_heads=3, **sizes
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A model of over 1 GB, and one of nearly nothing."""
    base = tmp_path_factory.mktemp("models")
    yield save_model(base / "large", **SIZES), save_model(base / "small", **SMALL)
    shutil.rmtree(base)


async def loaded(folder: Path, shards: int, stages: int) -> list[LLMDescription]:
    """What each rank says when it is up."""
    options = RankOptions(
        folder,
        folder.name,
        "float32",
        kv_block_tokens=4,
        kv_memory_bytes=1 << 24,
        llm=LLMConfig(num_threads=1),
    )
    async with client_of(SplitRanks(options, shards, stages)) as client:
        await client.describe()
        return list(client.descriptions)


@pytest.mark.parametrize(("shards", "stages"), [(1, 3), (3, 1), (3, 2)])
async def test_a_rank_holds_its_share_and_a_layer(
    folders: tuple[Path, Path], shards: int, stages: int
) -> None:
    large, small = folders
    assert sum(file.stat().st_size for file in large.glob("*.safetensors")) > 1e9
    hidden, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    layer_bytes = (hidden * hidden * 5 // 2 + 3 * hidden * inner) * FLOAT_BYTES
    # What a process takes before there is anything to hold.
    bases = await loaded(small, shards, stages)
    for number, (rank, base) in enumerate(
        zip(await loaded(large, shards, stages), bases, strict=True)
    ):
        share_bytes = rank.num_held_parameters * FLOAT_BYTES
        taken_bytes = rank.peak_memory_bytes - base.peak_memory_bytes
        print(
            f"\n{shards}x{stages} rank {number}: share {share_bytes >> 20} MiB, layer "
            f"{layer_bytes >> 20} MiB, base {base.peak_memory_bytes >> 20} MiB, "
            f"above it at most {taken_bytes >> 20} MiB, loaded in {rank.load_s:.1f} s"
        )
        assert rank.num_held_parameters < 1.2 * rank.num_parameters / (shards * stages)
        assert taken_bytes <= TOLERANCE * (share_bytes + layer_bytes)
