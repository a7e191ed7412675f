"""What watching costs: everything on against everything off, in interleaved pairs on two servers.

    python -m cluster.bench.observability CONFIG [--batches 1 16] [--pairs 10] [--per-stream 4]
                                                 [--prompts FILE]

On is every request traced to a collector, a line of JSON in the log for each, and all metrics
scraped every five seconds; off is the configuration with none of these (metrics are counted in any
case). Collector and scraper run on the same machine and cost their share. The servers take turns,
the other one idle meanwhile; see `paired_runs` for what is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from cluster.bench.paired_runs import add_arguments, plan_of, print_pairs, read_prompts, run_pairs
from cluster.bench.raw_client import stream_completion
from cluster.bench.server import free_port, running_server
from cluster.config import load_config

SCRAPE_S = 5.0
OFF: dict[str, Any] = {"logs": {"level": "error"}, "tracing": {"endpoint": None}}


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None and sys.argv[1:2] == ["--collector"]:
        return _collect(int(sys.argv[2]))
    parser = argparse.ArgumentParser(
        prog="python -m cluster.bench.observability", description=__doc__
    )
    add_arguments(parser, (1, 16))
    arguments = parser.parse_args(argv)
    prompts = read_prompts(load_config(arguments.config), arguments.prompts)
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        collector = resources.enter_context(_running_collector())
        watched = {
            "logs": {"level": "info", "format": "json"},
            "tracing": {"endpoint": collector, "sample": 1.0},
        }
        urls = {
            name: resources.enter_context(
                running_server(_changed(arguments.config, more, folder, name), folder / f"{name}.log")
            )
            for name, more in (("off", OFF), ("on", watched))
        }
        resources.enter_context(_scraping(urls["on"]))
        arms = {
            name: functools.partial(stream_completion, url, more={"return_token_ids": True})
            for name, url in urls.items()
        }
        found = asyncio.run(run_pairs(prompts, arms, plan_of(arguments)))
    print_pairs(found)
    return 0


def _changed(config: Path, more: dict[str, Any], folder: Path, name: str) -> Path:
    """A copy of a configuration file with some sections replaced."""
    content = yaml.safe_load(config.read_text()) | more
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def _scraping(url: str) -> Iterator[None]:
    """Read the metrics of all processes of a server again and again, as Prometheus would."""
    is_over = threading.Event()

    def scrape() -> None:
        with httpx.Client(timeout=SCRAPE_S) as client:
            while not is_over.wait(SCRAPE_S):
                groups = client.get(f"{url}/metrics/targets").json()
                addresses = [address for group in groups for address in group["targets"]]
                for address in addresses:
                    client.get(f"http://{address}/metrics").raise_for_status()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _running_collector() -> Iterator[str]:
    """A process that takes spans and throws them away; yields its address."""
    port = free_port()
    command = [sys.executable, "-m", "cluster.bench.observability", "--collector", str(port)]
    with subprocess.Popen(command) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


class _Sink(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _collect(port: int) -> int:
    ThreadingHTTPServer(("127.0.0.1", port), _Sink).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
