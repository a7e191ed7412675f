"""Part `rules`: the verification rules against each other at temperature 1, on trees of one shape,
whose children are drawn as each rule requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.request_manager.generation import SpeculationOptions
from actors.verification import Rule
from cluster.bench.results.comparing import Ratio, first_drafts, ratio, tokens_and_steps
from cluster.bench.results.document import Cell, bullets, table
from cluster.bench.results.setting import Findings, Setting
from cluster.bench.results.statements import at_least
from cluster.bench.results.widths import WIDTHS, num_nodes, shape, tree_name
from cluster.bench.served import Arm, Served, figures, serve_in_turns

TITLE = "Verification rules"
RULES = (Rule.NAIVE, Rule.MSS, Rule.COUPLED, Rule.SPECTR)
MSS_TO_NAIVE = 1.2
INTRODUCTION = (
    "Trees ⟨1, 1, k, 1, 1, 1, 1, 1⟩ of the first draft model at T = 1, verified whole. `naive` has "
    "the draft model's most probable tokens, `coupled` its best under the LLM's noise, `mss` and "
    "`spectr` draw. Tokens a step:"
)

Answers = Mapping[tuple[int, Rule], Sequence[Served]]
"""By width and rule."""


async def measure(setting: Setting) -> Findings:
    largest, depth = num_nodes(shape(max(WIDTHS))), len(shape(1))
    models = {
        tree_name(width): setting.draft_model(0, shape(width), max_nodes=largest, max_depth=depth)
        for width in WIDTHS
    }
    async with setting.lab.engine(setting.whole_trees(largest, depth), models) as engine:
        served = await serve_in_turns(
            {
                f"{width} {rule.value}": Arm(
                    engine,
                    SpeculationOptions(drafters=(tree_name(width),), verification=rule.value),
                )
                for width in WIDTHS
                for rule in RULES
            },
            setting.asked(1.0),
        )
    answers = {(width, rule): served[f"{width} {rule.value}"] for width in WIDTHS for rule in RULES}
    return Findings(_report(answers), {name: figures(one) for name, one in served.items()})


def _report(answers: Answers) -> str:
    header = ["k", *(rule.value for rule in RULES)]
    steps: list[list[Cell]] = [
        [str(width), *(figures(answers[width, rule])["tokens_per_step"] for rule in RULES)]
        for width in WIDTHS
    ]
    firsts: list[list[Cell]] = [
        [str(width), *(first_drafts(answers[width, rule]) for rule in RULES)] for width in WIDTHS
    ]
    return "\n\n".join(
        [
            INTRODUCTION,
            table(header, steps),
            "Share of steps whose first draft was accepted (one draft, whatever k is):",
            table(header, firsts),
            bullets(_statements(answers)),
        ]
    )


def _statements(answers: Answers) -> list[str]:
    found = []
    for width in WIDTHS:
        to_naive = _ratio(answers, width, Rule.MSS, Rule.NAIVE)
        what = f"k = {width}: `mss` to `naive` {to_naive}"
        found.append(at_least(what, to_naive.value, MSS_TO_NAIVE))
        to_mss = _ratio(answers, width, Rule.COUPLED, Rule.MSS)
        what = f"k = {width}: `coupled` to `mss` {to_mss}"
        found.append(at_least(what, to_mss.value, 1.0) if width > 1 else f"{what}.")
    return [*found, _finding(answers)]


def _ratio(answers: Answers, width: int, rule: Rule, base: Rule) -> Ratio:
    one, other = (tokens_and_steps(answers[width, which]) for which in (rule, base))
    return ratio(one, other)


def _finding(answers: Answers) -> str:
    """Where the rules part: at one single draft, before any width counts."""
    shares = {
        rule: first_drafts([one for width in WIDTHS for one in answers[width, rule]])
        for rule in RULES
    }
    told = ", ".join(f"`{rule.value}` {share:.3f}" for rule, share in shares.items())
    gap = shares[Rule.MSS] - shares[Rule.NAIVE]
    why = (
        "the draft model's most probable token is right at least as often as a drawn one is "
        "accepted, so that `mss` can only gain by its further children"
        if gap <= 0
        else "a drawn token is accepted more often than the most probable one is right"
    )
    return f"One draft alone, over all trees, is accepted so often: {told}; {why}."
