"""Tensor parallelism by DeepSpeed's AutoTP, applied to a loaded model piece by piece.

AutoTP finds out from a model's modules which products are split by columns and which by rows (the
latter end with a sum over the shards), so the model's code knows nothing of it. It is applied to
one layer at a time, as soon as that is loaded: a rank never holds more than a layer that is whole.
Embedding and head are split by words.

Heads go whole to a shard, key heads as evenly as they can; a model with fewer key heads than there
are shards is refused. Experts that are stacked in one weight, as transformers has them, are no
products that AutoTP knows: each shard has all of them, with their router.
"""

from __future__ import annotations

from deepspeed.inference.config import DeepSpeedInferenceConfig
from deepspeed.module_inject import replace_transformer_layer
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.layers import VocabParallelEmbedding, VocabParallelLinear
from deepspeed.module_inject.tp_shard import AutoTPMeta
from torch import nn

from actors.errors import ModelError
from actors.llm.fused_llama import Foreign
from actors.llm.parallel.world import World

GRAIN = 64
"""Widths are split in multiples of this, which suits the kernels, where they are wide enough."""


class Sharding:
    """Splits the modules of one model over the shards of a stage.

    Args:
        world: the ranks.
        skeleton: the whole model; its weights need not be there.

    Raises:
        ModelError: AutoTP cannot split it over so many ranks.
    """

    def __init__(self, world: World, skeleton: nn.Module) -> None:
        config: Foreign = skeleton.config
        self._world = world
        self._config = config
        self._width = world.grid.tensor_parallel
        self._grain = GRAIN if _inner_size(config) >= GRAIN * self._width else 1
        self._policies: dict[type, Foreign] = {}
        if self._width > 1:
            self._policies = dict(_policies(skeleton))
            num_key_heads = _num_key_heads(config)
            if num_key_heads < self._width:
                raise ModelError(
                    f"its {num_key_heads} key heads cannot be split over "
                    f"{self._width} ranks (llm.tensor_parallel)"
                )

    def layer(self, layer: nn.Module) -> Foreign:
        """This rank's part of a layer, whose weights are there. Raises ModelError."""
        if self._width == 1:
            return layer
        settings = {
            "tp_size": self._width,
            "tp_group": self._world.stage_group,
            "tp_grain_size": self._grain,
        }
        narrow = [
            name
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear) and module.out_features < self._width
        ]
        if narrow:
            raise ModelError(
                f"{narrow[0]} of {type(layer).__name__} is too narrow for {self._width} ranks "
                "(llm.tensor_parallel)"
            )
        box = nn.ModuleList([layer])
        config = DeepSpeedInferenceConfig(tensor_parallel=settings)
        config.injection_policy_tuple = self._policies.get(type(layer), ())
        replace_transformer_layer(type(layer), box, None, config, self._config)
        whole = [name for name, module in box[0].named_modules() if type(module) is nn.Linear]
        if whole:
            raise ModelError(f"DeepSpeed does not split {whole[0]} of {type(layer).__name__}")
        return box[0]

    def embedding(self, embedding: Foreign) -> Foreign:
        """This rank's words of an embedding; a lookup adds up those of all shards.

        One that does more than a lookup stays whole.
        """
        if self._width == 1 or type(embedding).forward is not nn.Embedding.forward:
            return embedding
        return VocabParallelEmbedding(
            embedding, self._world.stage_group, name="embed_tokens", tp_meta=self._meta
        )

    def head(self, head: Foreign) -> tuple[Foreign, list[int]]:
        """This rank's words of a head, and how many words each shard has."""
        if self._width == 1:
            return head, [head.weight.shape[0]]
        part = VocabParallelLinear(
            head, self._world.stage_group, name="lm_head", tp_meta=self._meta
        )
        return part, list(part._partition_sizes)

    @property
    def _meta(self) -> AutoTPMeta:
        return AutoTPMeta.from_model_config(self._config, self._grain)


def _inner_size(config: Foreign) -> int:
    """Of the products between attentions."""
    for name in ("intermediate_size", "ffn_dim"):
        if size := getattr(config, name, None):
            return int(size)
    return int(config.hidden_size)


def _num_key_heads(config: Foreign) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _policies(skeleton: nn.Module) -> list[tuple[type, Foreign]]:
    """For each kind of layer, which of its products end with a sum."""
    try:
        return list(AutoTP.tp_parser(skeleton))
    except AssertionError as error:  # DeepSpeed's way to refuse
        name = type(skeleton).__name__
        raise ModelError(f"DeepSpeed cannot split {name} over ranks: {error}") from error
