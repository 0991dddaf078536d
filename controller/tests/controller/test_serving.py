"""What every command that serves needs."""

from __future__ import annotations

import signal
import threading

import pytest

from wiresum.controller.serving import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_in_the_midst_of_a_wait_is_heard(number: signal.Signals) -> None:
    with stop_on_signals() as stop:
        assert not stop.wait(0) and not stop.wait(-1.0) and not stop.is_set()
        with stop._cond:  # which a `wait` of threading's has when the handler runs
            signal.raise_signal(number)
        assert stop.is_set() and stop.wait() and stop.wait(0)


def test_a_signal_ends_a_wait() -> None:
    with stop_on_signals() as stop:
        main = threading.main_thread().ident
        assert main is not None
        threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGTERM)).start()
        assert stop.wait()


def test_afterwards_signals_mean_what_they_did() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
