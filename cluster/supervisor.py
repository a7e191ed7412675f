"""Keeps the LLM's ranks alive: starts them, and starts them again when a step was lost.

The ranks of one LLM hold one state between them, so they are replaced together, in the bundles
that they had. A rank that hangs looks alive, hence nothing is asked of the old ones: they are
killed. What they held is only a cache; the engine brings requests back under a new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cluster import ray_api
from cluster.placement import Placement

logger = logging.getLogger(__name__)

RankMaker = Callable[[], ray_api.ActorBody]


class RankGroup:
    """The processes of one LLM's ranks.

    Args:
        make_ranks: for each rank, what makes its body; run in the rank's own process.
        placement: where they go.
        group: the reservation that `placement` describes.
    """

    def __init__(
        self, make_ranks: Sequence[RankMaker], placement: Placement, group: ray_api.PlacementGroup
    ) -> None:
        self._make_ranks = make_ranks
        self._placement = placement
        self._group = group
        self._processes: list[ray_api.ActorProcess] = []

    async def start(self) -> list[str]:
        """Start every rank; returns their addresses, rank by rank.

        Raises:
            TreeServeError: a rank cannot start; none is left running.
        """
        self._processes = [
            ray_api.ActorProcess(make, self._group, self._placement.rank_bundle(rank), resources)
            for rank, (make, resources) in enumerate(
                zip(self._make_ranks, self._resources, strict=True)
            )
        ]
        try:
            return list(await asyncio.gather(*(process.start() for process in self._processes)))
        except BaseException:
            self.kill()
            raise

    async def restart(self) -> list[str]:
        """Replace every rank, dead or alive; returns the new addresses. Raises as `start`."""
        logger.warning("starting the LLM's ranks again")
        self.kill()
        return await self.start()

    def kill(self) -> None:
        """End every rank at once."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()

    @property
    def _resources(self) -> list[dict[str, float]]:
        return [dict(bundle.resources) for bundle in self._placement.ranks]
