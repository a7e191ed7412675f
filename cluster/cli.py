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

from actors.errors import ConfigError, InputError, TreeServeError

COMMANDS = {
    "serve": "deploy.serve_command",
    "generate": "cluster.generate_command",
    "validate": "cluster.validate_command",
    "bench": "cluster.bench_command",
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
    _add_generate(commands.add_parser("generate", help="one answer on stdout, no HTTP"))
    validate = commands.add_parser(
        "validate", help="show all mistakes of a configuration, and its placement; start nothing"
    )
    _add_config(validate)
    _add_bench(commands.add_parser("bench", help="measure steps and modes of speculation"))
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="configuration file (YAML)")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Single steps beside the floor and beside transformers, then modes of speculation over "
        "HTTP against a server of their own, all in one run. Tables, then one JSON line."
    )
    _add_config(parser)
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="default: a few of our own")
    parser.add_argument("--per-task", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0")
    parser.add_argument("--context", type=int, default=256, metavar="N", help="of single steps")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="open at once")


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
