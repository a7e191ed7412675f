"""Part `widths`: does it pay to be wide? Static trees of one draft model, wide at one level,
against its chains of as many nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.request_manager.generation import SpeculationOptions
from actors.verification import Rule
from cluster.bench.results.comparing import ratio, tokens_and_steps
from cluster.bench.results.document import Cell, bullets, table
from cluster.bench.results.setting import TEMPERATURES, Findings, Setting, temperature_name
from cluster.bench.results.shapes import FORMS, Widths, chain, count_nodes, growers, name_of, tree
from cluster.bench.results.statements import most
from cluster.bench.served import Arm, Served, figures, serve_in_turns

TITLE = "Width of trees"
WIDTHS = range(1, 6)
INTRODUCTION = (
    "Trees of the first draft model against its chains of as many nodes, all verified whole, "
    "under the rule `coupled`. Tokens a step:"
)

Answers = Mapping[str, Sequence[Served]]
"""By the name of the drafter."""


def rival(widths: Widths) -> Widths:
    """The chain of as many nodes."""
    return chain(count_nodes(widths))


async def measure(setting: Setting) -> Findings:
    trees = [tree(level, width) for level in FORMS.values() for width in WIDTHS]
    shapes = [shape for one in trees for shape in (one, rival(one))]
    models = growers(setting, shapes)
    largest = max(map(count_nodes, shapes))
    async with setting.lab.engine(setting.whole_trees(largest, largest), models) as engine:
        rule = Rule.COUPLED.value
        arms = {
            name: Arm(engine, SpeculationOptions(drafters=(name,), verification=rule))
            for name in models
        }
        found = {
            temperature_name(temperature): await serve_in_turns(arms, setting.asked(temperature))
            for temperature in TEMPERATURES
        }
    return Findings(
        "\n\n".join([INTRODUCTION, *(_report(*form, found) for form in FORMS.items())]),
        {
            temperature: {name: figures(answers) for name, answers in served.items()}
            for temperature, served in found.items()
        },
    )


def _report(form: str, level: int, found: Mapping[str, Answers]) -> str:
    columns = [f"{kind}, {temperature}" for temperature in found for kind in ("tree", "chain")]
    rows: list[list[Cell]] = [
        [
            str(width),
            str(count_nodes(tree(level, width))),
            *(
                _steps(served, shape)
                for served in found.values()
                for shape in (tree(level, width), rival(tree(level, width)))
            ),
        ]
        for width in WIDTHS
    ]
    statements = [line for one in found.items() for line in _statements(level, *one)]
    return "\n\n".join([f"### {form}", table(["k", "nodes", *columns], rows), bullets(statements)])


def _steps(served: Answers, widths: Widths) -> float:
    return figures(served[name_of(widths)])["tokens_per_step"]


def _statements(level: int, temperature: str, served: Answers) -> list[str]:
    steps = {f"k = {width}": _steps(served, tree(level, width)) for width in WIDTHS}
    found = [most(f"{temperature}, tokens a step by width", steps)]
    for width in WIDTHS[1:]:
        wide, *others = (
            tokens_and_steps(served[name_of(shape)])
            for shape in (tree(level, width), rival(tree(level, width)), tree(level, 1))
        )
        to_chain, to_narrow = (ratio(wide, other) for other in others)
        found.append(
            f"{temperature}, k = {width}: {to_chain} times the chain of as many nodes, "
            f"{to_chain.verdict}; {to_narrow} times k = 1, {to_narrow.verdict}."
        )
    return found
