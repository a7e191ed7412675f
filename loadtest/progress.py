"""Live progress: one line, redrawn on a terminal, now and then a new one elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import TextIO

from loadtest.driver import Driver
from loadtest.records import Outcome

REDRAW_S = 0.5
LINE_S = 15.0


@contextlib.asynccontextmanager
async def shown(
    driver: Driver, title: str, num_planned: int, out: TextIO | None = None
) -> AsyncIterator[None]:
    """Show how far a driver is while the body runs."""
    stream = sys.stderr if out is None else out
    task = asyncio.create_task(_keep_showing(driver, title, num_planned, stream))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        _show(_line(driver, title, num_planned), stream, last=True)


async def _keep_showing(driver: Driver, title: str, num_planned: int, out: TextIO) -> None:
    while True:
        await asyncio.sleep(REDRAW_S if out.isatty() else LINE_S)
        _show(_line(driver, title, num_planned), out, last=False)


def _line(driver: Driver, title: str, num_planned: int) -> str:
    ended = [record.outcome for record in driver.records if record.end_s is not None]
    good = ended.count(Outcome.OK)
    failed = sum(outcome.failed for outcome in ended)
    return (
        f"{title}: {len(driver.records)} of {num_planned} begun, {driver.num_open} open, "
        f"{good} good, {failed} failed"
    )


def _show(line: str, out: TextIO, *, last: bool) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more; the run goes on
        if out.isatty():
            print(f"\r\x1b[K{line}", end="\n" if last else "", file=out, flush=True)
        else:
            print(line, file=out, flush=True)
