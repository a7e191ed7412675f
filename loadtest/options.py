"""The arguments of `python -m loadtest`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from loadtest.arrivals import PROCESSES
from loadtest.errors import UsageError
from loadtest.numerals import above_zero, count, not_negative, share, whole
from loadtest.target import CHAT, PATHS
from loadtest.validity import ValidityLimits

CLOSED, TRACE = "closed", "trace"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage of forty options above it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help lists all)")


def parser() -> argparse.ArgumentParser:
    """All arguments, with their defaults; parsing wrong ones raises `UsageError`."""
    parser = _Parser(
        prog="python -m loadtest",
        description="Measures an OpenAI-style server under load. Writes report.html, report.json, "
        "requests.jsonl and schedule.jsonl to --out; the last line on stdout is JSON. Exit status: "
        "0 valid and within the SLO, 1 not so, 2 wrong use.",
    )
    parser.add_argument("url", metavar="URL", help="address of the server, with or without /v1")
    _add_server(parser.add_argument_group("server"))
    _add_arrivals(parser.add_argument_group("arrivals"))
    _add_workload(parser.add_argument_group("workload"))
    _add_experiment(parser.add_argument_group("experiment"))
    _add_judging(parser.add_argument_group("judging"))
    _add_limits(parser.add_argument_group("limits"))
    parser.add_argument("--out", type=Path, default=Path("loadtest-report"), metavar="DIR")
    return parser


def _add_server(group: Any) -> None:  # noqa: ANN401 - argparse's groups have no public type
    group.add_argument("--endpoint", choices=sorted(PATHS), default=CHAT)
    group.add_argument("--model", default="", help="default: the first that the server names")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="sent as a bearer token")
    group.add_argument("--insecure", action="store_true", help="do not verify TLS certificates")
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="tokenizer.json or its folder: exact prompt lengths, and counts where the server "
        "tells none",
    )


def _add_arrivals(group: Any) -> None:  # noqa: ANN401
    group.add_argument("--arrivals", choices=[*PROCESSES, TRACE, CLOSED], default="poisson")
    group.add_argument(
        "--rate", type=above_zero, metavar="R", help="requests a second (trace: scaled)"
    )
    group.add_argument("--burstiness", type=above_zero, default=1.0, help="gamma: 1 is Poisson")
    group.add_argument(
        "--start-rate", type=not_negative, default=0.0, metavar="R", help="of a ramp"
    )
    group.add_argument("--trace", type=Path, metavar="FILE", help="Azure CSV or Mooncake JSONL")
    group.add_argument(
        "--length-scale", type=above_zero, default=1.0, help="factor on trace lengths"
    )
    group.add_argument("--duration-s", type=above_zero, metavar="S")
    group.add_argument("--requests", type=count, metavar="N")
    group.add_argument("--concurrency", type=count, default=1, metavar="N", help="users, if closed")
    group.add_argument(
        "--max-open", type=count, metavar="N", help="open loop: at most so many open"
    )
    group.add_argument("--seed", type=whole, default=0, metavar="N")
    group.add_argument("--replay", type=Path, metavar="FILE", help="a saved schedule.jsonl")


def _add_workload(group: Any) -> None:  # noqa: ANN401
    group.add_argument("--workload", type=Path, nargs="+", default=[], metavar="PATH")
    group.add_argument("--prompt-tokens", metavar="A[-B]", help="fit prompts to this length")
    group.add_argument("--output-tokens", default="128", metavar="A[-B]", help="default: 128")
    group.add_argument("--exact-output", action="store_true", help="send ignore_eos")
    group.add_argument("--families", type=whole, default=0, metavar="N", help="of shared prefixes")
    group.add_argument("--prefix-tokens", type=whole, default=0, metavar="N")
    group.add_argument("--turns", type=count, default=1, metavar="N", help="of a conversation")
    group.add_argument(
        "--think-s", type=not_negative, default=0.0, metavar="S", help="between turns"
    )
    group.add_argument("--cancel-share", type=share, default=0.0, metavar="P")
    group.add_argument("--temperature", type=not_negative, default=0.0, metavar="T")
    group.add_argument("--body", default="{}", metavar="JSON", help="fields of every body")
    group.add_argument(
        "--vary", action="append", default=[], metavar="FIELD=JSON_LIST", help="drawn per request"
    )
    group.add_argument("--allow-repeats", action="store_true", help="repeat prompts as they are")


def _add_experiment(group: Any) -> None:  # noqa: ANN401
    group.add_argument("--sweep", metavar="R,R,…", help="rates (closed: users), one after another")
    group.add_argument("--search", metavar="LOW,HIGH", help="highest rate within the SLO")
    group.add_argument(
        "--tolerance", type=above_zero, default=0.1, help="of the search; default: 0.1"
    )
    group.add_argument("--against", metavar="URL", help="a second server, as arm B")
    group.add_argument("--arm-a", metavar="JSON", help="fields of the body of arm A alone")
    group.add_argument("--arm-b", metavar="JSON", help="the same of arm B")
    group.add_argument("--names", default="A,B", metavar="A,B", help="of the arms")
    group.add_argument(
        "--blocks", type=count, default=4, metavar="N", help="that the arms take turns"
    )
    group.add_argument("--require-equal", action="store_true", help="fail if answers differ")


def _add_judging(group: Any) -> None:  # noqa: ANN401
    group.add_argument("--slo", metavar="ttft=S,tpot=S,…", help="ttft, tpot, e2e, gap, …")
    group.add_argument("--slo-share", type=share, default=0.9, metavar="P", help="default: 0.9")
    group.add_argument("--warmup-s", type=not_negative, default=0.0, metavar="S")
    group.add_argument("--cooldown-s", type=not_negative, default=0.0, metavar="S")
    limits = ValidityLimits()
    group.add_argument("--max-lag-ms", type=not_negative, default=1e3 * limits.lag_p99_s)
    group.add_argument("--max-cpu", type=not_negative, default=limits.cpu_share, metavar="SHARE")


def _add_limits(group: Any) -> None:  # noqa: ANN401
    group.add_argument("--timeout-s", type=above_zero, default=300.0, help="whole answer")
    group.add_argument("--silence-s", type=above_zero, default=60.0, help="between two reads")
    group.add_argument("--connect-s", type=above_zero, default=10.0)
    group.add_argument(
        "--scrape-s", type=above_zero, default=1.0, help="pause between looks at /metrics"
    )
