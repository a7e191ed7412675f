"""The manager's sections of the configuration: `speculation` and `scheduler`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from actors.request_manager.drafter_names import SSM
from actors.request_manager.drafters import DRAFTERS
from actors.verification import Rule

Widths = Annotated[
    tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(min_length=1, max_length=64)
]

DrafterMemory = Annotated[int, Field(ge=1 << 16, le=1 << 34)]


class SpeculationConfig(BaseModel):
    """What is guessed, and how much.

    Attributes:
        drafters: names of the drafters to ask; empty turns speculation off.
        verification: the rule by which drafts are verified, where a request names none; greedy
            requests are verified by equality under every rule.
        max_tree_nodes: draft nodes per request and step at most; a rank takes no larger tree.
        max_depth: draft tokens on one path at most.
        expansion: how draft models grow their trees: `best_first` within their limits, or the
            numbers of children ⟨k1, k2, …⟩ of a static tree, depth by depth.
        budget: `adaptive` sizes trees by measured step times and acceptance, down to none;
            `fixed` always verifies what the drafters bring, up to `max_tree_nodes`.
        draft_deadline_ms: a drafter that has not answered by then is left out of the step.
        suffix_global: the drafter `suffix` learns from earlier answers too, whoever asked for them.
        suffix_memory_bytes: for these answers.
        ngram_memory_bytes: for the tables of the drafter `ngram`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    drafters: tuple[str, ...] = ("grammar", "prompt_lookup")
    verification: Rule = Rule.COUPLED
    max_tree_nodes: Annotated[int, Field(ge=0, le=1023)] = 32
    max_depth: Annotated[int, Field(ge=1, le=64)] = 12
    expansion: Literal["best_first"] | Widths = "best_first"
    budget: Literal["adaptive", "fixed"] = "adaptive"
    draft_deadline_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 50.0
    suffix_global: bool = True
    suffix_memory_bytes: DrafterMemory = 16 << 20
    ngram_memory_bytes: DrafterMemory = 8 << 20

    @field_validator("drafters")
    @classmethod
    def _drafters_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = sorted([*DRAFTERS, SSM])
        for name in names:
            if name not in known:
                raise ValueError(f"no drafter {name!r}; there are: {', '.join(known)}")
        if len(set(names)) < len(names):
            raise ValueError("a drafter is named twice")
        return names


class SchedulerConfig(BaseModel):
    """How requests share the LLM.

    Attributes:
        max_batch_tokens: tokens in one step at most, drafts included.
        max_running_requests: requests that hold KV blocks at one time.
        max_queued_requests: requests that may wait; more are refused.
        max_queued_tokens: prompt tokens that may wait; a request alone is never too long.
        kv_block_tokens: tokens in one KV block.
        kv_memory_bytes: memory for the KV cache of one rank, or `auto`.
        kv_prefix_reuse: requests that begin alike share the KV of what they have in common.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_batch_tokens: Annotated[int, Field(ge=16, le=65536)] = 512
    max_running_requests: Annotated[int, Field(ge=1, le=4096)] = 64
    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    max_queued_tokens: Annotated[int, Field(ge=1)] = 262_144
    kv_block_tokens: Annotated[int, Field(ge=1, le=1024)] = 16
    kv_memory_bytes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    kv_prefix_reuse: bool = True
