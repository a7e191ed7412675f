"""What all parts measure with: the model, the prompts, the draft models, and the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from actors.request_manager.config import SpeculationConfig
from actors.request_manager.drafter_names import SSM
from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.sampling import SamplingParams
from actors.ssm.config import SSMConfig
from actors.ssm.speculator import SpeculatorOptions
from cluster.bench.lab import Lab
from cluster.bench.results.data_sets import SetPrompt
from cluster.bench.served import Asked
from cluster.config import Config
from cluster.models import resolve_draft_model

TEMPERATURES = (0.0, 1.0)
LONG_DEADLINE_MS = 60_000.0
"""Where it is tokens a step that count, no draft may be late."""
DRAFT_KV_BYTES = 1 << 26
"""For the one session at a time that a draft model has here."""

Expansion = str | tuple[int, ...]


class Findings(NamedTuple):
    """What a part found.

    Attributes:
        markdown: the body of its section.
        figures: the same, and more, for machines.
    """

    markdown: str
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """How much is measured.

    Attributes:
        max_tokens: of an answer.
        num_nodes: of a tree, where pools have equal budgets.
        num_pairs, per_stream: of the comparison by batch size.
    """

    max_tokens: int
    num_nodes: int
    num_pairs: int
    per_stream: int


@dataclass(frozen=True)
class Setting:
    """See above.

    Attributes:
        config_path: of the configuration.
        path: the LLM's folder.
        warming: prompts to answer before those that count.
        rivals: draft models that the configuration does not name, to hold its own against.
    """

    config: Config
    config_path: Path
    path: Path
    lab: Lab
    prompts: Sequence[SetPrompt]
    warming: Sequence[SetPrompt]
    rivals: Sequence[str]
    limits: Limits

    def asked(self, temperature: float) -> list[Asked]:
        """Every prompt as a request with a seed of its own."""
        return self._requests(self.prompts, temperature)

    def asked_before(self, temperature: float) -> list[Asked]:
        """The same of those that warm up."""
        return self._requests(self.warming, temperature)

    def _requests(self, prompts: Sequence[SetPrompt], temperature: float) -> list[Asked]:
        return [
            Asked(
                prompt.label,
                GenerationRequest(
                    str(number),
                    prompt.token_ids,
                    SamplingParams(temperature=temperature, seed=number),
                    StopConditions(self.limits.max_tokens),
                ),
            )
            for number, prompt in enumerate(prompts)
        ]

    @property
    def ssms(self) -> tuple[SSMConfig, ...]:
        """The configuration's draft models, then the rivals."""
        return (*self.config.ssms, *(SSMConfig(path=path) for path in self.rivals))

    def draft_model(
        self, index: int, expansion: Expansion = "best_first", **limits: int
    ) -> SpeculatorOptions:
        """One of `ssms`.

        Args:
            limits: of its trees, over those of its entry.
        """
        ssm = self.ssms[index]
        return SpeculatorOptions(
            path=resolve_draft_model(ssm.path),
            llm_path=self.path,
            ssm=ssm.model_copy(update={"kv_memory_bytes": DRAFT_KV_BYTES, **limits}),
            expansion=expansion,
            index=index,
        )

    def whole_trees(self, max_nodes: int, max_depth: int) -> SpeculationConfig:
        """Draft models alone, whose trees are verified as they are, however long they take."""
        return self.config.speculation.model_copy(
            update={
                "drafters": (SSM,),
                "max_tree_nodes": max_nodes,
                "max_depth": max_depth,
                "budget": "fixed",
                "draft_deadline_ms": LONG_DEADLINE_MS,
            }
        )


def temperature_name(temperature: float) -> str:
    return f"T = {temperature:g}" if temperature else "greedy"
