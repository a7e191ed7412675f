"""An LLM with int8 weights says the same with speculation on and off, in bfloat16 too: a real rank,
the real loop, fused and stock forward passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from actors.llm.config import LLMConfig
from actors.llm.rank import Rank, RankOptions, load_rank
from actors.request_manager.generation import SpeculationOptions
from actors.sampling import SamplingParams, derived_seed
from tests.unit.llm.invariant_rows import demand_invariant_rows
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model
from tests.unit.near_rank import PROMPTS, NearRank, answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

OFF = SpeculationOptions(enabled=False)
SAMPLINGS = {
    "greedy": [SamplingParams(temperature=0.0)],
    "seeded": [SamplingParams(temperature=0.3, seed=derived_seed(3, n)) for n in range(2)],
}
MODELS = {"native": "fused", "llama": "fused", "opt": "stock", "gpt_neox": "stock"}
INT8 = LLMConfig(quantization="int8", num_threads=1)
KV_BYTES = {"native": 40_960, "llama": 15_360, "opt": 61_440, "gpt_neox": 30_720}
"""Few blocks: requests are preempted."""


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model; `native` is one whose layers run in native code."""
    name: str = request.param
    path = tmp_path_factory.mktemp("models") / name
    if name == "native":
        config = transformers.LlamaConfig(
            vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            max_position_embeddings=256, eos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(2)
        model = transformers.LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    else:
        model = tiny_model(name, torch.float32)
    model.save_pretrained(path)
    return path


@pytest.fixture
def rank(folder: Path) -> Rank:
    memory = KV_BYTES[folder.name]
    options = RankOptions(
        folder, folder.name, "bfloat16", kv_block_tokens=4, kv_memory_bytes=memory, llm=INT8
    )
    return load_rank(options)


@pytest.mark.parametrize("samplings", SAMPLINGS.values(), ids=SAMPLINGS)
async def test_drafts_neighbours_and_preemption_change_nothing(folder, rank, samplings):
    described = rank.describe()
    assert (described.backend, described.quantization) == (MODELS[folder.name], "int8")
    demand_invariant_rows(rank._loaded)
    assert described.batch_invariant
    requests = [ask(prompt, 30, sampling=one) for prompt in PROMPTS for one in samplings]
    off = [replace(request, speculation=OFF) for request in requests]
    watcher = Watcher()
    async with engine_over(NearRank(rank), watcher, max_batch_tokens=16) as engine:
        together = await answers(engine, [*requests, *off])
        alone = [(await answers(engine, [request]))[0] for request in off]
    texts = [answer.token_ids for answer in alone]
    assert [answer.token_ids for answer in together] == [*texts, *texts]
    assert sum(answer.stats.num_accepted_draft_tokens for answer in together) > 5
    assert sum(step.preemptions for step in watcher.steps) > 0
    assert len(set(map(tuple, texts))) > 3
