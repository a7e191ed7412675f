"""Keeps actors alive: starts them, and starts them again when they are lost.

The ranks of one LLM hold one state between them, so they are replaced together, in the bundles
that they had, and meet anew at an address that the first one opens; a draft model is a group of
one. An actor that hangs looks alive, hence nothing is asked of the old ones: they are killed. What
they held is only a cache; whoever uses them knows how to go on.

A bundle whose node is lost goes to another one where it fits; if the cluster has no such node, the
start fails with what is missing. Processes listen on loopback, and those that somebody on another
node has to reach on the address under which Ray knows their node: nothing guards them there, so the
network between the nodes must be trusted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

from actors.errors import PeerTimeout, PeerUnavailable
from actors.rpc import LOOPBACK
from cluster import ray_actors, ray_api
from cluster.placement import Place

logger = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_S = 1.0
"""How often a start is looked at for room."""

ROOM_TIMEOUT_S = 60.0
"""For a bundle that has lost its node, while others use the room that there would be."""

NUM_TRIES = 3
"""Of finding nodes that live."""

BodyMaker = Callable[..., ray_actors.ActorBody]
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
        self._processes: list[ray_actors.ActorProcess] = []
        self.metrics_addresses: list[str] = []

    async def start(self) -> list[str]:
        """Start every process; returns their addresses, in order.

        Raises:
            PeerTimeout: one has not started in time; none is left running.
            PeerUnavailable: the cluster has no room for one; none is left running.
            TreeServeError: one cannot start; none is left running.
        """
        try:
            async with asyncio.timeout(self._start_timeout_s):
                started = await self._while_there_is_room(self._make_and_start())
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

    async def _make_and_start(self) -> list[ray_actors.Addresses]:
        nodes = await self._make_processes()
        place = None
        if len(nodes) > 1:
            place = await self._processes[0].open_meeting(listening_host(nodes[0], nodes))
        caller = ray_api.own_node()
        starts = [
            process.start(listening_host(node, [caller]), place)
            for process, node in zip(self._processes, nodes, strict=True)
        ]
        return await asyncio.gather(*starts)

    async def _make_processes(self) -> list[ray_api.Node]:
        """Returns where they run.

        One that dies before it says so was sent to a node that had died itself, which takes Ray a
        while to see; then its bundle has another one.
        """
        num_lost = 0
        while True:
            self._processes = [
                ray_actors.ActorProcess(
                    self._name, make, place.resources, self._group, place.bundle
                )
                for make, place in zip(self._makers, self._places, strict=True)
            ]
            try:
                return await asyncio.gather(*(process.node() for process in self._processes))
            except PeerUnavailable as error:
                num_lost += 1
                if num_lost == NUM_TRIES:
                    raise
                logger.warning("%s: %s; trying again", self._name, error)
                self.kill()

    async def _while_there_is_room(self, start: Awaitable[T]) -> T:
        """The start's result, unless the cluster loses the room for it: then PeerUnavailable."""
        starting, watching = asyncio.ensure_future(start), asyncio.create_task(self._watch_room())
        try:
            await asyncio.wait((starting, watching), return_when=asyncio.FIRST_COMPLETED)
            return watching.result() if watching.done() else await starting
        finally:
            for task in (starting, watching):
                task.cancel()

    async def _watch_room(self) -> NoReturn:
        whole_at = time.monotonic()
        bundles = {place.bundle for place in self._places}
        while True:
            if await asyncio.to_thread(self._group.has_nodes, bundles):
                whole_at = time.monotonic()
            elif time.monotonic() - whole_at > ROOM_TIMEOUT_S:
                raise PeerUnavailable(ray_api.NO_ROOM_LEFT)
            await asyncio.sleep(WATCH_S)


def listening_host(node: ray_api.Node, callers: Iterable[ray_api.Node]) -> str:
    """Where a process on `node` listens for callers: on loopback where they are all beside it."""
    return LOOPBACK if all(caller.id == node.id for caller in callers) else node.host
