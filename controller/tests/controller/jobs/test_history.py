"""The history of ended jobs: reasons, access by tenant, bounds, and persistence over a restart."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller.jobs.history import ENDED_MAX, History
from wiresum.controller.jobs.job import Asker, Job
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import JobsHarness, join_request


def found(harness: JobsHarness, tenants: frozenset[str] | None = None) -> list[tuple[str, str]]:
    """Names and outcomes, newest first."""
    return [(record.name, record.outcome) for record in harness.jobs.history.find(tenants, "", 0)]


def test_every_end_of_a_job_is_recorded_with_its_reason() -> None:
    harness = JobsHarness()
    completed = harness.running(job_name="completed", world_size=2)
    for worker in completed:
        harness.leave(worker)
    harness.abort(harness.running(job_name="aborted")[0], "no more data")
    harness.running(job_name="ended")
    harness.jobs.end("ended", "the cluster is needed", harness.now)
    lost = harness.running(job_name="lost", world_size=2)
    harness.wait(28)
    harness.break_streams(*lost)
    harness.wait(12)
    harness.ask(job_name="alone", world_size=2, timeout_ms=1000)
    harness.wait(2)
    assert found(harness) == [
        ("alone", "did_not_begin"),
        ("lost", "worker_lost"),
        ("ended", "ended_by_operator"),
        ("aborted", "aborted_by_worker"),
        ("completed", "completed"),
    ]
    reasons = {record.name: record.reason for record in harness.jobs.history.find(None, "", 0)}
    assert "rank 1 of 2 did not come" in reasons["alone"]
    assert "no more data" in reasons["aborted"]
    assert "the cluster is needed" in reasons["ended"]
    (record,) = harness.jobs.history.find(None, "lost", 0)
    assert (record.world_size, record.switch_name, record.slots) == (2, "leaf", 256)
    assert 29 < record.ended_at - record.created_at < 41


def test_it_can_be_filtered_by_tenant_name_and_number() -> None:
    harness = JobsHarness()
    for name, tenant in (("a", "vision"), ("b", "speech"), ("a", "vision")):
        harness.leave(harness.running(1, job_name=name, tenant=tenant)[0])
    assert found(harness, frozenset({"speech"})) == [("b", "completed")]
    assert found(harness, frozenset({"nobody"})) == []
    assert len(harness.jobs.history.find(None, "a", 0)) == 2
    assert [record.name for record in harness.jobs.history.find(None, "", 2)] == ["a", "b"]


def test_it_survives_a_restart(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        before = JobsHarness(store=store)
        before.abort(before.running(job_name="first")[0], "because")
        before.settle()
        kept = before.jobs.history.find(None, "", 0)
        after = JobsHarness(store=store)
        assert after.jobs.history.find(None, "", 0) == kept
        after.leave(after.running(1, job_name="second")[0])
        assert found(after)[0] == ("second", "completed")
        assert [record.sequence for record in store.load().ended] == [1, 2]


def flooded(tenants: list[str], ended_max: int) -> tuple[History, list[Save | Forget]]:
    outputs: list[Save | Forget] = []
    history = History(outputs.append, 0.0, ended_max=ended_max)
    for index, tenant in enumerate(tenants):
        job = Job(f"job-{index}", 0, 1, created_at=0.0, tenant=tenant, asker=Asker("somebody"))
        history.note_ended(job, join.JobEnded(reason="all workers have left"), 1.0)
    return history, outputs


def test_its_size_is_bounded_and_a_tenant_with_many_jobs_displaces_only_its_own() -> None:
    history, outputs = flooded(["victim", "victim", *["flood"] * 100], ended_max=10)
    assert len(history) == 10
    assert [record.name for record in history.find(frozenset({"victim"}), "", 0)] == ["job-1", "job-0"]
    newest = [record.name for record in history.find(frozenset({"flood"}), "", 0)]
    assert newest == [f"job-{index}" for index in range(101, 93, -1)]
    kept = {output.record.sequence for output in outputs if isinstance(output, Save)}
    kept -= {output.record.sequence for output in outputs if isinstance(output, Forget)}
    assert kept == {1, 2, *range(95, 103)}, "the history on disk is the same"


def test_a_long_reason_is_truncated() -> None:
    history, _ = flooded([], ended_max=ENDED_MAX)
    history.note_given_up(Job("a", 0, 1, created_at=0.0), "x" * 5000, 1.0)
    assert len(history.find(None, "", 0)[0].reason) == 1000


@pytest.mark.parametrize("revoked", ["ab12", "cd34"])
def test_revoking_a_certificate_ends_the_jobs_of_its_holder(revoked: str) -> None:
    harness = JobsHarness()
    for name in ("running", "waiting"):
        for rank, serial in enumerate(["ab12", "cd34"]):
            size = 2 if name == "running" else 3
            harness.jobs.ask(
                join_request(job_name=name, rank=rank, world_size=size), harness.now, Asker(certificate=serial)
            )
            harness.settle()
    harness.jobs.ask(join_request(job_name="other"), harness.now, Asker(certificate="ef56"))
    harness.settle()
    harness.jobs.expel(lambda serial: serial == revoked, harness.now)
    harness.settle()
    assert found(harness) == [("waiting", "did_not_begin"), ("running", "worker_lost")]
    assert "its certificate was revoked" in harness.jobs.history.find(None, "running", 0)[0].reason
    harness.wait(6)
    assert [job.name for job in harness.jobs.all()] == ["other"]


def test_a_certificate_is_remembered_over_a_restart_and_updated_on_reconnection(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        before = JobsHarness(store=store)
        (worker,) = before.running(1)
        member = join.Member(job=worker.job.number, worker=0, token=worker.token, switch_name=worker.job.switch_name)
        before.jobs.attend(member, before.now, Asker(certificate="ab12"))
        before.wait(0.2, beating=[worker])
        after = JobsHarness(store=store)
        after.jobs.attend(member, after.now, Asker(certificate="cd34"))
        after.jobs.expel(lambda serial: serial == "ab12", after.now)
        assert not found(after), "it shows another one now"
        again = JobsHarness(store=store)
        again.jobs.expel(lambda serial: serial == "ab12", again.now)
        assert found(again) == [("a-job", "worker_lost")]
