"""Workers that are stopped (SIGSTOP), as a debugger or a suspended host does it, and continued."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.laboratory import Laboratory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOST_S = 12
"""In place of half a minute."""
TABLES = f"[jobs]\nheartbeat_lost_s = {LOST_S}\n"
SHORT_S = 4.0


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    with Laboratory(tmp_path, tables=TABLES) as laboratory:
        yield laboratory


def test_a_worker_that_is_stopped_for_a_moment_goes_on(laboratory: Laboratory) -> None:
    job = laboratory.job("through")
    for stopped in ([0], [1], [0, 1]):
        for rank in stopped:
            job.programs[rank].process.send_signal(signal.SIGSTOP)
        time.sleep(SHORT_S)
        for rank in stopped:
            job.programs[rank].process.send_signal(signal.SIGCONT)
        job.goes_on()
    job.finish()


def test_a_worker_that_stays_stopped_is_named_and_hears_of_it_when_it_goes_on(laboratory: Laboratory) -> None:
    job, other = laboratory.job("stopped"), laboratory.job("other")
    began_at = time.monotonic()
    job.programs[1].process.send_signal(signal.SIGSTOP)
    said = job.error(0)
    assert "rank 1" in said
    assert time.monotonic() - began_at > LOST_S / 2, "it had time to come back"
    other.goes_on()
    laboratory.await_report(lambda report: [j.name for j in report.jobs] == ["other"], "its slots are free")
    job.programs[1].process.send_signal(signal.SIGCONT)
    assert "was stopped" in job.error(1)
    again = laboratory.job("again")
    again.finish()
    other.finish()
