"""The model card that goes with a tuned draft: what it is, what it was made of, what it covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actors.ssm.boost_tuning.boosting import Boost
from actors.ssm.boost_tuning.coverage import Shares
from actors.ssm.boost_tuning.recipe import Progress, Recipe
from actors.ssm.boost_tuning.records import Record


class PoolPlace(NamedTuple):
    """Where a draft model stands in a pool, and what it learnt less of (`boosting`)."""

    number: int
    num_models: int
    boost: Boost
    rest: float


@dataclass(frozen=True)
class TuningFacts:
    """What a card says of a tuning run.

    Attributes:
        llm_name: as the configuration names it.
        llm_hash: of its weights; the draft fits no other.
        recipe: sizes and settings.
        progress: where training ended.
        records: trained on.
        terms: origin and licence of each prompt set, by its name.
        held_out: coverage on answers like those trained on, never trained on.
        evaluated: coverage by evaluation set.
        place: in a pool; None for a model by itself.
    """

    llm_name: str
    llm_hash: str
    recipe: Recipe
    progress: Progress
    records: Sequence[Record]
    terms: Mapping[str, str]
    held_out: Shares
    evaluated: Mapping[str, Shares]
    place: PoolPlace | None = None


def write_card(facts: TuningFacts) -> str:
    """The card as Markdown."""
    recipe, progress = facts.recipe, facts.progress
    tokens = Counter[str]()
    answers = Counter[str]()
    for record in facts.records:
        tokens[record.source] += record.answer_len
        answers[record.source] += 1
    lines = [
        f"# Draft model for {facts.llm_name}",
        "",
        f"Fits only the LLM whose weights hash to `{facts.llm_hash}`: it borrows that LLM's",
        "embedding and head.",
        "",
        f"- Shape: {recipe.shape.num_layers} layers of width {recipe.shape.width} "
        f"(SwiGLU {recipe.shape.ff_width}), head cut to {recipe.cut_size:,} words.",
        f"- Training: {progress.step:,} steps, {progress.answer_tokens:,} answer tokens seen, "
        f"{progress.trained_s / 60:.0f} minutes.",
        "- Recipe: distilled from the LLM's own answers against its most probable words at each "
        f"place (share of the first word alone: {recipe.hard_share:g}); Muon "
        f"{recipe.matrix_rate:g} on matrices, AdamW {recipe.vector_rate:g} on vectors, falling in "
        f"a line to 0; {recipe.step_tokens:,} answer tokens a step; seed {recipe.seed}.",
        "",
        *_pool_lines(facts.place),
        "## Data",
        "",
        "All answers are the LLM's own. Prompts:",
        "",
        "| prompt set | answers | answer tokens | origin and terms |",
        "|---|---:|---:|---|",
    ]
    for source in sorted(answers):
        terms = facts.terms.get(source, "named on the command line; see its own terms")
        lines.append(f"| {source} | {answers[source]:,} | {tokens[source]:,} | {terms} |")
    lines += [
        "",
        "## Coverage",
        "",
        "How often the LLM's most probable word is among the draft's first 1 to 5, in %, along the "
        "LLM's answers to prompts never trained on.",
        "",
        "| prompts | top 1 | 2 | 3 | 4 | 5 |",
        "|---|---:|---:|---:|---:|---:|",
        coverage_row("held out, like those trained on", facts.held_out),
    ]
    lines += [coverage_row(name, shares) for name, shares in facts.evaluated.items()]
    return "\n".join(lines) + "\n"


def _pool_lines(place: PoolPlace | None) -> list[str]:
    if place is None:
        return []
    what = f"- Pool: model {place.number} of {place.num_models}"
    if place.number and place.boost is not Boost.NONE:
        what += f"; {place.boost.value} that those before it get right weigh {place.rest:g}"
    return [what + ".", ""]


def coverage_row(name: str, shares: Shares) -> str:
    """A row of the coverage table."""
    return f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |"
