"""Records that a service cannot go on with: the others go on, and nothing of them is lost or given away too early."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from wiresum import join
from wiresum.controller.driver import JobCounters, SwitchSizes
from wiresum.controller.jobs import lost_workers, report
from wiresum.controller.jobs import set_aside as set_aside_module
from wiresum.controller.jobs.job import Job, State
from wiresum.controller.jobs.outputs import Reconcile, Save, Tell
from wiresum.controller.jobs.records import JobRecord, RecordError, job_of
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import JobsHarness, member, switch
from wiresum_lab.doubles.moving import SIZES

U32_MAX = (1 << 32) - 1


def poison(store: Store, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes what is written down of a job, as a release with a bug might."""
    (record,) = (record for record in store.load().jobs if record.name == name)
    body = json.loads(record.body)
    change(body)
    store.write([Save(JobRecord(record.switch_name, record.number, name, record.state, json.dumps(body)))])


def damage(store: Store, name: str) -> None:
    store._database.execute("UPDATE jobs SET body = body || ' ' WHERE name = ?", (name,))


def set_aside(made: JobsHarness) -> dict[str, str]:
    """By name, with the reason."""
    return {each.name: each.why for each in report.report(made.jobs, {}, made.now).set_aside}


def running(made: JobsHarness, name: str) -> None:
    made.running(1, job_name=name, slots=256)


def number_too_large(store: Store) -> None:
    poison(store, "bad", lambda body: body.update(move_number=1 << 32))


FAULTS: dict[str, Callable[[Store], None]] = {
    "a number too large": number_too_large,
    "a damaged row": lambda store: damage(store, "bad"),
    "no field": lambda store: poison(store, "bad", lambda body: body.pop("lanes")),
    "another's slots": lambda store: poison(
        store, "bad", lambda body: body["nodes"][0].update(lease={"base": 0, "count": 256})
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_cannot_be_used_is_set_aside_and_the_others_go_on(store: Store, fault: str) -> None:
    before = JobsHarness(SIZES, store=store)
    running(before, "good")
    running(before, "bad")
    FAULTS[fault](store)
    for _ in range(2):  # it is tried again, and fails again
        store.begin()
        after = JobsHarness(SIZES, store=store)
        assert [job.name for job in after.jobs.all()] == ["good"]
        assert list(set_aside(after)) == ["bad"]
        (reconcile,) = after.outputs(Reconcile)
        assert [entry.slot_base for entry in reconcile.entries] == [0], "the switch forgets the other one"
    running(after, "next")  # it has the slots of the other one, and its number
    assert {record.name for record in store.load().jobs} == {"good", "next"}
    assert after.jobs.set_aside.remove("bad") == 1
    after.settle()
    assert (set_aside(after), store.load().set_aside) == ({}, [])
    store.begin()
    assert set_aside(JobsHarness(SIZES, store=store)) == {}


def test_a_job_goes_on_when_the_configuration_has_its_switch_again(store: Store) -> None:
    before = JobsHarness(switches=[switch("left", SIZES), switch("right", SIZES)], store=store)
    workers = before.running()
    name = workers[0].job.lease.switch_name
    (other,) = {"left", "right"} - {name}
    store.begin()
    without = JobsHarness(switches=[switch(other, SIZES)], store=store)
    assert set_aside(without) == {"a-job": f"there is no switch {name} any more"}
    store.begin()
    after = JobsHarness(switches=[switch("left", SIZES), switch("right", SIZES)], store=store)
    assert [(job.name, job.state) for job in after.jobs.all()] == [("a-job", State.RUNNING)]
    assert (set_aside(after), store.load().set_aside) == ({}, [])
    assert len(store.load().jobs) == 1
    for worker in workers:
        after.jobs.attend(member(worker), after.now)
    after.wait(2, beating=list(after.jobs.all()[0].members.workers.values()))
    assert after.outputs(Tell) == []


def test_a_job_that_was_set_aside_does_not_take_the_name_that_another_has_now(store: Store) -> None:
    def serve(*names: str) -> JobsHarness:
        store.begin()
        return JobsHarness(switches=[switch(name, SIZES) for name in names], store=store)

    name = serve("left", "right").running()[0].job.lease.switch_name
    (other,) = {"left", "right"} - {name}
    (worker,) = serve(other).running(1)
    for _ in range(2):  # it is tried again, and fails again
        after = serve("left", "right")
        assert set_aside(after) == {"a-job": "another job has its name"}
        assert [job.lease.switch_name for job in after.jobs.all()] == [other]
    after.leave(after.jobs.attend(member(worker), after.now))
    assert serve(name, other).jobs.roster.named["a-job"].lease.switch_name == name, "the name is free"


def test_a_job_of_a_host_that_is_no_longer_configured_disturbs_no_other(store: Store) -> None:
    before = JobsHarness(store=store)
    before.running(job_name="gone", endpoint=join.Endpoint(address="10.0.0.9", port=5000), world_size=1)
    (worker,) = before.running(job_name="stays", endpoint=join.Endpoint(address="10.0.0.8", port=5000), world_size=1)
    after = JobsHarness(store=store, switches=[switch(addresses=["10.0.0.8"])])
    assert [job.name for job in after.jobs.all()] == ["stays"]
    (reconcile,) = after.outputs(Reconcile)
    assert reconcile.entries == (worker.job.lease.root.entry,)
    assert "no host with the address 10.0.0.9" in set_aside(after)["gone"]


@pytest.mark.parametrize(
    "sizes",
    [
        SwitchSizes(slots=512, lanes_max=360, jobs_max=1),
        SwitchSizes(slots=512, lanes_max=8, jobs_max=8),
        SwitchSizes(slots=512, lanes_max=360, jobs_max=8, threads_max=1),
    ],
)
def test_a_job_that_its_switch_has_become_too_small_for_is_set_aside(store: Store, sizes: SwitchSizes) -> None:
    """Its entries would make all that the switch is told fail."""
    JobsHarness(SIZES, store=store).running(1, job_name="bad")
    store.begin()
    after = JobsHarness(sizes, store=store)
    assert list(set_aside(after)) == ["bad"]
    assert after.slots_free == 512


def test_records_set_aside_are_forgotten_with_the_keys(store: Store) -> None:
    """The next sequence may have theirs."""
    before = JobsHarness(SIZES, store=store)
    running(before, "bad")
    number_too_large(store)
    store.begin()
    assert set_aside(JobsHarness(SIZES, store=store))
    (store.path.parent / "keys").unlink(missing_ok=True)
    for path in store.path.parent.glob("*"):
        if "sqlite" not in path.name:
            path.unlink()
    store.begin()
    assert set_aside(JobsHarness(SIZES, store=store)) == {}
    assert store.load().set_aside == []


def test_of_too_many_records_the_oldest_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_aside_module, "SET_ASIDE_MAX", 2)
    before = JobsHarness(store=store)
    for n in range(4):
        running(before, f"job-{n}")
        poison(store, f"job-{n}", lambda body: body.update(key=0))
    store.begin()
    after = JobsHarness(store=store)
    assert list(set_aside(after)) == ["job-2", "job-3"]
    assert [each.record.name for each in store.load().set_aside] == ["job-2", "job-3"]
    running(after, "job-4")
    poison(store, "job-4", lambda body: body.update(key=0))
    store.begin()
    assert list(set_aside(JobsHarness(store=store))) == ["job-3", "job-4"]


def test_a_record_with_a_name_of_any_bytes_is_shown_and_removed(store: Store) -> None:
    before = JobsHarness(store=store)
    running(before, "bad")
    store._database.execute("UPDATE jobs SET name = CAST(X'0A1B80FF' AS TEXT)")
    store.begin()
    after = JobsHarness(store=store)
    (name,) = set_aside(after)
    assert name.isprintable()
    after.jobs.set_aside.remove(name)
    code, text = after.refusal_of(lambda: after.jobs.set_aside.remove("x"))
    assert (code, text) == ("NOT_FOUND", "no record of a job 'x' is set aside; there are: none")


# What a record may say.

EXTREMES = (-(1 << 64), -(1 << 31), -1, 0, 1, 255, 65535, 65536, 1 << 31, U32_MAX - 1, U32_MAX, U32_MAX + 1, 1 << 64)
OTHERS: tuple[Any, ...] = (None, True, 1.5, float("nan"), float("inf"), "", "x", "\ud800", [], {}, [0], {"x": 0})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value in the JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inside for place in places(each, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("state", ["running", "moving", "ending"])
def test_a_record_with_any_value_anywhere_is_refused_or_can_be_said(
    store: Store, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of whatever a service goes on with, all messages can be built, and the record can be written again."""
    store._database.execute("PRAGMA synchronous = OFF")  # here nobody cuts the power
    made = JobsHarness(SIZES, store=store)
    workers = made.running(2, slots=16)
    (record,) = store.load().jobs
    body = json.loads(record.body)
    if state == "ending":
        body["ended"] = base64.b64encode(join.JobEnded(reason="it is over").SerializeToString()).decode()
    refused = gone_on = 0
    for path in places(body):
        for new in (*EXTREMES, *OTHERS):
            changed = json.dumps(replaced(body, path, new))
            try:
                job_of(JobRecord(record.switch_name, record.number, record.name, state, changed), 0.0, 0.0)
            except RecordError:
                refused += 1
                continue
            gone_on += 1
            store.write([Save(JobRecord(record.switch_name, record.number, record.name, state, changed))])
            after = JobsHarness(SIZES, store=store)
            for worker in workers:
                try:
                    again = after.jobs.attend(member(worker), after.now)
                    after.beat(again)
                except Exception as error:
                    assert "knows no such member" in str(error)
            after.wait(0.2)
            assert "cannot be reported" not in str(report.report(after.jobs, {}, after.now))
            store.write([Save(record)])
    assert "could not be read" not in caplog.text, "it is known what is wrong with each"
    assert "cannot be watched" not in caplog.text
    assert refused > 500
    assert gone_on > 50


# What others say of a job.


def test_a_job_that_cannot_be_reported_hides_no_other(store: Store) -> None:
    """Counters come from a switch, which may count anything."""
    made = JobsHarness(SIZES, store=store)
    running(made, "good")
    running(made, "bad")
    numbers = {job.name: job.lease.number for job in made.jobs.all()}
    counters = {numbers["good"]: JobCounters(results=7), numbers["bad"]: JobCounters(results=-1)}
    found = report.report(made.jobs, {"leaf": (JobCounters(packets={"unknown": 1 << 64}), counters)}, made.now)
    said = {job.name: (job.state, job.results, job.waiting) for job in found.jobs}
    assert said["good"] == ("running", 7, "")
    assert said["bad"][:2] == ("running", 0)
    assert "it cannot be reported" in said["bad"][2]
    assert [each.uncounted for each in found.switches] == [True]


def test_a_job_that_cannot_be_watched_lets_no_other_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = lost_workers.look

    def fails(job: Job, *others: Any) -> Any:
        assert job.name != "bad", "a bug"
        return look(job, *others)

    monkeypatch.setattr(lost_workers, "look", fails)
    made = JobsHarness(SIZES)
    for name in ("bad", "good"):
        made.ask(job_name=name, world_size=2, timeout_ms=1000)
    made.wait(3)
    assert [job.name for job in made.jobs.all()] == ["bad"]
    assert caplog.text.count("cannot be watched") == 1
