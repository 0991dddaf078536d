"""What a worker has said of its job's end is heard by all, whatever the services do meanwhile."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum import join as messages
from wiresum.agent import absence as absence_module
from wiresum.agent import lifetime, resuming
from wiresum.agent import membership as module
from wiresum.agent.absence import Absence
from wiresum.agent.aggregators import Aggregators
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    JobAbortedError,
    SessionClosedError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLeftError,
)
from wiresum.agent.membership import Membership, _End
from wiresum.agent.resuming import Resuming
from wiresum_lab.doubles.resuming import CutOff, DataPath, FallbackOf, Job, Service, Start
from wiresum_lab.processes import PATIENCE_S, wait_until

REASON = "the loss is NaN"


@contextlib.contextmanager
def leaving(member: Membership) -> Iterator[None]:
    """In a thread of its own, which must end by itself afterwards."""
    thread = threading.Thread(target=member.leave)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it leaves"


def all_hear(job: Job, kind: type[WiresumError], text: str, *, but: int | None = None) -> None:
    """`but`: a rank that leaves, and so need not hear it."""
    for rank, path in enumerate(job.paths):
        if rank != but:
            wait_until(lambda: path.errors, f"rank {rank} hears it", PATIENCE_S)  # noqa: B023
        assert len(path.errors) <= 1 and all(type(error) is kind for error in path.errors), path.errors
        assert all(text in str(error) for error in path.errors)
        assert path.moves == [], "nobody goes on"


def attending(job: Job, service: Service) -> Callable[[], object]:
    return lambda: None


def away(job: Job, service: Service) -> Callable[[], object]:
    """The service is gone, and nobody has given it up yet."""
    cut_off = [CutOff(member, halts=False) for member in job.members]
    service.kill()

    def back() -> None:
        service.start()
        for each in cut_off:
            each.over()

    return back


def looking(job: Job, service: Service) -> Callable[[], object]:
    """All have halted, and look for a lease."""
    service.kill()
    wait_until(lambda: all(member._resuming for member in job.members), "they look", PATIENCE_S, job.check)
    return service.start


def waiting(job: Job, service: Service) -> Callable[[], object]:
    """Two wait at a service that has forgotten the job, for a third one."""
    late = CutOff(job.members[2])
    service.kill()
    service.start()
    wait_until(lambda: service.jobs() and service.jobs()[0].joined == 2, "they wait", PATIENCE_S, job.check)
    return late.over


def moving(job: Job, service: Service) -> Callable[[], object]:
    """A service has told all to halt, and is killed before they have another lease."""
    driver = service._driver
    driver.refuse_with = "it takes no jobs"
    driver.change("it was killed", forgetting=True)
    driver.change("")
    wait_until(lambda: all(path.halted for path in job.paths), "they have halted", PATIENCE_S, job.check)
    service.kill()
    return service.start


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
@pytest.mark.parametrize("when", [attending, away, looking, waiting, moving])
def test_all_hear_who_has_ended_the_job_and_why(
    service: Service, start: Start, when: Callable[[Job, Service], Callable[[], object]], *, leaves: bool
) -> None:
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()])
    back = when(job, service)
    job.members[1].abort(REASON)
    job.members[1].abort("another reason")
    with leaving(job.members[1]) if leaves else contextlib.nullcontext():
        back()
        all_hear(job, JobAbortedError, f"ended the job: {REASON}", but=1 if leaves else None)
    assert "rank 1 (" in str(job.paths[0].errors[0])
    assert when not in (attending, away) or job.paths[1].halted == 0, "it does nothing else from then on"


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
def test_it_is_told_to_a_service_that_has_its_state_on_disk(start: Start, tmp_path: Path, *, leaves: bool) -> None:
    service = Service(state=tmp_path / "state").start()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(service.kill)
        job = start(service.endpoint, [DataPath(), DataPath()])
        back = away(job, service)
        job.members[0].abort(REASON)
        with leaving(job.members[0]) if leaves else contextlib.nullcontext():
            back()
            all_hear(job, JobAbortedError, REASON, but=0 if leaves else None)


def test_it_is_told_to_a_standby_that_does_not_know_the_job(service: Service, start: Start) -> None:
    standby = Service()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(standby.kill)
        job = start(f"{service.endpoint},{standby.endpoint}", [DataPath(), DataPath()])
        away(job, service)
        job.members[0].abort(REASON)
        with leaving(job.members[0]):
            standby.start()
            for member in job.members:
                del member._attend_until_broken  # they reach what there is
            all_hear(job, JobAbortedError, REASON, but=0)


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
def test_it_is_told_at_the_fallback_that_is_just_being_started(
    service: Service, start: Start, fallback: FallbackOf, monkeypatch: pytest.MonkeyPatch, *, leaves: bool
) -> None:
    monkeypatch.setattr(absence_module, "FALLBACK_S", 0.3)
    monkeypatch.setattr(resuming, "FALLBACK_AFTER_S", 0.3)
    job = start(service.endpoint, [DataPath(), DataPath(), DataPath()], fallback)
    service.kill()
    wait_until(lambda: fallback.opened, "somebody starts it", PATIENCE_S, job.check)
    job.members[2].abort(REASON)
    with leaving(job.members[2]) if leaves else contextlib.nullcontext():
        for path in job.paths[:2]:
            wait_until(lambda: path.errors or path.moves, "it has heard", PATIENCE_S)  # noqa: B023
            wait_until(lambda: path.errors, "it has ended", PATIENCE_S)  # noqa: B023
            assert isinstance(path.errors[0], JobAbortedError) and REASON in str(path.errors[0])


def test_who_leaves_while_others_wait_for_it_is_named(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(), DataPath()])
    late = waiting(job, service)
    job.members[0].leave()
    late()
    all_hear(job, WorkerLeftError, "has left the job", but=0)


def test_a_job_of_that_name_can_begin_when_all_have_heard(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    back = looking(job, service)
    job.members[0].abort(REASON)
    back()
    all_hear(job, JobAbortedError, REASON)
    again = start(service.endpoint, [DataPath(), DataPath()])
    again.check()


def test_an_order_without_any_service_is_given_up_in_time_and_a_warning_says_so(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ABORT_S_MAX", 0.1)
    job = start(service.endpoint, [DataPath(), DataPath()])
    looking(job, service)
    job.members[0].abort(REASON)
    with leaving(job.members[0]):
        pass
    assert "no service has heard yet that this worker has ended job 'a-job' (the loss is NaN)" in caplog.text
    job.members[1].leave()


def test_a_grant_that_comes_after_the_abort_is_used_for_nothing_but_to_tell_it(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Resuming.ask

    def ask_as_if_there_were_no_order(
        self: Resuming, request: messages.JoinRequest, grant: messages.JoinReply
    ) -> messages.JoinReply | None:
        monkeypatch.setattr(self, "_order", lambda: None)
        monkeypatch.setattr(self, "_asking", self._telling)
        return ask(self, request, grant)

    job = start(service.endpoint, [DataPath(), DataPath()])
    back = looking(job, service)
    job.members[0].abort(REASON)
    monkeypatch.setattr(Resuming, "ask", ask_as_if_there_were_no_order)
    back()
    for path in job.paths:
        wait_until(lambda: path.errors, "it has ended", PATIENCE_S)  # noqa: B023
        assert isinstance(path.errors[0], JobAbortedError) and REASON in str(path.errors[0])
    assert job.paths[0].moves == []


@pytest.mark.parametrize("leaves", [False, True])
def test_a_data_path_that_cannot_halt_ends_the_job_for_all(service: Service, start: Start, *, leaves: bool) -> None:
    """`leaves`: the worker does so as soon as it hears of it."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    failing, errors = job.members[1], job.paths[1].errors

    def fail() -> bytes:
        raise ValueError("a thread has died")

    leaver = threading.Thread(target=failing.leave)

    def leave(error: WiresumError) -> None:
        errors.append(error)
        leaver.start()
        wait_until(lambda: failing._leaves, "it leaves", PATIENCE_S)

    if leaves:
        failing._on_ended = leave
    failing._moves.set_data_path(fail, job.paths[1].move)
    service.kill()
    service.start()
    first, second = job.await_errors()
    if leaves:
        leaver.join(PATIENCE_S)
        assert not leaver.is_alive()
    assert "the job cannot move to another lease: a thread has died" in str(second)
    assert isinstance(first, JobAbortedError) and "a thread has died" in first.reason


@pytest.mark.parametrize("inner", ["abort", "leave"])
@pytest.mark.parametrize("outer", ["abort", "leave"])
def test_the_handler_of_a_signal_may_end_the_job_while_its_thread_does(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch, outer: str, inner: str
) -> None:
    monkeypatch.setattr(module, "ABORT_S_MAX", 600.0)
    job = start(service.endpoint, [DataPath(), DataPath()])
    member = job.members[0]
    tell, interrupted = member._tell, threading.Event()

    def end(how: str) -> None:
        member.abort(REASON) if how == "abort" else member.leave()

    def tell_interrupted(*what: object) -> bool:
        if not interrupted.is_set():
            interrupted.set()
            end(inner)
        return tell(*what)  # type: ignore[arg-type]

    member._tell = tell_interrupted  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=end, args=(outer,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert interrupted.is_set() and not thread.is_alive()
    wait_until(lambda: job.paths[1].errors, "the other one hears it", PATIENCE_S)
    assert (REASON in str(job.paths[1].errors[0])) == (outer == "abort")


def test_all_jobs_of_a_process_that_ends_look_for_a_service_in_the_same_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one does so for as long as it takes until every one has given its order."""
    services = [Service().start() for _ in range(3)]
    jobs = [start(service.endpoint, [DataPath(), DataPath()]) for service in services]
    for job, service in zip(jobs, services, strict=True):
        looking(job, service)
    ending = [job.members[0] for job in jobs]
    monkeypatch.setattr(lifetime, "_alive", set(ending))
    monkeypatch.setattr(sys, "last_value", ValueError("a bug"), raising=False)
    given: list[bool] = []

    def note_given(self: Membership, give_up_at: float) -> None:
        given.extend(member._abort.order is not None for member in ending)

    monkeypatch.setattr(Membership, "_await_told", note_given)
    lifetime._end_all()
    assert given == [True] * 9
    assert all("ended with ValueError: a bug" in member._abort.order.reason for member in ending if member._abort.order)


# At several aggregators.


@pytest.fixture
def two() -> Iterator[list[Service]]:
    services = [Service().start(), Service().start()]
    yield sorted(services, key=lambda service: service.endpoint)
    for service in services:
        service.kill()


class Halting:
    """What moves the data paths of all aggregators, which go nowhere."""

    def halt(self, aggregator: int, slots: int) -> bytes:
        return bytes(4 * slots)

    def move(self, aggregator: int, grant: messages.JoinReply, roles: bytes) -> None:
        raise AssertionError("nobody goes on")


def join_both(two: list[Service]) -> tuple[list[Aggregators], list[list[WiresumError]]]:
    config = AgentConfig(switch="+".join(service.endpoint for service in two), join_timeout_s=PATIENCE_S)
    errors: list[list[WiresumError]] = [[], []]
    joined: dict[int, Aggregators] = {}

    def join(rank: int) -> None:
        joined[rank] = Aggregators.join(
            config, job_name="a-job", rank=rank, world_size=2, bind=lambda *_: 5000 + 100 * rank,
            on_ended=errors[rank].append, progress=lambda _: 1, moving=Halting(),
        )  # fmt: skip

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [joined[0], joined[1]], errors


@pytest.mark.parametrize("gone", [[0], [1], [0, 1]], ids=str)
def test_one_aggregator_that_hears_it_is_enough(two: list[Service], gone: list[int]) -> None:
    (first, second), errors = join_both(two)
    for index in gone:
        two[index].kill()
    first.abort(REASON)
    thread = threading.Thread(target=first.leave)
    thread.start()
    if len(gone) == 2:
        two[1].start()
    wait_until(lambda: errors[1], "the other one hears it", PATIENCE_S)
    assert isinstance(errors[1][0], JobAbortedError) and REASON in str(errors[1][0])
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    second.leave()


# A worker that leaves looks for no other lease.


@pytest.mark.parametrize("aborts", [False, True])
def test_one_that_has_said_good_bye_neither_halts_nor_looks_for_a_lease(
    service: Service, start: Start, caplog: pytest.LogCaptureFixture, *, aborts: bool
) -> None:
    """Though it hears meanwhile that its job is unknown, which may come faster than the answer to what it has said."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    member, path = job.members[0], job.paths[0]
    broken, said, heard = threading.Event(), threading.Event(), threading.Event()
    tell = member._tell

    def unknown(_: Absence) -> _End:
        broken.set()
        assert said.wait(PATIENCE_S)
        heard.set()
        return _End(SwitchUnreachableError("it does not know the job"), "it does not know it any more")

    def tell_slowly(*what: object) -> bool:
        told = tell(*what)  # type: ignore[arg-type]
        said.set()
        assert heard.wait(PATIENCE_S)
        return told

    member._attend_until_broken, member._tell = unknown, tell_slowly  # type: ignore[method-assign,assignment]
    member._hang_up()
    assert broken.wait(PATIENCE_S)  # else it may hear a pulse in between, and tell the order itself
    if aborts:
        member.abort(REASON)
    member.leave()
    assert member._thread is not None
    member._thread.join(PATIENCE_S)
    assert not member._thread.is_alive()
    assert (path.halted, path.moves, member._resuming) == (0, [], None)
    assert "looks for another lease" not in caplog.text


def test_a_session_that_is_being_closed_neither_halts_nor_ends_the_job(
    service: Service, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Its data path has ended, and its good-bye is still to come."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    asked = threading.Event()

    def closed() -> bytes:
        asked.set()
        raise SessionClosedError("the session was left")

    for member, path in zip(job.members, job.paths, strict=True):
        member._moves.set_data_path(closed, path.move)
    service.kill()
    service.start()
    assert asked.wait(PATIENCE_S)
    for member in job.members:
        member.leave()
    assert [path.errors for path in job.paths] == [[], []]
    assert "looks for another lease" not in caplog.text
    assert "cannot move" not in caplog.text
