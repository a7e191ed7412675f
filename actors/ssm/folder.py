"""A draft model on disk: `config.json`, `model.safetensors` and a card, `README.md`.

The folder holds the model's own weights and its cut; embedding and head come from the LLM's folder
when it is loaded. It names the LLM that it was tuned for, and with another one it is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from actors.errors import ModelError
from actors.ssm.model import HEAD_DIM, DraftModel, DraftShape, LLMMatrices
from actors.weight_files import hash_files, weight_files

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
INPUT_NAME = "model.embed_tokens.weight"
OUTPUT_NAME = "lm_head.weight"

_Size = Annotated[int, Field(ge=1, le=1 << 20)]


class LLMIdentity(BaseModel):
    """Which LLM a draft model belongs to.

    Attributes:
        weights_hash: of its weight files, as `LLMDescription.weights_hash`.
        tokenizer_hash: of what its token ids mean.
        vocab_size: rows of its embedding.
        hidden_size: columns of its embedding.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    weights_hash: Annotated[str, Field(min_length=1)]
    tokenizer_hash: Annotated[str, Field(min_length=1)]
    vocab_size: _Size
    hidden_size: _Size


class DraftConfig(BaseModel):
    """The content of `config.json`.

    Attributes:
        weights_version: counts up each time that the weights are tuned anew.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["treeserve-ssm"] = "treeserve-ssm"
    width: Annotated[int, Field(ge=HEAD_DIM, le=1 << 14, multiple_of=HEAD_DIM)]
    num_layers: Annotated[int, Field(ge=1, le=64)]
    ff_width: _Size
    window: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    cut_size: _Size
    weights_version: Annotated[int, Field(ge=0)] = 0
    llm: LLMIdentity

    @property
    def shape(self) -> DraftShape:
        return DraftShape(self.width, self.num_layers, self.ff_width, self.window)


def identify_llm(llm_folder: Path) -> LLMIdentity:
    """Which LLM a folder holds. Reads all of its weight files once. Raises ModelError."""
    matrix = _read_tensor(llm_folder, INPUT_NAME)
    return LLMIdentity(
        weights_hash=hash_files(weight_files(llm_folder)),
        tokenizer_hash=_tokenizer_hash(llm_folder),
        vocab_size=matrix.shape[0],
        hidden_size=matrix.shape[1],
    )


def load_matrices(llm_folder: Path) -> LLMMatrices:
    """The LLM's embedding and head. Raises ModelError if the folder has none that we know."""
    inputs = _read_tensor(llm_folder, INPUT_NAME).float()
    if _file_of(llm_folder, OUTPUT_NAME) is None:
        return LLMMatrices(inputs, inputs)  # tied
    return LLMMatrices(inputs, _read_tensor(llm_folder, OUTPUT_NAME).float())


def save_draft(
    folder: Path,
    model: DraftModel,
    llm: LLMIdentity,
    weights_version: int,
    card: str,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a draft model; the folder is made if there is none.

    Args:
        card: text of the model card.
        dtype: of the weights on disk.
    """
    config = DraftConfig(
        **asdict(model.shape),
        cut_size=len(model.cut_ids),
        weights_version=weights_version,
        llm=llm,
    )
    weights = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in model.state_dict().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)
    text = json.dumps(config.model_dump(), indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def load_draft(folder: Path, llm_folder: Path) -> tuple[DraftModel, DraftConfig]:
    """A draft model in float32, for the LLM in `llm_folder`.

    Raises:
        ModelError: the folder is damaged, or belongs to another LLM; says which and why.
    """
    try:
        config = read_config(folder)
        check_llm(config.llm, identify_llm(llm_folder))
        return _load_weights(folder, config, load_matrices(llm_folder)), config
    except ModelError as error:
        raise ModelError(f"draft model {folder.name} cannot be used: {error}") from error


def read_config(folder: Path) -> DraftConfig:
    """The folder's configuration. Raises ModelError."""
    try:
        return DraftConfig.model_validate_json((folder / CONFIG_FILE).read_bytes())
    except OSError as error:
        raise ModelError(f"its {CONFIG_FILE} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or CONFIG_FILE
        raise ModelError(f"its {CONFIG_FILE} is wrong: {where}: {first['msg']}") from error


def check_llm(wanted: LLMIdentity, served: LLMIdentity) -> None:
    """Raises ModelError naming the first way in which the LLM is not the one wanted."""
    for name in ("vocab_size", "hidden_size", "tokenizer_hash", "weights_hash"):
        tuned, given = getattr(wanted, name), getattr(served, name)
        if tuned != given:
            raise ModelError(
                f"it was tuned for an LLM with {name} {_short(tuned)}, "
                f"the one served has {_short(given)}"
            )


def _short(value: int | str) -> str:
    return str(value)[:12]


def _load_weights(folder: Path, config: DraftConfig, matrices: LLMMatrices) -> DraftModel:
    try:
        weights = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"its {WEIGHTS_FILE} cannot be read: {error}") from error
    cut_ids = weights.get("cut_ids")
    if cut_ids is None or cut_ids.dtype != torch.int32 or cut_ids.shape != (config.cut_size,):
        raise ModelError(f"its {WEIGHTS_FILE} has no cut of {config.cut_size} int32 token ids")
    ordered = bool((cut_ids[1:] > cut_ids[:-1]).all())
    if not ordered or not 0 <= int(cut_ids[0]) <= int(cut_ids[-1]) < matrices.vocab_size:
        raise ModelError(f"its cut is not an ascending list of ids below {matrices.vocab_size}")
    model = DraftModel(config.shape, cut_ids, matrices)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"its weights do not fit its {CONFIG_FILE}: {problem}") from error
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        raise ModelError("its weights are not finite")
    return model.eval().requires_grad_(False)


def _tokenizer_hash(llm_folder: Path) -> str:
    """sha256 of the text of every token id: what two folders must share to share token ids."""
    try:
        content = json.loads((llm_folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else enumerate(vocabulary)
        added = [(token["id"], token["content"]) for token in content["added_tokens"]]
    except OSError as error:
        raise ModelError(f"the LLM's tokenizer.json cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError("the LLM's tokenizer.json is damaged") from error
    text = json.dumps([sorted(map(list, pairs)), sorted(added)], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _file_of(llm_folder: Path, name: str) -> Path | None:
    """The weight file that holds a tensor."""
    for file in weight_files(llm_folder):
        try:
            with safe_open(file, framework="pt") as content:
                if name in content.keys():  # noqa: SIM118 - not a mapping
                    return file
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file.name} cannot be read: {error}") from error
    return None


def _read_tensor(llm_folder: Path, name: str) -> Tensor:
    file = _file_of(llm_folder, name)
    if file is None:
        raise ModelError(f"the LLM has no tensor {name}; only Llama's names are known")
    with safe_open(file, framework="pt") as content:
        tensor: Tensor = content.get_tensor(name)
    return tensor
