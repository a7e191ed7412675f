"""Keeps actors alive: starts them, and starts them again when they are lost.

The ranks of one LLM hold one state between them, so they are replaced together, in the bundles
that they had, and meet anew at an address that the first one opens; a draft model is a group of
one. An actor that hangs looks alive, hence nothing is
asked of the old ones: they are killed. What they held is only a cache; whoever uses them knows how
to go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from actors.errors import PeerTimeout
from cluster import ray_api
from cluster.placement import Place

logger = logging.getLogger(__name__)

BodyMaker = Callable[..., ray_api.ActorBody]
"""Called with a `Meeting` where the group has several processes, else with nothing."""


class ActorGroup:
    """Processes that are started and replaced together.

    Args:
        name: what they are; process lists show it.
        makers: for each process, what makes its body; run in the process itself.
        places: where they go.
        group: the reservation that `places` point into.
        start_timeout_s: how long they may take to start.
        note: is told True when they work, False when they have to be replaced.

    Attributes:
        metrics_addresses: of the processes that run, in order.
    """

    def __init__(
        self,
        name: str,
        makers: Sequence[BodyMaker],
        places: Sequence[Place],
        group: ray_api.PlacementGroup,
        start_timeout_s: float,
        note: Callable[[bool], None],
    ) -> None:
        self._name = name
        self._note = note
        self._makers = makers
        self._places = places
        self._group = group
        self._start_timeout_s = start_timeout_s
        self._processes: list[ray_api.ActorProcess] = []
        self.metrics_addresses: list[str] = []

    async def start(self) -> list[str]:
        """Start every process; returns their addresses, in order.

        Raises:
            PeerTimeout: one has not started in time; none is left running.
            TreeServeError: one cannot start; none is left running.
        """
        self._processes = [
            ray_api.ActorProcess(self._name, make, self._group, place.bundle, place.resources)
            for make, place in zip(self._makers, self._places, strict=True)
        ]
        try:
            async with asyncio.timeout(self._start_timeout_s):
                place = await self._processes[0].open_meeting() if len(self._makers) > 1 else None
                starts = [process.start(place) for process in self._processes]
                started = await asyncio.gather(*starts)
        except TimeoutError:
            self.kill()
            raise PeerTimeout(
                f"{self._name} has not started within {self._start_timeout_s:g} s "
                "(llm.start_timeout_s)"
            ) from None
        except BaseException:
            self.kill()
            raise
        self.metrics_addresses = [addresses.metrics for addresses in started]
        self._note(True)
        return [addresses.service for addresses in started]

    async def restart(self) -> list[str]:
        """Replace every process, dead or alive; returns the new addresses. Raises as `start`."""
        logger.warning("%s: starting again", self._name)
        self._note(False)
        self.kill()
        return await self.start()

    def kill(self) -> None:
        """End every process at once."""
        processes, self._processes = self._processes, []
        self.metrics_addresses = []
        for process in processes:
            process.kill()
