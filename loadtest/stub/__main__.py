"""`python -m loadtest.stub [SCRIPT] [--host] [--port] [--log]`: serve a script until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from loadtest.errors import UsageError
from loadtest.stub.script import Script, read_script
from loadtest.stub.server import StubServer


def main() -> int:
    """Serve; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.stub", description=__doc__)
    parser.add_argument("script", nargs="?", type=Path, help="JSON; default: one plain answer")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--log", type=Path, help="write what was sent, and when, as JSON lines")
    arguments = parser.parse_args()
    try:
        script = read_script(arguments.script) if arguments.script else Script()
    except UsageError as error:
        parser.error(str(error))
    try:
        if arguments.log is not None:
            arguments.log.open("a").close()
        asyncio.run(_serve(script, arguments))
    except (OSError, OverflowError) as error:
        print(f"loadtest.stub: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(script: Script, arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with StubServer(script, arguments.host, arguments.port, arguments.log) as server:
        print(f"stub on {server.address}", flush=True)
        await ended.wait()


if __name__ == "__main__":
    raise SystemExit(main())
