"""Part `coverage`: is the LLM's token in the tree, and how many tokens a step does that bring? Each
draft model alone, and pools of the first 2, 4, … of them, at an equal number of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from actors.request_manager.generation import SpeculationOptions
from actors.verification import Rule
from cluster.bench.local_drafts import LocalDraftModel
from cluster.bench.results.comparing import first_drafts, ratio, tokens_and_steps
from cluster.bench.results.document import Cell, bullets, table
from cluster.bench.results.places import WIDEST, Place, coverage, places_of
from cluster.bench.results.setting import TEMPERATURES, Findings, Setting, temperature_name
from cluster.bench.results.statements import most
from cluster.bench.served import Arm, Asked, Served, figures, serve_in_turns

TITLE = "Coverage, and tokens a step at an equal number of nodes"
Pools = Mapping[str, Sequence[int]]
"""Indexes of draft models, by the name of what they are together."""


def pools(num_models: int, num_own: int) -> dict[str, list[int]]:
    """Every draft model alone, then the first 2, 4, … and all of the configuration's own."""
    sizes = sorted({size for size in (2, 4, 8, num_own) if 1 < size <= num_own})
    alone = {name: [index] for index, name in enumerate(_names(range(num_models)))}
    return alone | {f"pool of {size}": list(range(size)) for size in sizes}


async def measure(setting: Setting) -> Findings:
    arms = pools(len(setting.ssms), len(setting.config.ssms))
    parts, found = [_legend(setting)], {}
    for temperature, served in (await _serve(setting, arms)).items():
        name = temperature_name(temperature)
        places = await _places(setting, setting.asked(temperature), next(iter(served.values())))
        parts.append(f"### {name}\n\n{_report(served, places, arms, setting.limits.num_nodes)}")
        found[name] = {
            arm: {**figures(served[arm]), "top": coverage(places, models)}
            for arm, models in arms.items()
        }
    return Findings("\n\n".join(parts), found)


async def _serve(setting: Setting, arms: Pools) -> dict[float, dict[str, list[Served]]]:
    """Every arm's answers, by temperature."""
    num_nodes = setting.limits.num_nodes
    speculation = setting.whole_trees(num_nodes, setting.config.speculation.max_depth)
    models = {
        name: setting.draft_model(index, max_nodes=num_nodes)
        for index, name in enumerate(_names(range(len(setting.ssms))))
    }
    rule = Rule.COUPLED.value
    async with setting.lab.engine(speculation, models) as engine:
        asking = {
            name: Arm(engine, SpeculationOptions(drafters=tuple(_names(pool)), verification=rule))
            for name, pool in arms.items()
        }
        return {
            temperature: await serve_in_turns(asking, setting.asked(temperature))
            for temperature in TEMPERATURES
        }


def _names(pool: Sequence[int]) -> list[str]:
    return [f"ssm-{index}" for index in pool]


async def _places(
    setting: Setting, asked: Sequence[Asked], served: Sequence[Served]
) -> list[Place]:
    async with AsyncExitStack() as resources:
        models = []
        for index, name in enumerate(_names(range(len(setting.ssms)))):
            options = setting.draft_model(index, (WIDEST,), max_nodes=WIDEST, max_depth=1)
            models.append(LocalDraftModel(name, options))
            resources.callback(models[-1].close)
        found: list[Place] = []
        for number, (one, answer) in enumerate(zip(asked, served, strict=True)):
            found += await places_of(models, number, one.request, answer.token_ids)
    return found


def _legend(setting: Setting) -> str:
    sizes = [
        sum(file.stat().st_size for file in setting.draft_model(index).path.glob("*.safetensors"))
        for index in range(len(setting.ssms))
    ]
    models = (
        f"`ssm-{index}` is `{ssm.path}` ({size / 1e6:.1f} MB)"
        for index, (ssm, size) in enumerate(zip(setting.ssms, sizes, strict=True))
    )
    return (
        f"{'; '.join(models)}. A pool's models share the guesses: in the first table they take "
        f"turns, in the others their trees are merged and cut to {setting.limits.num_nodes} nodes."
    )


def _report(
    served: Mapping[str, Sequence[Served]], places: Sequence[Place], arms: Pools, num_nodes: int
) -> str:
    tops = {arm: coverage(places, models) for arm, models in arms.items()}
    sets = _sets(served)
    return "\n\n".join(
        [
            f"P(the LLM's token is among the first k guesses), every one of {len(places)} places:",
            table(["guesses", *(f"k = {k + 1}" for k in range(WIDEST))], _rows(tops)),
            f"Steps with trees of up to {num_nodes} nodes:",
            table(
                [
                    "drafts",
                    "P(next token in the tree)",
                    "tokens/step",
                    "nodes/step",
                    "draft ms/step",
                    "tokens/s",
                ],
                [[arm, *_step_figures(answers)] for arm, answers in served.items()],
            ),
            "Tokens a step by set:",
            table(["drafts", *sets], [[arm, *_by_set(one, sets)] for arm, one in served.items()]),
            bullets(_statements(served, tops, sets)),
        ]
    )


def _rows(tops: Mapping[str, Sequence[float]]) -> list[list[Cell]]:
    return [[arm, *shares] for arm, shares in tops.items()]


def _step_figures(answers: Sequence[Served]) -> list[float]:
    found = figures(answers)
    return [
        first_drafts(answers),
        found["tokens_per_step"],
        found["nodes_per_step"],
        found["draft_ms_per_step"],
        1e3 / found["ms_per_token"],
    ]


def _sets(served: Mapping[str, Sequence[Served]]) -> list[str]:
    """Those that have steps in every arm."""
    names = dict.fromkeys(_set_name(one) for answers in served.values() for one in answers)
    return [name for name in names if all(_of_set(answers, name) for answers in served.values())]


def _set_name(one: Served) -> str:
    return one.task.partition("/")[0]


def _of_set(answers: Sequence[Served], data_set: str) -> list[Served]:
    return [one for one in answers if _set_name(one) == data_set and one.stats.num_llm_steps]


def _by_set(answers: Sequence[Served], sets: Sequence[str]) -> list[float]:
    return [figures(_of_set(answers, data_set))["tokens_per_step"] for data_set in sets]


def _statements(
    served: Mapping[str, Sequence[Served]],
    tops: Mapping[str, Sequence[float]],
    sets: Sequence[str],
) -> list[str]:
    if len(served) == 1:
        return ["There is one draft model, and so no pool to hold against it."]
    found = [
        most(f"P(token among {k} guesses)", {arm: shares[k - 1] for arm, shares in tops.items()})
        for k in (2, 4)
    ]
    steps = {arm: figures(answers)["tokens_per_step"] for arm, answers in served.items()}
    found.append(most("Tokens a step", steps))
    first, *others = served
    for arm in others:
        whole = ratio(tokens_and_steps(served[arm]), tokens_and_steps(served[first]))
        by_set = ", ".join(f"{one} {_set_ratio(served, arm, first, one)}" for one in sets)
        found.append(
            f"{arm} against {first}: {whole} times the tokens a step, {whole.verdict}; {by_set}."
        )
    return found


def _set_ratio(served: Mapping[str, Sequence[Served]], arm: str, first: str, data_set: str) -> str:
    one, base = (tokens_and_steps(_of_set(served[name], data_set)) for name in (arm, first))
    return f"{ratio(one, base).value:.2f}"
