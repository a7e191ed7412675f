"""What `transformers` itself generates, greedily and in float32, with how close the choice was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

NEAR_TIE = 3e-4
"""Gap of the two best logits below which float32 sums in another order may choose the other."""


@dataclass(frozen=True)
class Reference:
    """A greedy continuation.

    Attributes:
        token_ids: generated tokens, EOS included.
        gaps: for each of them, how far the best logit lay above the second best.
    """

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


class GreedyReference:
    """The stock model, one prompt at a time.

    Args:
        model_path: a local folder.
        eos_ids: tokens that end a text.
    """

    def __init__(self, model_path: Path, eos_ids: frozenset[int]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self._eos_ids = eos_ids

    @torch.inference_mode()
    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> Reference:
        cache = DynamicCache()
        run = list(prompt_ids)
        token_ids: list[int] = []
        gaps: list[float] = []
        while len(token_ids) < max_tokens and not self._eos_ids & set(token_ids[-1:]):
            logits = self._model(
                torch.tensor([run]), cache=cache, use_cache=True, logits_to_keep=1
            ).logits[0, -1]
            best = logits.topk(2)
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
