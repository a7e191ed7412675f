"""When a signal ends the server, and when it waits."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from deploy.serve_command import Signals


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as installed:
        yield installed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(number: signal.Signals, signals: Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_held_signal_comes_at_the_end(signals: Signals) -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), signals.held():
        signal.raise_signal(signal.SIGTERM)
        reached = True
    assert reached


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_only_the_first_signal_interrupts(second: signal.Signals, signals: Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(second)


def test_of_several_held_signals_one_interrupt_comes(signals: Signals) -> None:
    with pytest.raises(KeyboardInterrupt), signals.held():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def test_an_error_inside_is_not_hidden_by_a_held_signal(signals: Signals) -> None:
    with pytest.raises(ValueError, match="ours"), signals.held():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("ours")


def test_handlers_that_were_put_in_place_inside_are_replaced(signals: Signals) -> None:
    with signals.held():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_after_that_signals_are_ignored(signals: Signals) -> None:
    signals.ignore()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)


def test_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
