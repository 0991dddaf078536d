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
from wiresum_lab.processes import wait_until
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


@pytest.mark.nightly
def test_controllers_before_all_switches_disturb_no_job_and_a_new_one_waits_for_the_first_switch(
    older: Laboratory,
) -> None:
    job = older.job("through")
    stays = older.jobs_at()["through"]
    upgrade_controllers(older)
    older.await_switches("outdated")
    said = [switch.trouble for switch in older.operator.report().switches]
    assert all("has wiresum 0.0.9, switch program 1" in text and ": upgrade the switch, and" in text for text in said)
    assert f"{stays}, software, outdated (" in run(older, "jobs").stdout
    for asking in ("check", "plan"):
        asked = command("controller", asking, "--config", str(older.folder / "active.toml"))
        done = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("has wiresum 0.0.9, switch program 1, and this controller wiresum") == 2, done.stdout
    new = older.start_job("new")
    older.await_report(
        lambda report: any("upgrade the switch" in each.waiting for each in report.jobs if each.name == "new"),
        "the new job waits, and says why",
    )
    goes_on_after(0, older, job)
    restart(older, other_than(stays))
    wait_until(new.steps, "the new job sums, without another start of a controller", meanwhile=new.check)
    restart(older, stays)
    older.await_switches("ready")
    job.goes_on()
    logs = "".join(older.log_of(name).read_text() for name in CONTROLLERS)
    assert 1 <= logs.count(f"effects: {stays} failed to hold what it should") <= 4, "not again each second"
    for each in (job, new):
        each.finish()


@pytest.mark.nightly
def test_a_switch_that_is_upgraded_before_the_controllers_under_its_job_is_named_and_the_job_moves(
    tmp_path: Path,
) -> None:
    with Laboratory(tmp_path) as laboratory:
        job = laboratory.job("through")
        at = laboratory.jobs_at()["through"]
        laboratory.release = NEWER
        restart(laboratory, at)
        report = laboratory.await_report(lambda report: state_of(report, at) == "outdated", "the new switch is named")
        (said,) = [switch.trouble for switch in report.switches if switch.trouble]
        assert "upgrade the controllers, and start them again" in said
        goes_on_after(1, laboratory, job)
        assert laboratory.jobs_at()["through"] == other_than(at)
        laboratory.release = ()
        restart(laboratory, at)
        laboratory.await_switches("ready")
        job.finish()
