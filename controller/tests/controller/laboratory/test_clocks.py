"""The wall clock of controllers and switches jumps by a day, forward and back. Everything that waits goes by the
monotonic clock: no lease, heartbeat or standby cares."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab import doubles
from wiresum_lab.laboratory import Laboratory, certified_earlier

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

LIBRARY = Path(doubles.__file__ or "").with_name("wall_clock.c")
DAY = datetime.timedelta(days=1)
CALM_S = 8.0
"""Longer than what a standby waits before it takes over, and than all limits but that for a worker's silence."""


class WallClock:
    """Of all services of a laboratory."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "wall_clock.so", folder / "shift"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler is here, so the clock cannot be shifted")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(LIBRARY)], check=True)
        self.jump(datetime.timedelta())
        self.variables = {"LD_PRELOAD": str(library), "WALL_CLOCK_SHIFT": str(self._file)}

    def jump(self, to: datetime.timedelta) -> None:
        """`to`: how far it is from the right time then."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT)
        os.pwrite(descriptor, struct.pack("q", int(to.total_seconds())), 0)
        os.close(descriptor)


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.fixture
def laboratory(tmp_path: Path, clock: WallClock) -> Iterator[Laboratory]:
    with certified_earlier(2 * DAY), Laboratory(tmp_path, variables=clock.variables) as laboratory:
        yield laboratory


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "back"])
def test_jobs_heartbeats_and_standby_do_not_notice_that_the_wall_clock_jumps(
    laboratory: Laboratory, clock: WallClock, jump: datetime.timedelta
) -> None:
    job, doomed = laboratory.job("through"), laboratory.job("doomed")
    said = {name: len(program.said()) for name, program in laboratory.controllers.items()}
    clock.jump(jump)
    job.for_seconds(CALM_S)
    doomed.check()
    new = {name: program.said()[said[name] :] for name, program in laboratory.controllers.items()}
    assert new == {"active": "", "standby": ""}, "nothing is lost, and the standby has nothing to do"
    assert all(0 < each.age_seconds < 600 for each in laboratory.operator.report().jobs), "by the monotonic clock"
    laboratory.job("later").finish()
    audit = [json.loads(line) for line in (laboratory.folder / "active.audit").read_text().splitlines()]
    off = datetime.datetime.fromisoformat(audit[-1]["time"]) - datetime.datetime.now(datetime.timezone.utc)
    assert abs(off - jump) < DAY / 4, "the clock that services see has really jumped"

    # A worker that dies is found dead.
    doomed.programs[1].kill()
    assert "rank 1" in doomed.error(0)

    # A standby whose clock has jumped takes over from one whose clock had not when it began.
    laboratory.controllers["active"].kill()
    laboratory.await_report(lambda report: "through" in [each.name for each in report.jobs], "the standby serves")
    job.for_seconds(CALM_S)
    job.finish()
