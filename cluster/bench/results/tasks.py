"""Part `tasks`: tokens a step and time a token of the configured drafters, and of drafters that
learn, by set and task, one request at a time, against plain decoding in the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from actors.request_manager.config import SpeculationConfig
from actors.request_manager.drafter_names import NGRAM, SSM, SUFFIX
from actors.request_manager.drafters import GRAMMAR
from cluster.bench.results.comparing import ratio, seconds_and_tokens
from cluster.bench.results.document import Cell, bullets, table
from cluster.bench.results.setting import TEMPERATURES, Findings, Setting, temperature_name
from cluster.bench.results.statements import at_least, at_most, most
from cluster.bench.served import ALL_TASKS, Arm, Served, figures, serve_in_turns

TITLE = "Tokens a step and time a token, by task"
PLAIN, CONFIGURED, SHARED, OWN = "plain", "configured", "suffix shared", "suffix own"
SPEC_BENCH = "spec_bench"
EXPECTED_STEPS = {
    "greedy": ((SPEC_BENCH, 2.4), ("code_edit", 2.8), ("text2sql", 2.8), ("agentic", 2.8)),
    "T = 1": ((SPEC_BENCH, 1.6),),
}
"""Tokens a step that were asked for; sets by how their names begin."""
EXPECTED_TIME = ((SPEC_BENCH, 0.65), (f"{SPEC_BENCH}/summarization", 0.5), ("code_edit", 0.5))
"""Time a token, in plain decoding's."""

ByArm = Mapping[str, Sequence[Served]]


def arms_of(speculation: SpeculationConfig, has_models: bool) -> dict[str, SpeculationConfig]:
    """What each arm makes of the configuration."""
    learning = (*([SSM] if has_models else []), GRAMMAR, SUFFIX, NGRAM)
    changes: dict[str, dict[str, Any]] = {
        PLAIN: {"drafters": ()},
        CONFIGURED: {},
        SHARED: {"drafters": learning, "suffix_global": True},
        OWN: {"drafters": learning, "suffix_global": False},
    }
    return {arm: speculation.model_copy(update=change) for arm, change in changes.items()}


async def measure(setting: Setting) -> Findings:
    parts, found = [_legend(setting)], {}
    for temperature in TEMPERATURES:
        name = temperature_name(temperature)
        served = await _serve(setting, temperature)
        parts.append(f"### {name}\n\n{_report(name, served)}")
        found[name] = {
            arm: {label: figures(one) for label, one in _by_label(answers).items()}
            for arm, answers in served.items()
        }
    return Findings("\n\n".join(parts), found)


async def _serve(setting: Setting, temperature: float) -> dict[str, list[Served]]:
    """With engines of their own, that have learnt what steps and drafters cost, but no answer to
    the prompts that count."""
    arms = arms_of(setting.config.speculation, bool(setting.config.ssms))
    expansion = setting.config.speculation.expansion
    models = {
        f"{SSM}-{index}": setting.draft_model(index, expansion)
        for index in range(len(setting.config.ssms))
    }
    async with AsyncExitStack() as resources:
        engines = {
            arm: Arm(await resources.enter_async_context(setting.lab.engine(config, models)))
            for arm, config in arms.items()
        }
        await serve_in_turns(engines, setting.asked_before(temperature))
        return await serve_in_turns(engines, setting.asked(temperature))


def _legend(setting: Setting) -> str:
    speculation = setting.config.speculation
    learning = arms_of(speculation, bool(setting.config.ssms))[SHARED].drafters
    count = len(setting.warming)
    return (
        f"*{CONFIGURED}*: drafters {', '.join(speculation.drafters) or 'none'}. *{SHARED}* and "
        f"*{OWN}*: {', '.join(learning)}, where `suffix` learns from all answers or from the own "
        f"text alone. Budget `{speculation.budget}`, batch 1, {setting.config.model.dtype}, in one "
        f"process without Ray, gRPC and HTTP; arms take turns. Each has answered "
        f"{count} other prompts before, which are not counted."
    )


def _by_label(answers: Sequence[Served]) -> dict[str, list[Served]]:
    """By task, by set where that has several tasks, and over all; without those of one token."""
    found: dict[str, list[Served]] = {}
    for one in answers:
        for label in dict.fromkeys((ALL_TASKS, one.task.partition("/")[0], one.task)):
            found.setdefault(label, [])
            if one.stats.num_llm_steps:
                found[label].append(one)
    return {label: chosen for label, chosen in found.items() if chosen}


def _report(temperature: str, served: ByArm) -> str:
    grouped = {arm: _by_label(answers) for arm, answers in served.items()}
    drafting = [arm for arm in served if arm != PLAIN]
    labels = sorted(label for label in grouped[PLAIN] if all(label in grouped[a] for a in drafting))
    steps: list[list[Cell]] = [
        [label, *(_steps(grouped[arm][label]) for arm in drafting)] for label in labels
    ]
    times: list[list[Cell]] = []
    for label in labels:
        plain = grouped[PLAIN][label]
        of_plain = (_time_ratio(grouped[arm][label], plain) for arm in drafting)
        times.append([label, figures(plain)["ms_per_token"], *of_plain])
    same = {
        arm: sum(
            a.token_ids == b.token_ids for a, b in zip(served[arm], served[PLAIN], strict=True)
        )
        for arm in drafting
    }
    return "\n\n".join(
        [
            "Tokens a step:",
            table(["task", *drafting], steps),
            "Milliseconds a token of plain decoding, and the others' time in plain decoding's:",
            table(["task", "plain ms", *drafting], times),
            bullets([*_statements(temperature, served), _sameness(same, len(served[PLAIN]))]),
        ]
    )


def _steps(answers: Sequence[Served]) -> float:
    return figures(answers)["tokens_per_step"]


def _time_ratio(answers: Sequence[Served], plain: Sequence[Served]) -> float:
    return figures(answers)["ms_per_token"] / figures(plain)["ms_per_token"]


def _sameness(same: Mapping[str, int], count: int) -> str:
    told = ", ".join(f"{arm} {number}" for arm, number in same.items())
    return f"Texts that are plain decoding's, of {count}: {told}."


def _statements(temperature: str, served: ByArm) -> list[str]:
    drafting = [arm for arm in served if arm != PLAIN]
    found = [most("Tokens a step over all", {arm: _steps(served[arm]) for arm in drafting})]
    for arm in drafting:
        whole = ratio(seconds_and_tokens(served[arm]), seconds_and_tokens(served[PLAIN]))
        found.append(f"{arm}: {whole} times plain decoding's time a token over all.")
        found += _asked(temperature, arm, served)
        found.append(_slower(arm, served))
    return found


def _asked(temperature: str, arm: str, served: ByArm) -> list[str]:
    """What was asked for and what came of it."""
    found = []
    for label, wanted in EXPECTED_STEPS[temperature]:
        if chosen := _beginning(served[arm], label):
            found.append(at_least(f"{arm}, tokens a step on {label}", _steps(chosen), wanted))
    for label, wanted in EXPECTED_TIME if temperature == "greedy" else ():
        chosen, plain = (_beginning(served[which], label) for which in (arm, PLAIN))
        if chosen and plain:
            share = ratio(seconds_and_tokens(chosen), seconds_and_tokens(plain))
            found.append(at_most(f"{arm}, of plain's time a token on {label}", share, wanted))
    return found


def _beginning(answers: Sequence[Served], label: str) -> list[Served]:
    """Those of tasks that begin so; none if none of them had a step."""
    chosen = [one for one in answers if one.task.startswith(label)]
    return chosen if any(one.stats.num_llm_steps for one in chosen) else []


def _slower(arm: str, served: ByArm) -> str:
    one, plain = _by_label(served[arm]), _by_label(served[PLAIN])
    ratios = {label: _time_ratio(one[label], plain[label]) for label in plain if label in one}
    slower = [f"{label} ({share:.2f})" for label, share in ratios.items() if share > 1.0]
    return f"{arm}, tasks slower than plain: {', '.join(slower) or 'none'}."
