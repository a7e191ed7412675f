"""Who is lost again and again is waited for longer; who has lived for a while is not."""

from __future__ import annotations

from itertools import islice

from actors.request_manager.backoff import Backoff


class House:
    """One who is lost and comes back, ten seconds being a long life.

    Attributes:
        now_s: the time.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.backoff = Backoff((0.0, 1.0, 5.0), 10.0, lambda: self.now_s)

    def lose(self, num_attempts: int = 1) -> list[float]:
        """A loss, and the waits before each attempt; the last one is good."""
        waits_s = list(islice(self.backoff.waits_s(), num_attempts))
        self.now_s += sum(waits_s)
        self.backoff.is_back()
        return waits_s

    def live(self, seconds: float) -> None:
        self.now_s += seconds


def test_attempts_that_fail_are_farther_and_farther_apart() -> None:
    assert House().lose(5) == [0.0, 1.0, 5.0, 5.0, 5.0]


def test_one_that_dies_soon_again_goes_on_where_it_was() -> None:
    house = House()
    waits = []
    for _ in range(5):
        waits += house.lose()
        house.live(9.9)
    assert waits == [0.0, 1.0, 5.0, 5.0, 5.0]


def test_one_that_has_lived_for_a_while_comes_back_at_once() -> None:
    house = House()
    house.lose(3)
    house.live(10.0)
    assert house.lose(2) == [0.0, 1.0]
