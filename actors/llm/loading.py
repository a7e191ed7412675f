"""A decoder from a local folder, ready to run steps, or a clear reason why not.

Weights come from safetensors files only, and no code comes from the folder. Llama-like models get
the fused forward, everything else runs on stock modules if its attention is standard. Refused, by
name and reason: encoder-decoders, recurrent state, quantised checkpoints, rope that changes with
the length of the text (cached keys would be stale), damaged or missing weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache, KVShape
from actors.errors import ModelError
from actors.llm.fused_llama import MODEL_TYPES as FUSED_TYPES
from actors.llm.fused_llama import Foreign, FusedLlama
from actors.llm.load_report import LoadReport, begin_report
from actors.llm.peers import Alone, Peers
from actors.llm.stock import StockModel
from actors.weight_files import hash_files, weight_files

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn", "proportional"})


class LanguageModel(Protocol):
    """The weights of a model and its forward pass.

    Attributes:
        backend: `fused` or `stock`.
        vocab_size: number of logits.
        kv_shape: of one token's KV.
    """

    backend: str
    vocab_size: int
    kv_shape: KVShape

    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the K and V of the batch's rows.

        Of the ranks of a split LLM only one has logits; the others give no rows.
        """


@dataclass(frozen=True)
class LoadedModel:
    """A model and what there is to say of it.

    Attributes:
        weights_hash: sha256 over the name and content of every weight file, sorted by name.
        peers: the other ranks of the LLM.
        report: what loading took.
        take_streamed_bytes: bytes of weights brought to the device since it was last called, by
            a model whose weights do not stay there.
        quantization: of the weights: `none` or `int8`.
    """

    model: LanguageModel
    dtype: torch.dtype
    device: torch.device
    max_context_tokens: int
    num_parameters: int
    weights_hash: str
    peers: Peers = field(default_factory=Alone)
    report: LoadReport = field(default_factory=LoadReport)
    take_streamed_bytes: Callable[[], int] = lambda: 0
    quantization: str = "none"


def load_model(path: Path, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """Load a folder in the layout of `save_pretrained`.

    Raises:
        ModelError: it cannot be served; names the folder and the reason.
    """
    end_report = begin_report()
    try:
        config = read_config(path)
        files = weight_files(path)
        model = _read_weights(path, config, dtype).to(device).eval()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        # The fused forward pass packs a head apart, also one that is the embedding's twin.
        held = model.named_parameters(remove_duplicate=not can_be_fused(config))
        num_bytes = sum(parameter.nbytes for _, parameter in held)
        return LoadedModel(
            wrap(model),
            dtype,
            device,
            max_context(config),
            num_parameters,
            hash_files(files),
            report=end_report(num_parameters, num_bytes),
        )
    except ModelError as error:
        raise ModelError(f"{path.name} cannot be served: {error}") from error


def wrap(model: Foreign) -> LanguageModel:
    """The fastest forward pass for a loaded transformers model. Raises ModelError."""
    return FusedLlama(model) if can_be_fused(model.config) else StockModel(model)


def can_be_fused(config: Foreign) -> bool:
    """True if the fused forward pass covers the model."""
    return bool(config.model_type in FUSED_TYPES and config.hidden_act == "silu")


def read_config(path: Path) -> Foreign:
    """The transformers configuration in a folder. Raises ModelError if it cannot be served."""
    if not (path / "config.json").is_file():
        raise ModelError("there is no config.json")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"its config.json cannot be used: {error}") from error
    _check_config(config)
    return config


def _check_config(config: Foreign) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError("it is an encoder-decoder")
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(f"{config.model_type} is no causal language model")
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError("its weights are quantised")
    odd = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if odd:
        raise ModelError(f"it has layers without standard attention: {', '.join(sorted(odd))}")
    for rope_type in _rope_types(config):
        if rope_type not in _FIXED_ROPE:
            raise ModelError(f"its {rope_type!r} rope changes with the length of the text")


def _rope_types(config: Foreign) -> set[str]:
    """Types of the rope parameters, which may be one set or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {entry.get("rope_type") or "default" for entry in nested or [parameters]}


def _read_weights(path: Path, config: Foreign, dtype: torch.dtype) -> Foreign:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation=experts_for(dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"its weights cannot be read: {error}") from error
    if getattr(model, "_is_stateful", False):
        raise ModelError("it keeps recurrent state, which a tree of tokens cannot share")
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            raise ModelError(f"{what.replace('_', ' ')}: {_first(report[what])}")
    return model


def experts_for(dtype: torch.dtype) -> str | None:
    """How transformers is to compute experts; None leaves it to choose.

    It would choose grouped products, which torch does not have in float64.
    """
    return "eager" if dtype == torch.float64 else None


def _first(keys: Sequence[Any]) -> str:
    names = sorted(map(str, keys))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def max_context(config: Foreign) -> int:
    """Tokens of the longest context. Raises ModelError if the configuration does not say."""
    length = getattr(config, "max_position_embeddings", None)
    if not length:
        raise ModelError("its config.json does not say how long a context may be")
    return int(length)
