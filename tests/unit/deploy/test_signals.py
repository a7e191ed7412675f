"""A signal is one KeyboardInterrupt, and never a second one on the way down."""

from __future__ import annotations

import signal

import pytest

from deploy.serve_command import SIGNALS, Signals


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_interrupts_and_later_ones_do_nothing(number):
    with Signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_held_comes_at_the_end_and_once():
    with Signals() as signals:
        with pytest.raises(KeyboardInterrupt), signals.held():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Signals():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
