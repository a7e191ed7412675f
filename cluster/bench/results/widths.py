"""Part `widths`: does it pay to be wide? Trees ⟨1, 1, k, 1, 1, 1, 1, 1⟩ of one draft model, against
chains of as many nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.request_manager.generation import SpeculationOptions
from actors.verification import Rule
from cluster.bench.results.comparing import ratio, tokens_and_steps
from cluster.bench.results.document import Cell, bullets, table
from cluster.bench.results.setting import TEMPERATURES, Findings, Setting, temperature_name
from cluster.bench.results.statements import most
from cluster.bench.served import Arm, Served, figures, serve_in_turns

TITLE = "Width of trees"
WIDTHS = range(1, 6)
INTRODUCTION = (
    "Trees ⟨1, 1, k, 1, 1, 1, 1, 1⟩ of the first draft model against its chains of as many nodes, "
    "all verified whole, under the rule `coupled`. Tokens a step:"
)


def shape(width: int) -> tuple[int, ...]:
    """Children at each depth."""
    return (1, 1, width, 1, 1, 1, 1, 1)


def num_nodes(widths: Sequence[int]) -> int:
    """Of a static tree."""
    level, nodes = 1, 0
    for width in widths:
        level *= width
        nodes += level
    return nodes


def tree_name(width: int) -> str:
    """Of the drafter whose trees are so wide: of the kind `ssm`."""
    return f"ssm-tree-{width}"


def chain_name(width: int) -> str:
    """Of the drafter whose chains have as many nodes."""
    return f"ssm-chain-{width}"


async def measure(setting: Setting) -> Findings:
    largest = num_nodes(shape(max(WIDTHS)))
    models = {}
    for width in WIDTHS:
        nodes = num_nodes(shape(width))
        for name, widths in ((tree_name(width), shape(width)), (chain_name(width), (1,) * nodes)):
            models[name] = setting.draft_model(0, widths, max_nodes=nodes, max_depth=len(widths))
    del models[chain_name(1)]  # a chain as it is
    async with setting.lab.engine(setting.whole_trees(largest, largest), models) as engine:
        arms = {
            name: Arm(engine, SpeculationOptions(drafters=(name,), verification=Rule.COUPLED.value))
            for name in models
        }
        by_temperature = {
            temperature_name(temperature): await serve_in_turns(arms, setting.asked(temperature))
            for temperature in TEMPERATURES
        }
    for served in by_temperature.values():
        served[chain_name(1)] = served[tree_name(1)]
    return Findings(_report(by_temperature), _figures(by_temperature))


def _figures(
    by_temperature: Mapping[str, Mapping[str, Sequence[Served]]],
) -> dict[str, dict[str, dict[str, float]]]:
    return {
        temperature: {name: figures(answers) for name, answers in served.items()}
        for temperature, served in by_temperature.items()
    }


def _report(by_temperature: Mapping[str, Mapping[str, Sequence[Served]]]) -> str:
    found = _figures(by_temperature)
    columns = [f"{kind}, {name}" for name in found for kind in ("tree", "chain")]
    rows: list[list[Cell]] = [
        [
            str(width),
            str(num_nodes(shape(width))),
            *(
                one[name(width)]["tokens_per_step"]
                for one in found.values()
                for name in (tree_name, chain_name)
            ),
        ]
        for width in WIDTHS
    ]
    statements = [line for one in by_temperature.items() for line in _statements(*one)]
    return "\n\n".join([INTRODUCTION, table(["k", "nodes", *columns], rows), bullets(statements)])


def _statements(temperature: str, served: Mapping[str, Sequence[Served]]) -> list[str]:
    steps = {
        f"k = {width}": figures(served[tree_name(width)])["tokens_per_step"] for width in WIDTHS
    }
    found = [most(f"{temperature}, tokens a step by width", steps)]
    for width in WIDTHS[1:]:
        tree = tokens_and_steps(served[tree_name(width)])
        chain = ratio(tree, tokens_and_steps(served[chain_name(width)]))
        narrow = ratio(tree, tokens_and_steps(served[tree_name(1)]))
        found.append(
            f"{temperature}, k = {width}: {chain} times the chain of as many nodes, "
            f"{chain.verdict}; {narrow} times k = 1, {narrow.verdict}."
        )
    return found
