"""Tiny random models of many families, ranks around them, and what they should answer."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from actors.llm.loading import LanguageModel, LoadedModel, wrap
from actors.llm.rank import Rank
from actors.llm.stock import StockModel
from actors.messages import KVCommit, NewRequest, Row, StepMessage, StepReply
from actors.sampling import SamplingParams
from actors.tree import TokenTree

VOCAB_SIZE = 61
WINDOW = 5
_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_GATED = _COMMON | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES = {
    "llama": ("Llama", _GATED | {"mlp_bias": True, "attention_bias": True}),
    "llama-yarn": ("Llama", _GATED | {"rope_parameters": _YARN, "tie_word_embeddings": True}),
    "mistral": ("Mistral", _GATED | {"sliding_window": WINDOW}),
    "qwen2": (
        "Qwen2",
        _GATED | _MIXED | {"use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "qwen3": ("Qwen3", _GATED),
    "gemma2": (
        "Gemma2",
        _GATED | _MIXED | {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": ("Gemma3", _GATED | _MIXED | {"sliding_window": WINDOW}),
    "opt": ("OPT", _COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gpt_neox": ("GPTNeoX", _COMMON | {"intermediate_size": 48}),
    "mixtral": ("Mixtral", _GATED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2Moe",
        _GATED
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        _GATED
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [1],
        },
    ),
}
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
FUSED = ("llama", "llama-yarn", "mistral", "qwen2", "qwen3")


def tiny_model(family: str, dtype: torch.dtype = torch.float64) -> transformers.PreTrainedModel:
    """A random model; weights large enough that attention is far from uniform."""
    name, arguments = FAMILIES[family]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**arguments)
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(
        config, attn_implementation="textbook", experts_implementation="eager", dtype=dtype
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = functools.partial(exact_norm, module)
    return model.eval()


def exact_norm(module: nn.Module, hidden: Tensor) -> Tensor:
    """RMS norm in the model's own type; transformers' goes through float32 whatever that is."""
    return F.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)


def textbook_attention(
    module, query, key, value, attention_mask, scaling, softcap=None, **_
) -> tuple[Tensor, None]:
    """As transformers' own eager one, which takes its softmax in float32 whatever the model."""
    shared = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(shared, 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("textbook", textbook_attention)
AttentionMaskInterface.register("textbook", eager_mask)


class Recorder:
    """A model that remembers the logits of its last step."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.backend = model.backend
        self.vocab_size = model.vocab_size
        self.kv_shape = model.kv_shape
        self.logits = torch.empty(0)

    def forward(self, batch, cache) -> Tensor:
        self.logits = self._model.forward(batch, cache)
        return self.logits


class House:
    """A rank, and a manager's bookkeeping in small.

    Args:
        loaded: the model that the rank runs.
        reference: its untouched twin, for `expected`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        reference: nn.Module | None = None,
        num_blocks: int = 32,
        block_tokens: int = 4,
    ) -> None:
        self.reference = reference
        self.recorder = Recorder(loaded.model)
        self.loaded = dataclasses.replace(loaded, model=self.recorder)
        self.rank = Rank(self.loaded, "model", num_blocks, block_tokens)
        self.block_tokens = block_tokens
        self.free_blocks = list(range(num_blocks))
        random.Random(3).shuffle(self.free_blocks)
        self.tokens: dict[int, list[int]] = {}
        self.blocks: dict[int, list[int]] = {}
        self.next_step = 0
        self._new: list[NewRequest] = []
        self._commits: list[KVCommit] = []
        self._releases: list[int] = []

    def add(self, request_id: int, prompt_len: int = 1, **sampling: float) -> None:
        params = SamplingParams(**({"temperature": 0.0} | sampling))
        self._new.append(NewRequest(request_id, prompt_len, params))
        self.tokens[request_id], self.blocks[request_id] = [], []

    def row(self, request_id: int, tree: TokenTree, first_output: int = 0) -> Row:
        """The request's next row, with the blocks that it needs."""
        start = len(self.tokens[request_id])
        held = self.blocks[request_id]
        needed = -(-(start + len(tree)) // self.block_tokens) - len(held)
        new_blocks = tuple(self.free_blocks.pop() for _ in range(needed))
        held.extend(new_blocks)
        return Row(request_id, start, tree, new_blocks, first_output)

    def commit(self, row: Row, kept: Sequence[int]) -> None:
        self._commits.append(KVCommit(row.request_id, tuple(kept)))
        self.tokens[row.request_id] += [row.tree.token_ids[node] for node in kept]

    def release(self, request_id: int) -> None:
        self._releases.append(request_id)
        self.free_blocks += self.blocks.pop(request_id)
        del self.tokens[request_id]

    def message(self, *rows: Row) -> StepMessage:
        message = StepMessage(
            epoch=0,
            step_id=self.next_step,
            new=tuple(self._new),
            commits=tuple(self._commits),
            releases=tuple(self._releases),
            rows=rows,
        )
        self.next_step += 1
        self._new, self._commits, self._releases = [], [], []
        return message

    def step(self, *rows: Row) -> tuple[StepReply, Tensor]:
        """The reply, and the [outputs, vocab] logits behind it."""
        reply = self.rank.step(self.message(*rows))
        return reply, self.recorder.logits

    @torch.inference_mode()
    def expected(self, row: Row) -> Tensor:
        """[outputs, vocab]: each output node's path, run through the untouched model alone."""
        context = self.tokens[row.request_id][: row.start]
        paths = [
            context + list(row.tree.path_tokens(node))
            for node in range(row.first_output, len(row.tree))
        ]
        return torch.stack([self.reference(torch.tensor([path])).logits[0, -1] for path in paths])


def tiny_house(family: str, stock: bool = False, dtype: torch.dtype = torch.float64) -> House:
    """A house of a tiny model; `stock` runs it on stock modules although it could be fused."""
    reference = tiny_model(family, dtype)
    model = copy.deepcopy(reference)
    own = StockModel(model) if stock else wrap(model)
    return House(LoadedModel(own, dtype, torch.device("cpu"), 256, 0, ""), reference)


def random_tree(chance: random.Random, num_nodes: int, vocab_size: int = 5) -> TokenTree:
    """Few distinct tokens, so that the same one stands under several parents."""
    tokens, parents = [chance.randrange(vocab_size)], [-1]
    taken = {(-1, tokens[0])}
    while len(tokens) < num_nodes:
        entry = chance.randrange(len(tokens)), chance.randrange(vocab_size)
        if entry not in taken:
            taken.add(entry)
            parents.append(entry[0])
            tokens.append(entry[1])
    return TokenTree(tuple(tokens), tuple(parents))
