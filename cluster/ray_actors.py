"""Ray actors: plain objects in processes of their own, reached by awaiting their methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from actors.meeting import Meeting
from cluster.ray_api import Node, PlacementGroup, map_error, own_node

T = TypeVar("T")


@dataclass(frozen=True)
class Addresses:
    """Where an actor is reached, each as `host:port`."""

    service: str
    metrics: str


class ActorBody(Protocol):
    """A plain object that a Ray actor is made of."""

    def start(self, host: str) -> Addresses:
        """Serve; `host` is the address to listen on."""


class ActorProcess:
    """A body in a process of its own, inside one bundle of a placement group.

    Args:
        name: process lists show it.
        make_body: makes the body, in its own process.
        resources: what it takes, of the bundle if there is one.
        group, bundle: where it goes; anywhere without a group.
    """

    def __init__(
        self,
        name: str,
        make_body: Callable[..., Any],
        resources: Mapping[str, float],
        group: PlacementGroup | None = None,
        bundle: int = 0,
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = ray.remote(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=group
            and PlacementGroupSchedulingStrategy(group.handle, placement_group_bundle_index=bundle),
        )
        # Ray names a process after its actor's class.
        self._actor = actor(type(name, (ActorHost,), {})).remote(make_body)

    async def node(self) -> Node:
        """Where the process runs, once it does. Raises PeerUnavailable if it died."""
        node: Node = await _answer(self._actor.node.remote())
        return node

    async def open_meeting(self, host: str) -> str:
        """Listen for the others of its group on an address of its node; returns `host:port`.

        Raises:
            PeerUnavailable: the process died.
        """
        return str(await _answer(self._actor.open_meeting.remote(host)))

    async def make(self, meeting_place: str) -> None:
        """Make the body, which meets others. Raises as `start`."""
        await _answer(self._actor.make.remote(meeting_place))

    async def call(self, method: str, *arguments: object) -> object:
        """What a method of the body returns. Raises as `start`."""
        result: object = await _answer(self._actor.call.remote(method, *arguments))
        return result

    async def start(self, host: str, meeting_place: str | None = None) -> Addresses:
        """Make the body and start it, an `ActorBody`.

        Args:
            host: address of its node to listen on.
            meeting_place: where the processes of its group meet, if there are several.

        Raises:
            TreeServeError: what the body raised.
            PeerUnavailable: the process died.
        """
        addresses: Addresses = await _answer(self._actor.start.remote(host, meeting_place))
        return addresses

    def kill(self) -> None:
        """End the process at once; does nothing if it is dead."""
        import ray

        ray.kill(self._actor, no_restart=True)


class ActorHost:
    """What runs in an actor's process.

    The body is made in a method, not in the constructor: Ray keeps the type of an exception only
    from methods.
    """

    def __init__(self, make_body: Callable[..., Any]) -> None:
        self._make_body = make_body
        self._body: Any = None
        self._meeting: Meeting | None = None

    def node(self) -> Node:
        return own_node()

    def open_meeting(self, host: str) -> str:
        self._meeting = self._meeting or Meeting.open(host)
        return self._meeting.address

    def make(self, meeting_place: str | None) -> None:
        meeting = [] if meeting_place is None else [self._meeting or Meeting.at(meeting_place)]
        self._body = self._body or self._make_body(*meeting)

    def start(self, host: str, meeting_place: str | None) -> Addresses:
        self.make(meeting_place)
        addresses: Addresses = self._body.start(host)
        return addresses

    def call(self, method: str, *arguments: object) -> object:
        result: object = getattr(self._body, method)(*arguments)
        return result


async def _answer(reference: Awaitable[T]) -> T:
    """A call's result; Ray's errors become ours."""
    import ray.exceptions as foreign

    try:
        return await reference
    except foreign.RayError as error:
        raise map_error(error) from error
