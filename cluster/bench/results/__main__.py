"""What speculation brings, in one run, as a document.

    python -m cluster.bench.results CONFIG --data FOLDER [--parts …] [--out docs/results.md]

FOLDER holds prompt sets, a folder each (`data_sets`). Every part measures on the same prompts,
writes its section of the document as soon as it is done, and leaves the others as they are. Draft
models are the configuration's; `--rivals` names more to hold them against. Prints all figures as
one JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actors.errors import TreeServeError
from cluster.bench.lab import Lab
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.results import batches, coverage, rules, tasks, widths
from cluster.bench.results.data_sets import SETS, Encode, SetPrompt, load_sets
from cluster.bench.results.document import with_section
from cluster.bench.results.provenance import Provenance
from cluster.bench.results.setting import Findings, Limits, Setting
from cluster.config import Config, load_config
from cluster.generate_command import encode_messages
from cluster.models import resolve_draft_model, resolve_model
from cluster.tokenizer import load_tokenizer


class Part(NamedTuple):
    """What can be measured by itself.

    Attributes:
        title: of its section.
        needs_models: it measures draft models and nothing else.
    """

    title: str
    measure: Callable[[Setting], Coroutine[Any, Any, Findings]]
    needs_models: bool = False


PARTS: Mapping[str, Part] = {
    "coverage": Part(coverage.TITLE, coverage.measure, needs_models=True),
    "widths": Part(widths.TITLE, widths.measure, needs_models=True),
    "rules": Part(rules.TITLE, rules.measure, needs_models=True),
    "tasks": Part(tasks.TITLE, tasks.measure),
    "batches": Part(batches.TITLE, batches.measure),
}
"""In the order of the document's sections."""
OUT = Path("docs/results.md")


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config)
        parts = _chosen(arguments.parts, bool(config.ssms or arguments.rivals))
        path = resolve_model(config.model.path)
        for model in arguments.rivals:
            resolve_draft_model(model)
        encode = functools.partial(encode_messages, load_tokenizer(path).tokenizer)
        prompts = load_sets(
            arguments.data, arguments.sets, arguments.limit, arguments.max_prompt_tokens, encode
        )
    except TreeServeError as error:
        parser.error(str(error))
    provenance = Provenance.now(arguments.out)
    figures = {}
    setting = _setting(arguments, config, path, prompts, _warming(encode))
    for name, part in parts.items():
        since = time.monotonic()
        found = asyncio.run(part.measure(setting))
        taken_s = time.monotonic() - since
        body = f"{provenance} {_what(arguments, prompts)}, {taken_s:.0f} s.\n\n{found.markdown}"
        _write(arguments.out, part.title, body)
        figures[name] = {"seconds": taken_s, **found.figures}
        print(f"{name}: {taken_s:.0f} s", file=sys.stderr)
    print(json.dumps(figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.results", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="NAME", help="may hold *")
    parser.add_argument(
        "--limit", type=int, default=2, metavar="N", help="prompts of each task of a set"
    )
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N", help="of an answer")
    parser.add_argument("--max-prompt-tokens", type=int, default=2048, metavar="N")
    parser.add_argument("--nodes", type=int, default=16, metavar="N", help="of a pool's tree")
    parser.add_argument("--rivals", nargs="+", default=[], metavar="SSM", help="as in `ssms`")
    parser.add_argument("--pairs", type=int, default=10, metavar="N", help="of each batch size")
    parser.add_argument("--per-stream", type=int, default=2, metavar="N", help="answers in a pair")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    return parser


def _chosen(wanted: Sequence[str], has_models: bool) -> dict[str, Part]:
    """In the document's order; those that need draft models only where there are some."""
    chosen = {name: part for name, part in PARTS.items() if name in wanted}
    for name in [name for name, part in chosen.items() if part.needs_models and not has_models]:
        print(f"{name}: left out, for there are no draft models", file=sys.stderr)
        del chosen[name]
    return chosen


def _warming(encode: Encode) -> list[SetPrompt]:
    """Prompts of our own, which stand in no set."""
    return [
        SetPrompt("own", prompt.task, encode([{"role": "user", "content": prompt.text}]))
        for prompt in load_prompts(SAMPLE, 1)
    ]


def _setting(
    arguments: argparse.Namespace,
    config: Config,
    path: Path,
    prompts: Sequence[SetPrompt],
    warming: Sequence[SetPrompt],
) -> Setting:
    limits = Limits(arguments.max_tokens, arguments.nodes, arguments.pairs, arguments.per_stream)
    lab = Lab.load(config, path)
    return Setting(config, arguments.config, path, lab, prompts, warming, arguments.rivals, limits)


def _what(arguments: argparse.Namespace, prompts: Sequence[SetPrompt]) -> str:
    """What was asked, in words."""
    sets = Counter(prompt.data_set for prompt in prompts)
    told = ", ".join(f"{name} {count}" for name, count in sets.items())
    return (
        f"`{arguments.config.name}`; {len(prompts)} prompts ({told}) of at most "
        f"{arguments.max_prompt_tokens} tokens, answers of at most {arguments.max_tokens}"
    )


def _write(path: Path, title: str, body: str) -> None:
    document = path.read_text(encoding="utf-8") if path.is_file() else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    titles = [part.title for part in PARTS.values()]
    path.write_text(with_section(document, titles, title, body), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
