"""The `treeserve` command: arguments, and exit statuses.

0 good, 1 the work failed, 2 wrong use (which a configuration with mistakes is). Errors that a user
can mend are one line on stderr, never a traceback. Each command is a module, named here and
imported only when it is asked for: `validate` needs neither torch nor Ray, and `serve` lies above
this folder.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.errors import ConfigError, InputError, TreeServeError

COMMANDS = {
    "serve": "deploy.serve_command",
    "drain": "deploy.drain_command",
    "swap": "deploy.swap_command",
    "generate": "cluster.generate_command",
    "validate": "deploy.validate_command",
    "bench": "cluster.bench_command",
    "tune": "cluster.tune_command",
}
"""Modules with a function `run(arguments) -> int`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    command = importlib.import_module(COMMANDS[arguments.command])
    try:
        return int(command.run(arguments))
    except (ConfigError, InputError) as error:
        _complain(error)
        return 2
    except TreeServeError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        print("treeserve: interrupted", file=sys.stderr)
        return 1


def _complain(error: TreeServeError) -> None:
    for line in str(error).splitlines() or [type(error).__name__]:
        print(f"treeserve: {line}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="treeserve", description="Serves a large language model with token-tree speculation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve a configuration file over HTTP")
    _add_config(serve)
    serve.add_argument("--host", help="address to listen on, instead of the configuration's")
    serve.add_argument("--port", type=int, help="port, instead of the configuration's")
    _add_drain(commands.add_parser("drain", help="let this machine's server end what it has begun"))
    _add_swap(commands.add_parser("swap", help="other draft models for a server that runs"))
    _add_generate(commands.add_parser("generate", help="one answer on stdout, no HTTP"))
    validate = commands.add_parser(
        "validate", help="show all mistakes of a configuration, and its placement; start nothing"
    )
    _add_config(validate)
    _add_tune(commands.add_parser("tune", help="distil a draft model from the LLM's answers"))
    _add_bench(commands.add_parser("bench", help="measure steps and modes of speculation"))
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="configuration file (YAML)")


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "For a machine that is about to go away: the server on it takes no more requests, and the "
        "command ends when those that run have ended. Where nothing is served it does nothing."
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000")
    parser.add_argument(
        "--grace-s", type=float, default=600.0, metavar="S", help="wait at most; default: 600"
    )


def _add_swap(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Puts the draft models of CONFIG (its `ssms`; nothing else of it counts) in the place of "
        "those that the application on this machine's Ray cluster runs, while it serves. If one of "
        "them cannot be used nothing changes. A `treeserve serve` does the same on SIGHUP, with "
        "its own configuration file."
    )
    _add_config(parser)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Single steps beside the floor and beside transformers; trees against sequences; calls of "
        "the draft model; then modes of speculation over HTTP on a server of their own, with "
        "acceptance by depth and foretold speed-up. Tables, then one JSON line."
    )
    _add_config(parser)
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="default: a few of our own")
    number: dict[str, Any] = {"type": _positive, "metavar": "N"}
    parser.add_argument("--per-task", default=10, **number, help="prompts; default: 10")
    parser.add_argument("--limit", **number, help="prompts of all tasks together")
    parser.add_argument("--max-tokens", default=128, **number, help="default: 128")
    parser.add_argument(
        "--temperature", type=float, nargs="+", default=[0.0], metavar="T", help="default: 0"
    )
    parser.add_argument("--seeds", default=1, **number, help="of each prompt at T > 0; default: 1")
    parser.add_argument("--context", default=256, **number, help="of single steps; default: 256")
    parser.add_argument("--rounds", **number, help="of what is measured without a server")
    parser.add_argument(
        "--batches",
        type=_positive,
        nargs="+",
        default=[1, 2, 4, 8, 16],
        metavar="N",
        help="requests with a tree each; default: 1 2 4 8 16",
    )
    parser.add_argument(
        "--widths",
        type=_positive,
        nargs="+",
        default=[1, 1, 3, 1, 1, 1, 1, 1],
        metavar="K",
        help="of those trees, by depth; default: 1 1 3 1 1 1 1 1",
    )
    parser.add_argument(
        "--streams", type=int, default=8, metavar="N", help="open at once; 0: none; default: 8"
    )
    parser.add_argument("--modes", nargs="+", metavar="MODE", help="plain, a drafter, merged; all")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=["steps", "verification", "draft_calls", "modes"],
        help="what to measure; default: all",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON line there too")


def _add_tune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Distil a draft model from the LLM's own answers, and print how often it covers the LLM's "
        "word. Killed and called again with the same arguments, it goes on where it was."
    )
    _add_config(parser)
    files: dict[str, Any] = {"type": Path, "nargs": "+", "default": [], "metavar": "FILE"}
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write it")
    parser.add_argument("--data", **files, help="answers of this LLM as token ids (JSON lines)")
    parser.add_argument("--prompts", **files, help="prompts or passages to answer (JSON lines)")
    parser.add_argument("--own-prompts", default=2000, **number, help="of ours; default: 2000")
    parser.add_argument("--answer-tokens", default=128, **number, help="of one; default: 128")
    parser.add_argument("--generate-tokens", **number, help="stop answering after so many")
    parser.add_argument(
        "--records", **{**files, "metavar": "DIR"}, help="earlier --out folders: their answers too"
    )
    parser.add_argument("--sampled", type=float, default=0.15, metavar="SHARE", help="at T = 1")
    parser.add_argument("--evaluate", **files, help="prompts to measure on, never learnt from")
    parser.add_argument(
        "--terms", nargs="+", default=[], metavar="SET=TEXT", help="for the card: origin, licence"
    )
    parser.add_argument(
        "--init", type=Path, metavar="DIR", help="a draft whose weights to start from"
    )
    parser.add_argument("--pool", default=1, **number, help="draft models to tune; default: 1")
    parser.add_argument(
        "--boost",
        choices=["places", "answers", "none"],
        default="places",
        help="what the next one of a pool learns less of, where those before it are right",
    )
    parser.add_argument(
        "--boost-rest", type=float, default=0.2, metavar="W", help="its weight then; default: 0.2"
    )
    parser.add_argument("--width", default=256, **number, help="default: 256")
    parser.add_argument("--layers", default=2, **number, help="default: 2")
    parser.add_argument("--ff", default=672, **number, help="width of the MLP; default: 672")
    parser.add_argument("--cut", default=12288, **number, help="words it can draft; default: 12288")
    parser.add_argument("--steps", default=1500, **number, help="default: 1500")
    parser.add_argument(
        "--matrix-rate", type=float, default=0.01, metavar="R", help="Muon's; default: 0.01"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="train at most so long")
    parser.add_argument(
        "--workers", **number, help="processes that train; default: one for each GPU, else one"
    )
    parser.add_argument(
        "--checkpoint-s", type=float, default=60.0, metavar="S", help="between two; default: 60"
    )
    parser.add_argument("--seed", default=0, **number)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "One answer on stdout, then statistics as one JSON line on stderr. If the model has a "
        "chat template, the prompt is put into it as the user's message; else it is continued."
    )
    _add_config(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default: 256")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="default: 0, greedy"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument(
        "--no-speculation", action="store_true", help="one token a step; the text is the same"
    )


if __name__ == "__main__":
    sys.exit(main())
