"""The history of ended jobs: reasons, access by tenant, bounds, and persistence over a restart."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller.jobs.history import ENDED_MAX, History
from wiresum.controller.jobs.job import Asker, Job, Members, Terms
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import JobsHarness, join_request


def found(harness: JobsHarness, tenants: frozenset[str] | None = None) -> list[tuple[str, str]]:
    """Names and outcomes, newest first."""
    return [(record.name, record.outcome) for record in harness.jobs.history.page(tenants).jobs]


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
    reasons = {record.name: record.reason for record in harness.jobs.history.page(None).jobs}
    assert "rank 1 of 2 did not come" in reasons["alone"]
    assert "no more data" in reasons["aborted"]
    assert "the cluster is needed" in reasons["ended"]
    (record,) = harness.jobs.history.page(None, "lost").jobs
    assert (record.world_size, record.switch_name, record.slots) == (2, "leaf", 256)
    assert 29 < record.ended_at - record.created_at < 41


def test_it_survives_a_restart(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        before = JobsHarness(store=store)
        before.abort(before.running(job_name="first")[0], "because")
        before.settle()
        kept = before.jobs.history.page(None).jobs
        after = JobsHarness(store=store)
        assert after.jobs.history.page(None).jobs == kept
        after.leave(after.running(1, job_name="second")[0])
        assert found(after)[0] == ("second", "completed")
        assert [record.sequence for record in store.load().ended] == [1, 2]


def flooded(tenants: list[str], ended_max: int) -> tuple[History, list[Save | Forget]]:
    outputs: list[Save | Forget] = []
    history = History(outputs.append, 0.0, ended_max=ended_max)
    for index, tenant in enumerate(tenants):
        job = Job(f"job-{index}", 0.0, Terms(asker=Asker("somebody")), Members(1), tenant)
        history.note_ended(job, join.JobEnded(reason="all workers have left"), 1.0)
    return history, outputs


def test_its_size_is_bounded_and_a_tenant_with_many_jobs_displaces_only_its_own() -> None:
    history, outputs = flooded(["victim", "victim", *["flood"] * 100], ended_max=10)
    assert len(history) == 10
    assert [record.name for record in history.page(frozenset({"victim"})).jobs] == ["job-1", "job-0"]
    newest = [record.name for record in history.page(frozenset({"flood"})).jobs]
    assert newest == [f"job-{index}" for index in range(101, 93, -1)]
    kept = {output.record.sequence for output in outputs if isinstance(output, Save)}
    kept -= {output.record.sequence for output in outputs if isinstance(output, Forget)}
    assert kept == {1, 2, *range(95, 103)}, "the history on disk is the same"


@pytest.mark.parametrize("character", ["x", "ä", "\N{GRINNING FACE}"])
def test_long_texts_are_truncated_however_many_bytes_a_character_has(character: str) -> None:
    history, _ = flooded([], ended_max=ENDED_MAX)
    job = Job("a", 0.0, Terms(asker=Asker(5000 * character)), Members(1))
    history.note_given_up(job, 5000 * character, 1.0)
    (record,) = history.page(None).jobs
    assert {*record.reason, *record.caller} == {character}
    assert len(record.reason.encode()) == 1000
    assert len(record.caller.encode()) == 256


def noted(history: History, tenant: str, count: int, reason_bytes: int) -> list[str]:
    """The names of jobs that have ended, the newest first."""
    names = [f"{tenant}-{index}" for index in range(count)]
    for name in names:
        history.note_given_up(Job(name, 0.0, Terms(), Members(1), tenant), "r" * reason_bytes, 1.0)
    return names[::-1]


def size(history: History) -> int:
    return sum(record.job.ByteSize() for records in history._by_tenant.values() for record in records)


def test_its_bytes_are_bounded_and_large_records_displace_only_their_own_tenants() -> None:
    outputs: list[Save | Forget] = []
    history = History(outputs.append, 0.0, bytes_max=50_000)
    small = noted(history, "victim", 100, 10)
    assert len(noted(history, "flood", 200, 1000)) == 200
    assert 49_000 < size(history) <= 50_000
    assert [record.name for record in history.page(frozenset({"victim"})).jobs] == small
    kept = {output.record.sequence for output in outputs if isinstance(output, Save)}
    kept -= {output.record.sequence for output in outputs if isinstance(output, Forget)}
    assert len(kept) == len(history), "the history on disk is the same"
    again: list[Save | Forget] = []
    smaller = History(again.append, 0.0, bytes_max=20_000)
    smaller.restore(output.record for output in outputs if isinstance(output, Save) and output.record.sequence in kept)
    assert size(smaller) <= 20_000
    assert all(isinstance(output, Forget) for output in again), "what is too much is forgotten on disk"
    assert len(again) == len(history) - len(smaller)


@pytest.mark.parametrize(("reason_bytes", "bytes_max", "count_max"), [(0, 500, 0), (1000, 1, 0), (100, 10_000, 7)])
def test_pages_have_all_records_once_and_are_bounded(reason_bytes: int, bytes_max: int, count_max: int) -> None:
    history = History(lambda _: None, 0.0)
    noted(history, "other", 30, reason_bytes)
    names = noted(history, "ours", 100, reason_bytes)
    found, page = [], history.page({"ours"}, count_max=count_max, bytes_max=bytes_max)
    while True:
        assert len(page.jobs) == 1 or sum(record.ByteSize() for record in page.jobs) <= bytes_max
        assert 1 <= len(page.jobs) <= (count_max or 100)
        found += [record.name for record in page.jobs]
        if not page.next_page:
            break
        noted(history, "other", 1, 0)
        noted(history, "ours", 1, 0)  # a later one is on no later page
        page = history.page({"ours"}, count_max=count_max, page=page.next_page, bytes_max=bytes_max)
    assert found == names


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
    assert "its certificate was revoked" in harness.jobs.history.page(None, "running").jobs[0].reason
    harness.wait(6)
    assert [job.name for job in harness.jobs.all()] == ["other"]


def test_a_certificate_is_remembered_over_a_restart_and_updated_on_reconnection(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        before = JobsHarness(store=store)
        (worker,) = before.running(1)
        member = join.Member(
            job=worker.job.lease.number, worker=0, token=worker.token, switch_name=worker.job.lease.switch_name
        )
        before.jobs.attend(member, before.now, Asker(certificate="ab12"))
        before.wait(0.2, beating=[worker])
        after = JobsHarness(store=store)
        after.jobs.attend(member, after.now, Asker(certificate="cd34"))
        after.jobs.expel(lambda serial: serial == "ab12", after.now)
        assert not found(after), "it shows another one now"
        again = JobsHarness(store=store)
        again.jobs.expel(lambda serial: serial == "ab12", again.now)
        assert found(again) == [("a-job", "worker_lost")]


class Watched:
    """A record that counts how often anybody looks at one."""

    looks = 0

    def __init__(self, sequence: int, job: join.EndedJob) -> None:
        self._sequence, self.job = sequence, job

    @property
    def sequence(self) -> int:
        Watched.looks += 1
        return self._sequence


@pytest.mark.parametrize(("job_name", "page"), [("no-such-job", 0), ("", 1), ("a-job", 1)])
@pytest.mark.parametrize("tenants", [None, frozenset({"ours"}), frozenset({"ours", "theirs"})])
def test_who_asks_for_what_there_is_not_costs_little(job_name: str, page: int, tenants: frozenset[str] | None) -> None:
    """A worker may ask five hundred times a second."""
    history = History(lambda _: None, 0.0)
    jobs = (join.EndedJob(name="a-job", tenant=("ours", "theirs")[number % 2]) for number in range(ENDED_MAX))
    history.restore(Watched(number, job) for number, job in enumerate(jobs, 1))  # type: ignore[misc]
    Watched.looks = 0
    assert list(history.page(tenants, job_name, page=page).jobs) == []
    assert Watched.looks < 50


def test_pages_by_name_and_tenant_have_what_is_kept_after_a_flood() -> None:
    history = History(lambda _: None, 0.0, ended_max=50)
    for number in range(200):
        job = Job(f"job-{number % 3}", 0.0, Terms(), Members(1), f"tenant-{number % 2}")
        history.note_given_up(job, str(number), 1.0)
    kept = [int(record.reason) for record in history.page(None).jobs]
    assert kept == list(range(199, 149, -1))
    for name in range(4):
        for tenant in range(3):
            found = history.page(frozenset({f"tenant-{tenant}"}), f"job-{name}").jobs
            assert [int(record.reason) for record in found] == [n for n in kept if n % 3 == name and n % 2 == tenant]
