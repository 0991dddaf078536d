"""Real ranks that run in lock step: Gloo over the loopback of a namespace. Needs root and PyTorch."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, latency_s, repeat, start_gloo
from wiresum_lab.namespaces.star import Star
from wiresum_lab.processes import cpu_seconds
from wiresum_lab.ranks.ranks import Ranks, RanksError, RanksTimeoutError, Site

ELEMENTS = 100_000


pytestmark = [pytest.mark.usefixtures("gloo_on_a_star"), pytest.mark.timeout(120)]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with Star(1) as star:
        started = SYSTEMS["gloo"].start(Site.of_loopback(star.workers[0], 2), tmp_path)
        yield started
        started.abandon()


def test_ranks_sum_and_the_sum_is_checked(ranks: Ranks) -> None:
    for repetition in range(3):
        result = repeat(ranks, 32, ELEMENTS, repetition, 30.0)
        assert result.seconds > 0
        assert result.cpu_seconds_worker > 0
        assert result.wrong_elements == 0
        assert result.retransmissions is None
        assert result.cpu_seconds_switch is None
    assert latency_s(ranks, 16, 5, 30.0) > 0
    ranks.close()
    assert not ranks.socket_path.exists()


@pytest.mark.slow
def test_a_rank_that_dies_is_an_error_that_names_the_system(ranks: Ranks) -> None:
    repeat(ranks, 32, ELEMENTS, 0, 30.0)
    os.kill(_rank_process_id(ranks), signal.SIGKILL)
    with pytest.raises(RanksError, match="gloo"):
        repeat(ranks, 32, ELEMENTS, 1, 30.0)


@pytest.mark.slow
def test_a_rank_that_hangs_is_a_timeout(ranks: Ranks) -> None:
    repeat(ranks, 32, ELEMENTS, 0, 30.0)
    os.kill(_rank_process_id(ranks), signal.SIGSTOP)
    with pytest.raises(RanksTimeoutError, match="2 of 2 ranks do not answer 'latency"):
        latency_s(ranks, ELEMENTS, 1, 0.5)


@pytest.mark.slow
def test_an_error_contains_the_end_of_the_log(tmp_path: Path) -> None:
    with Star(1) as star:
        site = Site.of_loopback(star.workers[0], 1)
        with pytest.raises(RanksError, match=r"broken-rank0\.log"):
            Ranks("broken", site, tmp_path, partial(start_gloo, backend="no-such-backend"))


def test_the_cpu_time_of_another_process_is_measured() -> None:
    before_s = cpu_seconds(os.getpid())
    sum(i * i for i in range(200_000))
    assert cpu_seconds(os.getpid()) > before_s


def _rank_process_id(ranks: Ranks) -> int:
    return ranks.process_ids()[1]
