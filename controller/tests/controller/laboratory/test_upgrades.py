"""Upgrades from another release, whose switch program differs, under a running job: in the order of
docs/availability.md, and in others. The other release is this one with other versions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum import join
from wiresum_lab.laboratory import CONTROLLERS, Job, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wiresum as command

pytestmark = pytest.mark.timeout(300)

OLDER = ("--software", "0.0.9", "--program", "1")
NEWER = ("--software", "99.0.0", "--program", "99")


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Laboratory]:
    """A cluster of an older release."""
    with Laboratory(tmp_path, release=OLDER) as laboratory:
        yield laboratory


def other_than(name: str) -> str:
    return {"left": "right", "right": "left", "active": "standby", "standby": "active"}[name]


def run(laboratory: Laboratory, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = ["--switch", laboratory.targets, "--tls", str(laboratory.pki.tls("operator"))]
    return subprocess.run(
        command(*arguments, *options), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def upgrade_controllers(laboratory: Laboratory) -> None:
    serving = next(name for name in CONTROLLERS if not laboratory.service("operator", name).standbys())
    laboratory.release = ()
    for name in (other_than(serving), serving):
        laboratory.controllers[name].stop()
        laboratory.start_controller(name)
    laboratory.await_report(
        lambda report: report.jobs and report.service.software_version != "0.0.9", "an upgraded controller serves"
    )


def restart(laboratory: Laboratory, name: str) -> None:
    laboratory.switches[name].stop()
    laboratory.start_switch(name)


def state_of(report: join.Report, name: str) -> str:
    return next(switch.state for switch in report.switches if switch.name == name)


def goes_on_after(moves: int, laboratory: Laboratory, job: Job) -> None:
    """So often it has moved, no more, and no sum was wrong."""
    job.goes_on()
    found = [each for each in laboratory.operator.report().jobs if each.name == job.name]
    assert [each.moves for each in found if each.state != "ending"] == [moves], "a lease that it had may still end"


@pytest.mark.slow
def test_in_the_documented_order_jobs_run_on_and_new_ones_begin(older: Laboratory) -> None:
    job = older.job("through")
    stays = older.jobs_at()["through"]
    first = other_than(stays)
    checked = run(older, "upgrade", "--check", "--json")
    assert checked.returncode == 0, checked.stdout
    steps = json.loads(checked.stdout)["steps"]
    assert [step.partition(":")[0].partition(" at ")[0] for step in steps] == [
        first, "the standby", "the active controller", first, stays
    ]  # fmt: skip

    drained = run(older, "jobs", "drain", first, "--wait")
    assert drained.returncode == 0, drained.stderr
    older.release = ()
    restart(older, first)
    upgrade_controllers(older)
    assert run(older, "jobs", "resume", first).returncode == 0
    older.await_report(lambda report: state_of(report, first) == "ready", "the first switch takes jobs")
    assert state_of(older.operator.report(), stays) == "outdated"
    older.job("new").finish()

    drained = run(older, "jobs", "drain", stays, "--wait", "--timeout", "60")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert older.jobs_at()["through"] == first, "it has moved"
    restart(older, stays)
    assert run(older, "jobs", "resume", stays).returncode == 0
    older.await_switches("ready")
    checked = run(older, "upgrade", "--check")
    assert checked.returncode == 0 and "nothing is left to do" in checked.stdout, checked.stdout
    goes_on_after(1, older, job)
    job.finish()
