from __future__ import annotations

from wiresum.controller.security.rates import TokenBuckets


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_requests_at_the_given_rate() -> None:
    clock = Clock()
    buckets = TokenBuckets(10.0, 3, clock=clock)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0.1, 0.1]
    clock.now += 0.25
    assert [buckets.take("a") == 0 for _ in range(3)] == [True, True, False]
    clock.now += 1000
    assert [buckets.take("a") == 0 for _ in range(4)] == [True, True, True, False]


def test_each_key_has_its_own_limit() -> None:
    buckets = TokenBuckets(1.0, 1, clock=Clock())
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0
    assert buckets.take("b") == 0


def test_the_number_of_keys_is_bounded_and_the_least_recently_used_is_dropped() -> None:
    buckets = TokenBuckets(1.0, 1, keys_max=2, clock=Clock())
    for key in ("a", "b", "a", "c"):
        buckets.take(key)
    assert len(buckets) == 2
    assert buckets.take("a") > 0
    assert buckets.take("b") == 0, "it was forgotten"
