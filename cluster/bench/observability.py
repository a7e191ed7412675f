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
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from cluster.bench.paired_runs import add_arguments, plan_of, print_pairs, read_prompts, run_pairs
from cluster.bench.raw_client import stream_completion
from cluster.bench.server import free_port, server_of
from cluster.config import Config, config_of, load_config

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
    config = load_config(arguments.config)
    prompts = read_prompts(config, arguments.prompts)
    with ExitStack() as resources:
        collector = resources.enter_context(_running_collector())
        on = {
            "logs": {"level": "info", "format": "json"},
            "tracing": {"endpoint": collector, "sample": 1.0},
        }
        urls = {
            name: resources.enter_context(server_of(_changed(config, more)))
            for name, more in (("off", OFF), ("on", on))
        }
        scraper = resources.enter_context(_scraping(urls["on"]))
        arms = {
            name: functools.partial(stream_completion, url, more={"return_token_ids": True})
            for name, url in urls.items()
        }
        found = asyncio.run(run_pairs(prompts, arms, plan_of(arguments)))
    print(f"metrics were scraped {scraper.num_scrapes} times")
    print_pairs(found)
    if scraper.failure is not None:
        print(f"the scraper failed: {scraper.failure}", file=sys.stderr)
        return 1
    return 0


def _changed(config: Config, more: dict[str, Any]) -> Config:
    """The configuration with some sections replaced."""
    return config_of(config.model_dump(mode="json") | more)


class _Scraper(threading.Thread):
    """Reads the metrics of all processes of a server again and again, as Prometheus would.

    Attributes:
        num_scrapes: of all processes.
        failure: why it stopped before it was told to; None if it did not.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.num_scrapes = 0
        self.failure: httpx.HTTPError | None = None
        self._url = url
        self._is_over = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=SCRAPE_S) as client:
            try:
                while not self._is_over.wait(SCRAPE_S):
                    self._scrape(client)
            except httpx.HTTPError as error:
                self.failure = error

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _scrape(self, client: httpx.Client) -> None:
        for group in client.get(f"{self._url}/metrics/targets").raise_for_status().json():
            path = group["labels"].get("__metrics_path__", "/metrics")
            for address in group["targets"]:
                client.get(f"http://{address}{path}").raise_for_status()
        self.num_scrapes += 1


@contextmanager
def _scraping(url: str) -> Iterator[_Scraper]:
    scraper = _Scraper(url)
    scraper.start()
    try:
        yield scraper
    finally:
        scraper.stop()


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
