"""Every integer of every message that a worker or an operator sends, with its extremes, in every state of a job, before
and after a restart of the service: afterwards the service reports, and the next one goes on.

The messages and their fields are those that join.proto and operator.proto define, so a new one is tested too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wiresum import join
from wiresum.controller.jobs import outputs, report
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.moving import MOVE_NUMBER_MAX
from wiresum.controller.jobs.records import (
    EndedRecord,
    JobRecord,
    Reservation,
    SetAside,
    StoredState,
    job_of,
)
from wiresum.controller.jobs.refusal import Refusal
from wiresum.join import join_pb2, operator_pb2
from wiresum_lab.doubles.controller import JobsHarness, join_request, member
from wiresum_lab.doubles.moving import positions, restart, running, two

SLOTS = 16


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


class Memory:
    """What is written down, without a disk."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, object], Any] = {}
        self._keys = Keys(KeySequence.draw())

    def keys(self) -> Keys:
        return self._keys

    def write(self, writes: Iterable[outputs.Write]) -> None:
        for write in writes:
            match write:
                case outputs.Save(record):
                    if isinstance(record, SetAside):
                        del self._kept[_place(record.record)]
                    self._kept[_place(record)] = record
                case outputs.Forget(record):
                    del self._kept[_place(record)]

    def load(self) -> StoredState:
        def of(kind: type) -> list[Any]:
            return [each for each in self._kept.values() if isinstance(each, kind)]

        return StoredState(
            jobs=of(JobRecord), reservations=of(Reservation), ended=of(EndedRecord), set_aside=of(SetAside)
        )


def _place(record: outputs.Record) -> tuple[str, object]:
    match record:
        case JobRecord(switch_name, number):
            return "job", (switch_name, number)
        case Reservation(job_name):
            return "reservation", job_name
        case _:
            return type(record).__name__, record.sequence


class World:
    """A job of three workers that can move, at one of two switches, and the services that it has one after the other.
    `member` is what its second worker says that it is."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.made = self._service(100.0)
        self.attempt = "mine"
        self.member = join.Member(token="0" * 32)
        self.numbers = [0]
        """Around which others are tried."""

    def _service(self, now: float) -> JobsHarness:
        return JobsHarness(switches=two(), store=self.memory, now=now)  # type: ignore[arg-type]

    def restart(self) -> None:
        lives = self.made.lives
        self.made = self._service(self.made.now + 1)
        self.made.lives = lives

    def run(self) -> list[Worker]:
        workers = running(self.made, slots=SLOTS, attempt=self.attempt)
        self.note(workers[1])
        return workers

    def note(self, worker: Worker) -> None:
        job = worker.job
        self.member = member(worker)
        self.numbers = [
            job.move_number,
            job.lease.number,
            job.lease.slots,
            job.members.world_size,
            job.lease.threads,
            job.lease.lanes,
            worker.number,
        ]

    def check(self) -> None:
        """The service reports all, and what it has written down can be read and said."""
        found = report.report(self.made.jobs, {}, self.made.now)
        assert "cannot be reported" not in str(found)
        assert not found.set_aside
        state = self.memory.load()
        assert {record.name for record in state.jobs} <= {job.name for job in found.jobs}
        assert all(job_of(record, 0.0, 0.0).move_number < MOVE_NUMBER_MAX for record in state.jobs)
        self.made.jobs.history.page(None)
        for job in self.made.jobs.all():
            report.diagnosis(job, {}, self.made.now, self.made.jobs.moving)
            assert not job.tick_fails


def none(world: World) -> None:
    """There is no job."""


def forming(world: World) -> None:
    world.note(world.made.ask(rank=1, world_size=3, attempt=world.attempt))


def queued(world: World) -> None:
    for each in world.made.switches:
        world.made.jobs.drain(each.name, resume=False)
    world.note(world.made.ask_all(3, attempt=world.attempt)[1])


def admitting(world: World) -> None:
    world.made.switch_answers = False
    world.note(world.made.ask_all(3, attempt=world.attempt)[1])


def runs(world: World) -> None:
    world.run()


def looks_for_a_place(world: World) -> None:
    workers = world.run()
    for each in world.made.switches:
        world.made.jobs.drain(each.name, resume=False)
    world.made.wait(0.2, beating=workers)


def moving(world: World, deaf: Sequence[int] = (0, 1, 2)) -> None:
    workers = world.run()
    world.made.deaf = {workers[rank].token for rank in deaf}
    restart(world.made, workers[0].job.lease.switch_name)
    world.note(workers[1])


def one_is_to_halt(world: World) -> None:
    moving(world, deaf=[1])


def moved(world: World) -> None:
    """And the second worker has not heard of it."""
    moving(world, deaf=[1])
    (job,) = world.made.jobs.all()
    halted = join.Halted(move_number=job.move_number, positions=positions(slots=SLOTS))
    world.made.jobs.beat(job.members.workers[1], 1, world.made.now, halted)
    world.made.settle()
    assert job.members.going_on is not None
    world.note(job.members.workers[1])


def ending(world: World) -> None:
    workers = world.run()
    world.made.switch_answers = False
    world.made.abort(workers[0], "a reason")


STATES = (none, forming, queued, admitting, runs, looks_for_a_place, moving, one_is_to_halt, moved, ending)


def of_join(world: World) -> join.JoinRequest:
    resumed = join.Resumed(slots=SLOTS, threads=4, lanes=64, positions=positions(slots=SLOTS), job_id=bytes(16))
    return join_request(rank=1, world_size=3, attempt=world.attempt, slots=SLOTS, resumed=resumed)


def of_heartbeat(world: World) -> join.Heartbeat:
    halted = join.Halted(move_number=world.numbers[0], positions=positions(slots=SLOTS))
    return join.Heartbeat(member=world.member, round_newest=5, halted=halted)


def hear(made: JobsHarness, heartbeat: join.Heartbeat) -> None:
    worker = made.jobs.attend(heartbeat.member, made.now)
    made.jobs.beat(worker, heartbeat.round_newest, made.now, heartbeat.halted if heartbeat.HasField("halted") else None)


CALLS: dict[str, tuple[Callable[[World], Message], Callable[[JobsHarness, Any], object]]] = {
    "Join": (of_join, lambda made, said: made.jobs.ask(said, made.now)),
    "Attend": (of_heartbeat, hear),
    "Leave": (
        lambda world: join.LeaveRequest(member=world.member),
        lambda made, said: made.jobs.leave(said, made.now),
    ),
    "Abort": (
        lambda world: join.AbortRequest(member=world.member, reason="a reason"),
        lambda made, said: made.jobs.abort(said, made.now),
    ),
    "Diagnose": (lambda world: world.member, lambda made, said: made.jobs.find(said)),
    "GetReport": (
        lambda _: join.GetReportRequest(),
        lambda made, _: report.report(made.jobs, {}, made.now),
    ),
    "ListEnded": (
        lambda _: join.ListEndedRequest(),
        lambda made, said: made.jobs.history.page(None, said.job_name, count_max=said.count_max, page=said.page),
    ),
    "CreateJob": (
        lambda _: join.CreateJobRequest(job_name="created", world_size=1),
        lambda made, said: made.jobs.create(said, made.now),
    ),
    "EndJob": (
        lambda _: join.EndJobRequest(job_name="a-job"),
        lambda made, said: made.jobs.end(said.job_name, said.reason, made.now),
    ),
    "Drain": (
        lambda _: join.DrainRequest(switch_name="first"),
        lambda made, said: made.jobs.drain(said.switch_name, resume=said.resume),
    ),
    "DiscardRecord": (
        lambda _: join.DiscardRecordRequest(job_name="a-job"),
        lambda made, said: made.jobs.set_aside.remove(said.job_name),
    ),
}
"""By method: a message as an honest caller says it, and what the service is told."""

METHODS = [
    method
    for definitions in (join_pb2, operator_pb2)
    for service in definitions.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name != "Prove"  # which asks no job for anything: served.py
]
RANGES = {
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}
Path = tuple[str, ...]


def integers(descriptor: Any) -> Iterator[tuple[Path, int]]:
    """The integer fields of a message and of those inside, with their types."""
    for field in descriptor.fields:
        if field.message_type is not None and not field.is_repeated:
            for path, kind in integers(field.message_type):
                yield (field.name, *path), kind
        elif field.cpp_type in RANGES:
            assert not field.is_repeated, "there is none yet"
            yield (field.name,), field.cpp_type


FIELDS = [(method.name, path, *RANGES[kind]) for method in METHODS for path, kind in integers(method.input_type)]


def with_value(message: Message, path: Path, value: int) -> Message:
    changed = type(message)()
    changed.CopyFrom(message)
    inside: Any = changed
    for name in path[:-1]:
        inside = getattr(inside, name)
    setattr(inside, path[-1], value)
    return changed


def values(world: World, least: int, most: int) -> list[int]:
    near = {number + more for number in world.numbers for more in (-1, 0, 1, 2)}
    found = {least, least + 1, -1, 0, 1, most - 1, most} | near
    return sorted(value for value in found if least <= value <= most)


def say(world: World, method: str, message: Message) -> None:
    with contextlib.suppress(Refusal):
        CALLS[method][1](world.made, message)
    world.made.settle()
    world.made.wait(0.2)
    world.check()


def test_every_call_and_many_fields_are_covered() -> None:
    assert {method.name for method in METHODS} == set(CALLS)
    assert {("Attend", ("halted", "move_number")), ("Join", ("resumed", "slots")), ("Join", ("endpoint", "port"))} <= {
        (method, path) for method, path, *_ in FIELDS
    }


def cases(state: Callable[[World], None]) -> Iterator[tuple[str, Path, int, bool]]:
    """A method, a field, its value, and whether the service before the restart hears it too."""
    world = World()
    state(world)
    for method, path, least, most in FIELDS:
        for value, before in itertools.product(values(world, least, most), (False, True)):
            yield method, path, value, before


@pytest.mark.parametrize("part", [41, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("state", STATES)
def test_any_integer_in_any_state_leaves_what_can_be_reported_and_taken_over(
    state: Callable[[World], None], part: int
) -> None:
    """Of the cases one in `part`."""
    for method, path, value, before in itertools.islice(cases(state), 0, None, part):
        world = World()
        state(world)
        message = with_value(CALLS[method][0](world), path, value)
        if before:
            say(world, method, message)
        world.restart()
        say(world, method, message)
        world.restart()
        world.made.wait(0.2)
        world.check()
