"""A transformers model without weights, and where its parts are.

Assumes one list of layers, as decoders have; what stands before, beside and behind it (positions,
norms) is small and goes to every stage.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from actors.errors import ModelError
from actors.llm.fused_llama import Foreign
from actors.llm.loading import experts_for


class Skeleton:
    """Every parameter is on the meta device until it is filled.

    Args:
        config: the model's own; changed by `keep`.
        dtype: of the model.

    Attributes:
        model: the causal language model.
        body: the module that holds the layers.
        embedding_name, head_name, layers_name: what the parts are called in the model.
        num_parameters: of the whole model.
        width: of the hidden states between layers.
    """

    def __init__(self, config: Foreign, dtype: torch.dtype) -> None:
        with torch.device("meta"):
            self.model: Foreign = AutoModelForCausalLM.from_config(
                config,
                dtype=dtype,
                attn_implementation="eager",
                experts_implementation=experts_for(dtype),
            )
        self.model.eval()
        self.body: Foreign = self.model.get_decoder()
        self.num_parameters = sum(weight.numel() for weight in self.model.parameters())
        num_layers = config.num_hidden_layers
        names = {module: name for name, module in self.model.named_modules()}
        lists = [
            module
            for module in self.body.children()
            if isinstance(module, nn.ModuleList) and len(module) == num_layers
        ]
        if len(lists) != 1:
            raise ModelError("its layers are not one list")
        self.layers_name = names[lists[0]]
        self.embedding_name = names[self.embedding]
        self.head_name = names[self.head]
        self.width: int = config.hidden_size

    @property
    def embedding(self) -> Foreign:
        """The module that takes token ids."""
        return self.model.get_input_embeddings()

    @embedding.setter
    def embedding(self, module: nn.Module) -> None:
        self.model.set_submodule(self.embedding_name, module)

    @property
    def head(self) -> Foreign:
        """The module that gives logits."""
        return self.model.get_output_embeddings()

    @head.setter
    def head(self, module: nn.Module) -> None:
        self.model.set_submodule(self.head_name, module)

    @property
    def is_tied(self) -> bool:
        """True if the head has the weight of the embedding."""
        return bool(self.model.config.tie_word_embeddings)

    @property
    def small_names(self) -> list[str]:
        """Parameters and stored buffers that belong to no layer, nor to embedding or head."""
        large = (self.layers_name, self.embedding_name, self.head_name)
        return [
            name
            for name in self.model.state_dict()
            if not name.startswith(tuple(f"{prefix}." for prefix in large))
        ]

    @property
    def layers(self) -> Foreign:
        """The module list of all layers."""
        return self.model.get_submodule(self.layers_name)

    def take_layer(self, index: int) -> Foreign:
        """A layer, of which the model keeps nothing."""
        layers = self.layers
        layer, layers[index] = layers[index], nn.Identity()
        return layer

    def keep(self, layers: Iterable[Foreign], own: range) -> None:
        """Make it a model of these layers alone, which count from 0.

        Args:
            own: where they stood before.
        """
        kept = nn.ModuleList(layers)
        config = self.model.config
        if kinds := getattr(config, "layer_types", None):
            config.layer_types = kinds[own.start : own.stop]
        config.num_hidden_layers = len(own)
        for index, layer in enumerate(kept):
            module: Foreign
            for module in layer.modules():
                if hasattr(module, "layer_idx"):
                    module.layer_idx = index
        self.model.set_submodule(self.layers_name, kept)

    def make_buffers(self, device: torch.device) -> None:
        """Make what no weight file holds, as the model itself would: rotary frequencies, scales.

        Raises:
            ModelError: the model does not say how.
        """
        stored = self.model.state_dict()
        for name, module in self.model.named_modules():
            computed = {
                own_name: buffer
                for own_name, buffer in module.named_buffers(recurse=False)
                if f"{name}.{own_name}" not in stored
            }
            if not computed:
                continue
            for own_name, buffer in computed.items():
                setattr(module, own_name, torch.full_like(buffer, torch.nan, device=device))
            self.model._init_weights(module)
            if any(buffer.isnan().any() for buffer in module.buffers(recurse=False)):
                raise ModelError(f"it computes {name} in a way of its own")


class Placeholder(nn.Module):
    """Stands for the embedding where hidden states come from another stage.

    Gives numbers that depend on the token ids, for a model's attention to be checked with.

    Args:
        weight: [vocab, width] of the embedding; only its shape and type count.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._width = weight.shape[1]
        self._dtype = weight.dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        columns = torch.arange(1, self._width + 1, device=token_ids.device)
        return torch.sin(token_ids[..., None] * columns).to(self._dtype)
