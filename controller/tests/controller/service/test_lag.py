from __future__ import annotations

from wiresum.controller.service.lag import SPAN_S, LoopLag


class Loop:
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lag = LoopLag(0.1, lambda: self.now)

    def run(self, seconds: float, *, late_s: float = 0.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1 + late_s
            self.lag.beat()


def test_a_loop_in_time_has_no_lag() -> None:
    loop = Loop()
    loop.run(5)
    assert loop.lag.worst_s() < 1e-6


def test_a_delay_is_seen_while_it_lasts_and_for_at_least_a_span_after_it() -> None:
    loop = Loop()
    loop.run(1)
    loop.now += 7.1
    assert abs(loop.lag.worst_s() - 7) < 1e-6, "the loop has not come back yet"
    assert abs(loop.lag.beat() - 7) < 1e-6
    for _ in range(int(SPAN_S)):
        assert abs(loop.lag.worst_s() - 7) < 1e-6
        loop.run(0.9)
    loop.run(2 * SPAN_S)
    assert loop.lag.worst_s() < 1e-6, "at some time it is over"


def test_the_worst_of_several_delays_counts() -> None:
    loop = Loop()
    loop.run(0.1, late_s=3)
    loop.run(10, late_s=0.2)
    assert abs(loop.lag.worst_s() - 3) < 1e-6
