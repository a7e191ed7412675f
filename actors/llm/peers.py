"""The other ranks of a split LLM, as a rank sees them; a whole LLM is alone."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """All ranks call these together, in the same order.

    Attributes:
        are_none: True where there are no others.
    """

    are_none: bool

    def least(self, value: int) -> int:
        """The least of all ranks' values."""

    def take_waited_s(self) -> float:
        """Seconds spent waiting for the stage before since the last call."""


class Alone:
    """There are no others."""

    are_none = True

    def least(self, value: int) -> int:
        return value

    def take_waited_s(self) -> float:
        return 0.0
