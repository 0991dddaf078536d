"""Real ranks, driven in step: Gloo over the loopback of a namespace. Needs root and PyTorch."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.systems import Gloo, Site, Workshop
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.cohort import Cohort, CohortError, CohortTimeoutError, process_cpu_seconds

ELEMENTS = 100_000


pytestmark = [pytest.mark.usefixtures("gloo_on_a_star"), pytest.mark.timeout(120)]


@pytest.fixture
def cohort(tmp_path: Path) -> Iterator[Cohort]:
    with Star(1) as star:
        started = Gloo().start(Site.of_loopback(star.workers[0], 2), Workshop(tmp_path, tmp_path))
        yield started
        started.abandon()


def test_ranks_sum_and_the_sum_is_checked(cohort: Cohort) -> None:
    for repetition in range(3):
        result = cohort.repeat(32, ELEMENTS, repetition, 30.0)
        assert result.seconds > 0
        assert result.cpu_seconds_worker > 0
        assert result.wrong_elements == 0
        assert result.retransmissions is None
        assert result.cpu_seconds_switch is None
    assert cohort.latency_s(16, 5, 30.0) > 0
    cohort.close()
    assert not cohort.socket_path.exists()


def test_a_rank_that_dies_is_an_error_that_names_the_system(cohort: Cohort) -> None:
    cohort.repeat(32, ELEMENTS, 0, 30.0)
    os.kill(_rank_process_id(cohort), signal.SIGKILL)
    with pytest.raises(CohortError, match="gloo"):
        cohort.repeat(32, ELEMENTS, 1, 30.0)


def test_a_rank_that_stands_still_is_a_time_out_and_not_a_hang(cohort: Cohort) -> None:
    cohort.repeat(32, ELEMENTS, 0, 30.0)
    os.kill(_rank_process_id(cohort), signal.SIGSTOP)
    with pytest.raises(CohortTimeoutError, match="2 of 2 ranks do not answer 'latency"):
        cohort.latency_s(ELEMENTS, 1, 0.5)


def test_the_end_of_the_log_is_part_of_the_error(tmp_path: Path) -> None:
    class Broken(Gloo):
        name, backend = "broken", "no-such-backend"

    with Star(1) as star:
        site = Site.of_loopback(star.workers[0], 1)
        with pytest.raises(CohortError, match=r"broken-rank0\.log"):
            Broken().start(site, Workshop(tmp_path, tmp_path))


def test_processor_time_of_another_process_is_seen() -> None:
    before_s = process_cpu_seconds(os.getpid())
    sum(i * i for i in range(200_000))
    assert process_cpu_seconds(os.getpid()) > before_s


def _rank_process_id(cohort: Cohort) -> int:
    return cohort.process_ids()[1]
