"""The server's own account: its `/metrics` before, during and after a run (Prometheus text format).

While the run lasts the text is only kept, with its time; parsing waits until the clock is no
longer needed. A server without the page is measured without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadtest.failures import FOREIGN

SCRAPE_TIMEOUT_S = 5.0
MOST_PAGES = 240
"""Kept of one stretch: with more, every other one is dropped and the pause doubles, so that a long
run's pages fit the memory.
"""


@dataclass
class Scrapes:
    """Pages as they came: time (of the event loop's clock) and text."""

    pages: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ServerSide:
    """What changed on the server while it was measured.

    Attributes:
        counters: how much each series of a counter, and the sum and count of each histogram, grew.
        gauges: of each series, its values in time.
        times_s: of the gauges' values.
        restarted: whether some counter fell: another process answered at the end.
    """

    counters: dict[str, float]
    gauges: dict[str, list[float]]
    times_s: list[float]
    restarted: bool

    def mean(self, histogram: str) -> float | None:
        """Mean of what a histogram saw during the run, over all its series."""
        total = self.total(f"{histogram}_sum")
        count = self.total(f"{histogram}_count")
        return total / count if total is not None and count else None

    def total(self, name: str) -> float | None:
        """Growth of a counter over all its series; None if the server has none of that name."""
        found = [
            value for series, value in self.counters.items() if series.partition("{")[0] == name
        ]
        return sum(found) if found else None


@contextlib.asynccontextmanager
async def scraping(
    session: aiohttp.ClientSession, base_url: str, headers: dict[str, str], every_s: float
) -> AsyncIterator[Scrapes]:
    """Scrape at the start, every so often, and at the end of the body."""
    scrapes, url = Scrapes(), f"{base_url}/metrics"
    await _scrape(session, url, headers, scrapes)
    task = None
    if scrapes.pages:
        task = asyncio.create_task(_keep_scraping(session, url, headers, scrapes, every_s))
    try:
        yield scrapes
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await _scrape(session, url, headers, scrapes)


async def _keep_scraping(
    session: aiohttp.ClientSession,
    url: str,
    headers: dict[str, str],
    scrapes: Scrapes,
    every_s: float,
) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _scrape(session, url, headers, scrapes)
        if len(scrapes.pages) > MOST_PAGES:
            del scrapes.pages[1:-1:2]
            every_s *= 2


async def _scrape(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str], scrapes: Scrapes
) -> None:
    limit = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
    with contextlib.suppress(*FOREIGN, UnicodeDecodeError):
        async with session.get(url, headers=headers, timeout=limit) as response:
            if response.status == 200:
                text = await response.text()
                scrapes.pages.append((asyncio.get_running_loop().time(), text))


def server_side(scrapes: Scrapes) -> ServerSide | None:
    """Read the pages; None if there are fewer than two, or they are not metrics."""
    try:
        read = [(at_s, *_series(text)) for at_s, text in scrapes.pages]
    except ValueError:
        return None
    if len(read) < 2:
        return None
    first, last = read[0][1], read[-1][1]
    grown = {name: value - first.get(name, 0.0) for name, value in last.items()}
    gauges: dict[str, list[float]] = {name: [] for name in read[0][2]}
    for _, _, values in read:
        for name, series in gauges.items():
            series.append(values.get(name, float("nan")))
    restarted = any(value < 0 for value in grown.values())
    return ServerSide(grown, gauges, [at_s for at_s, _, _ in read], restarted)


def _series(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Counters (with the sums, counts and buckets of histograms) and gauges, by series."""
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            chosen = counters if _only_grows(family.type, sample.name) else gauges
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            chosen[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return counters, gauges


def _only_grows(kind: str, name: str) -> bool:
    """Whether a sample counts. A summary's quantiles and what has no type may fall, but for what is
    named as a counter: OpenMetrics declares it without its `_total`.
    """
    if kind == "summary":
        return name.endswith(("_sum", "_count"))
    return kind in ("counter", "histogram") or (kind == "unknown" and name.endswith("_total"))
