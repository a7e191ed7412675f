"""Part `rules`: the verification rules against each other at temperature 1, on trees of one shape,
whose children are drawn as each rule requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.request_manager.generation import SpeculationOptions
from actors.verification import Rule
from cluster.bench.results.comparing import Ratio, first_drafts, ratio, tokens_and_steps
from cluster.bench.results.document import Cell, bullets, table
from cluster.bench.results.setting import Findings, Setting
from cluster.bench.results.shapes import FORMS, Widths, count_nodes, growers, name_of, tree
from cluster.bench.results.statements import at_least
from cluster.bench.served import Arm, Served, figures, serve_in_turns

TITLE = "Verification rules"
WIDTHS = (1, 2, 3, 5)
RULES = (Rule.NAIVE, Rule.MSS, Rule.COUPLED, Rule.SPECTR)
MSS_TO_NAIVE = 1.2
INTRODUCTION = (
    "Trees of the first draft model at T = 1, verified whole. `naive` has the draft model's most "
    "probable tokens, `coupled` its best under the LLM's noise, `mss` and `spectr` draw."
)

Answers = Mapping[tuple[Widths, Rule], Sequence[Served]]


async def measure(setting: Setting) -> Findings:
    trees = dict.fromkeys(tree(level, width) for level in FORMS.values() for width in WIDTHS)
    models = growers(setting, trees)
    largest, depth = max(map(count_nodes, trees)), max(map(len, trees))
    async with setting.lab.engine(setting.whole_trees(largest, depth), models) as engine:
        served = await serve_in_turns(
            {
                _arm(widths, rule): Arm(
                    engine,
                    SpeculationOptions(drafters=(name_of(widths),), verification=rule.value),
                )
                for widths in trees
                for rule in RULES
            },
            setting.asked(1.0),
        )
    answers = {(one, rule): served[_arm(one, rule)] for one in trees for rule in RULES}
    return Findings(
        "\n\n".join([INTRODUCTION, *(_report(*form, answers) for form in FORMS.items())]),
        {name: figures(one) for name, one in served.items()},
    )


def _arm(widths: Widths, rule: Rule) -> str:
    return f"{name_of(widths)} {rule.value}"


def _report(form: str, level: int, answers: Answers) -> str:
    header = ["k", *(rule.value for rule in RULES)]
    trees = {str(width): tree(level, width) for width in WIDTHS}
    steps: list[list[Cell]] = [
        [width, *(figures(answers[one, rule])["tokens_per_step"] for rule in RULES)]
        for width, one in trees.items()
    ]
    firsts: list[list[Cell]] = [
        [width, *(first_drafts(answers[one, rule]) for rule in RULES)]
        for width, one in trees.items()
    ]
    return "\n\n".join(
        [
            f"### {form}",
            "Tokens a step:",
            table(header, steps),
            "Share of steps in which a child of the root was accepted:",
            table(header, firsts),
            bullets(_statements(trees, answers)),
        ]
    )


def _statements(trees: Mapping[str, Widths], answers: Answers) -> list[str]:
    found = []
    for width, one in trees.items():
        to_naive = _ratio(answers, one, Rule.MSS, Rule.NAIVE)
        judged = at_least(f"k = {width}, `mss` to `naive`", to_naive, MSS_TO_NAIVE)
        found.append(f"{judged} {_why(one, answers)}")
        to_mss = _ratio(answers, one, Rule.COUPLED, Rule.MSS)
        what = f"k = {width}, `coupled` to `mss`"
        found.append(at_least(what, to_mss, 1.0) if max(one) > 1 else f"{what}: {to_mss}.")
    return found


def _ratio(answers: Answers, widths: Widths, rule: Rule, base: Rule) -> Ratio:
    one, other = (tokens_and_steps(answers[widths, which]) for which in (rule, base))
    return ratio(one, other)


def _why(widths: Widths, answers: Answers) -> str:
    """What is known of the difference: who is right at the root, before depth counts."""
    drawn, best = (first_drafts(answers[widths, rule]) for rule in (Rule.MSS, Rule.NAIVE))
    how = "more" if drawn > best else "no more"
    return (
        f"At the root, {widths[0]} drawn are accepted in {drawn:.2f} of steps and the {widths[0]} "
        f"most probable are right in {best:.2f}: {how} often."
    )
