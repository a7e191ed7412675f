"""The draft models of one manager: their actors, the ways to them, and their exchange for others.

An exchange starts successors beside the actors that run, one after another, so that streams keep
most of the machine, and lets none of them in before all have been loaded and seen to fit the LLM.
Then they take over replica by replica; each is sent its requests' texts anew, as one that was
brought back is. If a successor cannot be used all of them go, and nothing has changed.

Successors share the bundles of those they follow, so the pool keeps its shape: as many models,
replicas and threads as there were. Assumes memory for both at one time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from actors.drafts import DraftModelDescription
from actors.errors import ConfigError, ModelError, PeerError, UnavailableError
from actors.request_manager.drafter_names import ssm_names
from actors.request_manager.ports import Drafter
from actors.ssm.config import SSMConfig
from cluster.config import Config, with_ssms
from cluster.metrics import Part
from cluster.metrics_server import Target
from cluster.observed import ObservedDrafter
from cluster.placement import Place

FIXED = ("replicas", "num_threads")
"""Of a draft model: what its place in the cluster was reserved for."""


class Actors(Protocol):
    """The process of one draft model, as `supervisor.ActorGroup` is it."""

    metrics_addresses: list[str]

    async def start(self) -> list[str]: ...

    async def restart(self) -> list[str]: ...

    def kill(self) -> None: ...


class Client(Drafter, Protocol):
    """The way to one draft model, as `SSMDrafter` is it."""

    async def describe(self) -> DraftModelDescription: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Seat:
    """What stays when one draft model follows another.

    Attributes:
        part: its actor.
        index: of the model, among those of the configuration.
        place: where its actor goes.
    """

    part: Part
    index: int
    place: Place


Hire = Callable[[Config, Seat, Callable[[bool], None]], Actors]
"""Makes the process for a seat, which tells whether it works. Raises ModelError if there is no such
folder."""
Connect = Callable[[str, Callable[[], Awaitable[str]], Part], Client]
"""Opens the way to an address, for somebody who can be brought back at another one."""


def draft_parts(config: Config) -> list[Part]:
    """The draft models' actors: all replicas of one, then of the next."""
    names = ssm_names(len(config.ssms))
    return [
        Part("DraftModel", name, replica)
        for name, ssm in zip(names, config.ssms, strict=True)
        for replica in range(ssm.replicas)
    ]


class DraftPool:
    """Draft models that are started, connected to, and exchanged.

    Args:
        config: whose `ssms` they are.
        places: of each of their actors.
        hire, connect: make processes and ways to them.
        note: is told which actor works, and which has failed.
    """

    def __init__(
        self,
        config: Config,
        places: Sequence[Place],
        hire: Hire,
        connect: Connect,
        note: Callable[[Part, bool], None],
    ) -> None:
        self._config = config
        self._hire = hire
        self._connect = connect
        self._note = note
        self._llm_hash = ""
        parts = zip(draft_parts(config), config.ssm_indexes, places, strict=True)
        seats = [Seat(*seat) for seat in parts]
        self._members = {seat.part: self._member(config, seat) for seat in seats}
        for member in self._members.values():
            member.is_seated = True
        self._drafters: dict[Part, ObservedDrafter] = {}
        self._swapping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all actors. Raises as `ActorGroup.start`."""
        await asyncio.gather(*(member.start() for member in self._members.values()))

    async def open(
        self, llm_hash: str, observe: Callable[[Drafter], ObservedDrafter]
    ) -> list[ObservedDrafter]:
        """A drafter for each actor; it stays the same whoever comes to sit there.

        Args:
            llm_hash: of the weights that are served.
            observe: wraps what is asked.

        Raises:
            ModelError: a draft model does not fit the LLM.
            PeerError: one cannot be reached.
        """
        self._llm_hash = llm_hash
        for part, member in self._members.items():
            with _naming(self._config, member.seat):
                self._drafters[part] = observe(await member.open(llm_hash))
        return list(self._drafters.values())

    async def swap(self, ssms: Sequence[SSMConfig], begin_anew: Callable[[str], None]) -> None:
        """Put these draft models in the place of those that run.

        Args:
            begin_anew: is told each model's name when all of its replicas have been exchanged.

        Raises:
            ConfigError: they have no room in the places that there are.
            ModelError: one cannot be used with the LLM; says which and why.
            PeerError: one cannot be started or reached; says which.
            UnavailableError: another exchange is under way.
        """
        if self._swapping is not None and not self._swapping.done():
            raise UnavailableError("draft models are being exchanged already")
        check_shape(self._config.ssms, ssms)
        config = with_ssms(self._config, ssms)
        self._swapping = asyncio.create_task(self._exchange(config, begin_anew))
        await asyncio.shield(self._swapping)  # whoever asked may go; half a pool must not be left

    def targets(self) -> list[Target]:
        """Where Prometheus finds the actors that run."""
        return [
            Target(address, {"part": part.drafter, "index": str(part.replica)})
            for part, member in self._members.items()
            for address in member.actors.metrics_addresses
        ]

    async def close(self) -> None:
        """End all connections and actors, those of an exchange too."""
        if self._swapping is not None:
            self._swapping.cancel()
            await asyncio.gather(self._swapping, return_exceptions=True)
        await _close(self._members.values())

    # ------------------------------------------------------------ an exchange

    async def _exchange(self, config: Config, begin_anew: Callable[[str], None]) -> None:
        successors = await self._successors(config)
        try:
            for name in ssm_names(len(config.ssms)):
                for part in [part for part in successors if part.drafter == name]:
                    await self._take_over(part, successors.pop(part))
                begin_anew(name)
            self._config = config
        finally:
            await _close(successors.values())

    async def _successors(self, config: Config) -> dict[Part, _Member]:
        """All of them, loaded and reached. Raises as `swap`; then none is left."""
        successors: dict[Part, _Member] = {}
        try:
            for part, member in self._members.items():
                with _naming(config, member.seat):
                    # The bundle is held by whoever sits there: beside him there is only its node.
                    place = replace(member.seat.place, resources={})
                    successors[part] = self._member(config, replace(member.seat, place=place))
                    await successors[part].start()
                    await successors[part].open(self._llm_hash)
        except BaseException:
            await _close(successors.values())
            raise
        return successors

    async def _take_over(self, part: Part, successor: _Member) -> None:
        before, self._members[part] = self._members[part], successor
        before.is_seated, successor.is_seated = False, True
        self._note(part, not successor.client.is_away)
        self._drafters[part].replace(successor.client)
        try:
            # By then whoever waits for an answer of the one before has it, or has given it up.
            await asyncio.sleep(self._config.speculation.draft_deadline_ms / 1e3)
        finally:
            await before.close()

    def _member(self, config: Config, seat: Seat) -> _Member:
        return _Member(config, seat, self._hire, self._connect, self._note)


class _Member:
    """A draft model's process, and the way to it.

    Attributes:
        is_seated: it is asked; only then what becomes of it counts.
        client: the way to it, once it is open.
    """

    client: Client

    def __init__(
        self,
        config: Config,
        seat: Seat,
        hire: Hire,
        connect: Connect,
        note: Callable[[Part, bool], None],
    ) -> None:
        self.seat = seat
        self.is_seated = False
        self.actors = hire(config, seat, self._note_up)
        self._connect = connect
        self._note = note
        self._address = ""
        self._ends = AsyncExitStack()
        self._ends.callback(self.actors.kill)

    async def start(self) -> None:
        (self._address,) = await self.actors.start()

    async def open(self, llm_hash: str) -> Client:
        """Connect. Raises PeerError, and ModelError if it was tuned for another LLM."""
        self.client = self._connect(self._address, self._restart, self.seat.part)
        self._ends.push_async_callback(self.client.close)
        if (await self.client.describe()).llm_weights_hash != llm_hash:
            raise ModelError("it was tuned for another LLM than the one here")
        return self.client

    async def close(self) -> None:
        await self._ends.aclose()

    async def _restart(self) -> str:
        (address,) = await self.actors.restart()
        return address

    def _note_up(self, is_up: bool) -> None:
        if self.is_seated:
            self._note(self.seat.part, is_up)


async def _close(members: Iterable[_Member]) -> None:
    for member in members:
        await member.close()


@contextmanager
def _naming(config: Config, seat: Seat) -> Iterator[None]:
    """Errors tell which draft model they are of."""
    name = f"ssms.{seat.index} ({config.ssms[seat.index].path})"
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    except PeerError as error:
        raise PeerError(f"{name}: {error}") from error


def check_shape(now: Sequence[SSMConfig], then: Sequence[SSMConfig]) -> None:
    """Raises ConfigError, with every reason, if draft models cannot follow those that run."""
    if not now:
        raise ConfigError(["ssms: the server runs without draft models; to have some, restart it"])
    if len(then) != len(now):
        raise ConfigError([f"ssms: {len(then)} instead of {len(now)} need a restart"])
    problems = [
        f"ssms.{index}.{name}: {getattr(new, name)} instead of {getattr(old, name)} needs a restart"
        for index, (old, new) in enumerate(zip(now, then, strict=True))
        for name in FIXED
        if getattr(old, name) != getattr(new, name)
    ]
    if problems:
        raise ConfigError(problems)
