"""Runs plans against targets: one stretch after the other, each watched from all sides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from loadtest.client import Client, Limits
from loadtest.driver import Driver
from loadtest.plan import Plan, Session, blocks
from loadtest.progress import shown
from loadtest.records import RequestRecord
from loadtest.scrape import Scrapes, scraping
from loadtest.target import Target
from loadtest.vitals import Vitals, watch


@dataclass(frozen=True)
class RunSettings:
    """How plans are run.

    Attributes:
        num_users: of a closed loop.
        duration_s: a closed loop begins nothing after it.
        max_open: limit of open requests; None for none.
        scrape_every_s: pause between two looks at the server's metrics.
    """

    limits: Limits = field(default_factory=Limits)
    num_users: int = 1
    duration_s: float | None = None
    max_open: int | None = None
    scrape_every_s: float = 1.0


@dataclass
class Stretch:
    """What one uninterrupted run of some sessions brought.

    Attributes:
        start_s, end_s: on the event loop's clock.
        span_s: from the start to the last due time; 0 in a closed loop.
    """

    start_s: float
    end_s: float
    span_s: float
    num_planned: int
    records: list[RequestRecord]
    vitals: Vitals
    scrapes: Scrapes


@dataclass
class Measurement:
    """One arm at one load: the stretches that belong together.

    Attributes:
        load: requests a second, or users; None where a replayed schedule has its own.
        label: for people.
        stopped: broken off before all of its plan was played.
    """

    target: Target
    label: str
    load: float | None
    is_open: bool
    stretches: list[Stretch]
    stopped: bool = False

    @property
    def records(self) -> list[RequestRecord]:
        return [record for stretch in self.stretches for record in stretch.records]


class Lab:
    """Runs stretches, one at a time, and can be told to stop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._driver: Driver | None = None
        self.stopped = False

    def stop(self) -> None:
        """End the stretch that runs, and begin no other."""
        self.stopped = True
        if self._driver is not None:
            self._driver.stop()

    async def measure(
        self,
        targets: Sequence[Target],
        plan: Plan,
        settings: RunSettings,
        label: str,
        load: float | None,
        num_blocks: int,
    ) -> list[Measurement]:
        """One plan against one target, or against several in turn, block by block.

        With several targets the plan is cut into blocks, and each block is played to every target
        before the next; the order is turned round from block to block.
        """
        found = [Measurement(target, label, load, plan.is_open, []) for target in targets]
        parts = blocks(plan.sessions, num_blocks if len(targets) > 1 else 1)
        for number, part in enumerate(parts):
            for measurement in found if number % 2 == 0 else reversed(found):
                if self.stopped:
                    measurement.stopped = True
                    continue
                title = f"{label} {measurement.target.name}".strip()
                stretch = await self._stretch(
                    measurement.target, part, settings, title, plan.is_open
                )
                measurement.stretches.append(stretch)
                measurement.stopped |= self.stopped
        return found

    async def _stretch(
        self,
        target: Target,
        sessions: Sequence[Session],
        settings: RunSettings,
        title: str,
        is_open: bool,
    ) -> Stretch:
        clock = asyncio.get_running_loop().time
        client = Client(self._session, target, settings.limits)
        driver = self._driver = Driver(client.send, settings.max_open)
        num_planned = sum(len(session.requests) for session in sessions)
        async with (
            scraping(
                self._session, target.base_url, target.headers, settings.scrape_every_s
            ) as scrapes,
            shown(driver, title, num_planned),
            watch() as vitals,
        ):
            start_s = clock()
            if is_open:
                await driver.open_loop(sessions)
            else:
                await driver.closed_loop(sessions, settings.num_users, settings.duration_s)
            end_s = clock()
        span_s = max((session.at_s or 0.0 for session in sessions), default=0.0)
        return Stretch(
            start_s,
            end_s,
            span_s,
            num_planned,
            driver.records,
            vitals,
            scrapes,
        )
