"""With weights in files, a model that is larger than the memory that a rank may have generates."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import shutil
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import transformers

from actors.llm.config import LLMConfig
from actors.llm.rank import RankOptions, load_rank
from tests.libaio import why_no_files
from tests.unit.llm.tiny_models import VOCAB_SIZE
from tests.unit.near_rank import PROMPTS, NearRank, answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

LIMIT_BYTES = 1_500_000_000
"""Of a process's data, its libraries' included."""

NUM_LAYERS = 32
NUM_TOKENS = 6
PATIENCE_S = 900.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A random model of 2 GB, in small files: one that is mapped counts as data as a whole."""
    path = tmp_path_factory.mktemp("model")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=256,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(path, max_shard_size="100MB")
    yield path
    shutil.rmtree(path)


def options(folder: Path, offload: str, files: Path | None) -> RankOptions:
    llm = LLMConfig(num_threads=2, offload=offload, offload_dir=files and str(files))
    return RankOptions(folder, "m", "float32", kv_block_tokens=4, kv_memory_bytes=1 << 25, llm=llm)


def answer_within_limit(parent: Connection, asked: RankOptions) -> None:
    """Send what a rank says that has so much memory; run in a process of its own."""
    from actors.llm.parallel.grid import Grid
    from actors.llm.parallel.rank_loading import load_rank_of_several
    from actors.meeting import Meeting

    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    if asked.llm.offload == "none":
        rank = load_rank(asked)
    else:
        rank = load_rank_of_several(asked, Grid(1, 1, 0), Meeting.open("127.0.0.1"))
    parent.send(asyncio.run(texts(rank)))


async def texts(rank) -> list[Sequence[int]]:
    async with engine_over(NearRank(rank), Watcher()) as engine:
        given = await answers(engine, [ask(prompt, NUM_TOKENS) for prompt in PROMPTS[:2]])
    return [answer.token_ids for answer in given]


def limited(asked: RankOptions) -> list[Sequence[int]] | None:
    """What a process with so much memory says; None if it dies of it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=answer_within_limit, args=(theirs, asked), daemon=True)
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(PATIENCE_S) else None
    except EOFError:
        return None
    finally:
        child.kill()
        child.join()


def test_what_does_not_fit_is_read_from_files(folder: Path, tmp_path: Path) -> None:
    if reason := why_no_files():
        pytest.skip(reason)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert size > 1.3 * LIMIT_BYTES
    assert limited(options(folder, "none", None)) is None
    given = limited(options(folder, "nvme", tmp_path))
    assert given == asyncio.run(texts(load_rank(options(folder, "none", None))))
