"""What `transformers` itself generates in float32, with how close each choice was.

At a temperature, too: its logits with the shared noise of the request's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from actors.noise import NoiseSource

NEAR_TIE = 3e-4
"""Gap of the two best (perturbed) logits below which float32 sums in another order may choose the
other."""


@dataclass(frozen=True)
class Reference:
    """A continuation.

    Attributes:
        token_ids: generated tokens, EOS included.
        gaps: for each of them, how far the best (perturbed) logit lay above the second best.
    """

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


class StockReference:
    """The stock model, one prompt at a time.

    Args:
        model_path: a local folder.
        eos_ids: tokens that end a text.
    """

    def __init__(self, model_path: Path, eos_ids: frozenset[int]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self._eos_ids = eos_ids
        self._noise = NoiseSource(self._model.get_output_embeddings().weight.shape[0])

    @torch.inference_mode()
    def generate(
        self, prompt_ids: Sequence[int], max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Reference:
        cache = DynamicCache()
        run = list(prompt_ids)
        token_ids: list[int] = []
        gaps: list[float] = []
        while len(token_ids) < max_tokens and not self._eos_ids & set(token_ids[-1:]):
            scores = self._model(
                torch.tensor([run]), cache=cache, use_cache=True, logits_to_keep=1
            ).logits[0, -1]
            if temperature:
                noise = self._noise.get(seed, len(prompt_ids) + len(token_ids))
                scores = scores + temperature * torch.tensor(noise)
            best = scores.topk(2)
            token_ids.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            run = token_ids[-1:]
        return Reference(tuple(token_ids), tuple(gaps))


def first_divergence(reference: Reference, token_ids: Sequence[int]) -> int | None:
    """Index of the first token that differs; None if all are the same."""
    for index, token in enumerate(reference.token_ids):
        if index >= len(token_ids) or token_ids[index] != token:
            return index
    return None if len(token_ids) == len(reference.token_ids) else len(reference.token_ids)
