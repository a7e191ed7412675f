"""An LLM whose weights are streamed says what it says with weights that stay."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from conftest import wait_until

from actors.llm.config import LLMConfig
from actors.llm.offload.async_io import load_async_io
from actors.llm.offload.swap_folder import PREFIX
from actors.llm.rank import Rank, RankOptions, load_rank
from actors.messages import StepReply
from actors.request_manager.engine import Engine
from actors.request_manager.generation import SpeculationOptions
from actors.sampling import SamplingParams
from tests.integration.split_ranks import SplitRanks, client_of
from tests.libaio import why_no_files
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model
from tests.unit.near_rank import PROMPTS, NearRank, answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

pytestmark = pytest.mark.integration

OFF = SpeculationOptions(enabled=False)
WAYS = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=3)]


def options(folder: Path, dtype: str, offload: str = "none", files: Path | None = None):
    llm = LLMConfig(num_threads=1, offload=offload, offload_dir=files and str(files))
    return RankOptions(folder, "m", dtype, kv_block_tokens=4, kv_memory_bytes=1 << 25, llm=llm)


async def texts(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Sequence[int]]:
    """Greedy and sampled, with speculation and without."""
    requests = [ask(prompt, num_tokens, sampling=way) for prompt in prompts for way in WAYS]
    requests += [replace(request, speculation=OFF) for request in requests]
    return [answer.token_ids for answer in await answers(engine, requests)]


async def texts_that_stay(
    rank: Rank, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Sequence[int]]:
    """With weights that stay."""
    async with engine_over(NearRank(rank), Watcher()) as engine:
        return await texts(engine, prompts, num_tokens)


@pytest.mark.parametrize(
    ("family", "stages", "dtype"),
    [
        ("opt", 1, "float32"),
        ("gemma3_text", 1, "float32"),
        ("qwen2", 2, "float32"),
        ("mixtral", 1, "float32"),
        ("qwen3_moe", 2, "bfloat16"),
        ("opt", 1, "bfloat16"),
    ],
)
async def test_streamed_models_of_every_kind_say_the_same(tmp_path, family, stages, dtype):
    tiny_model(family).save_pretrained(tmp_path)
    stays = load_rank(options(tmp_path, dtype))
    if dtype == "bfloat16" and not stays.describe().batch_invariant:
        pytest.skip("rows depend on each other here, streamed or not")
    wanted = await texts_that_stay(stays, PROMPTS, 12)
    streamed: Counter[int] = Counter()

    def count(rank: int, reply: StepReply) -> None:
        streamed[rank] += reply.streamed_bytes

    ranks = SplitRanks(options(tmp_path, dtype, "cpu"), 1, stages)
    async with (
        client_of(ranks, on_reply=count) as client,
        engine_over(client, Watcher(), num_groups=stages) as engine,
    ):
        assert await texts(engine, PROMPTS, 12) == wanted
    assert len(+streamed) == stages


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with matrices that are large enough for files (1 MB)."""
    path = tmp_path_factory.mktemp("model") / "wide"
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


async def test_weights_in_files_outlive_the_rank_that_reads_them_only_as_new_ones(wide, tmp_path):
    """The text goes on, and the files of the dead are removed."""
    if reason := why_no_files():
        pytest.skip(reason)
    load_async_io()  # compiled here, it takes as long as it takes
    wanted = await texts_that_stay(load_rank(options(wide, "float32")), PROMPTS, 24)
    ranks = SplitRanks(options(wide, "float32", "nvme", tmp_path), 1, 1)
    watcher = Watcher()
    folders: list[Path] = []

    def strike() -> None:
        if len(watcher.steps) == 12:
            folders.extend(tmp_path.glob(f"{PREFIX}*"))
            os.kill(ranks.processes[0].pid, signal.SIGKILL)

    watcher.after_step = strike
    async with client_of(ranks) as client, engine_over(client, watcher) as engine:
        assert await texts(engine, PROMPTS, 24) == wanted
        assert ranks.num_starts == 2
        (old,) = folders
        wait_until(lambda: not old.exists())
        stored = list(tmp_path.rglob("*.swp"))
        assert len(stored) == 3 * 5  # of each layer all but its keys and values
        assert sum(file.stat().st_size for file in stored) >= 3 * 4 * (2 * 512**2 + 3 * 512 * 1024)
    wait_until(lambda: not list(tmp_path.glob(f"{PREFIX}*")))
