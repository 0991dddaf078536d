"""Doubles for tests of jobs and of the join service.

For jobs, a harness sets the clock of their state machine. For the service, there are a driver of a switch that records
its calls, and a client; the service between them is the real one, over loopback.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from wiresum import join as messages
from wiresum.agent.errors import WiresumError
from wiresum.agent.life import Life
from wiresum.agent.life import Worker as AgentWorker
from wiresum.agent.life_table import Do, Event
from wiresum.agent.search import Services
from wiresum.controller.driver import DriverError, Endpoint, JobCounters, JobEntry, Reconciled, SwitchSizes, Versions
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.granting import reply_to
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.outputs import (
    Admit,
    Count,
    Evict,
    GoOn,
    Grant,
    Halt,
    Output,
    Reconcile,
    Refuse,
    Wait,
    Write,
)
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.resources import NOTHING, Amounts, JobShape
from wiresum.controller.store import Store
from wiresum.join import join_pb2_grpc, operator_pb2_grpc
from wiresum.join.constants import SWITCH_PORT, SWITCH_WORKERS_MAX
from wiresum.join.credentials import open_channel
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

T = TypeVar("T")

NOBODY = ("nobody",)
"""The addresses of a switch without a worker directly below it."""


def switch(
    name: str = "leaf",
    sizes: SwitchSizes | None = None,
    addresses: Sequence[str] = (),
    *,
    parent: str = "",
    part_of: str = "",
    endpoint: Endpoint | None = None,
    needs: Callable[[JobShape], Amounts] = lambda _shape: NOTHING,
) -> Switch:
    """A switch of the cluster. `addresses` are of the workers that it reaches, all unless given. `needs` returns the
    amounts of `sizes.tables` that a job takes."""
    sizes = sizes or SwitchSizes(4096, 360, 64)
    endpoint = endpoint or Endpoint("10.0.0.1", SWITCH_PORT)

    def reaches(address: str) -> bool:
        return not addresses or address in addresses

    return Switch(name, "software", sizes, endpoint, reaches, parent=parent, part_of=part_of, needs=needs)


def member(worker: Worker) -> messages.Member:
    return messages.Member(
        job=worker.job.lease.number, worker=worker.number, token=worker.token, switch_name=worker.switch_name
    )


class JobsHarness:
    """`Jobs` with a clock that the test sets, switches that carry out every output unless `switch_answers` is False,
    and the lives of workers, which obey orders to halt and to move."""

    def __init__(
        self,
        sizes: SwitchSizes | None = None,
        limits: Limits | None = None,
        *,
        switches: Sequence[Switch] = (),
        quotas: Iterable[Quota] = (),
        store: Store | None = None,
        keys: Keys | None = None,
        now: float = 100.0,
    ) -> None:
        """Restores the jobs of `store`, if given, whose keys are used unless `keys` are given."""
        self.now = now
        self.switches = list(switches) or [switch(sizes=sizes)]
        keys = keys or (store.keys() if store is not None else Keys(KeySequence.draw()))
        self.jobs = Jobs(self.switches, keys, limits, quotas)
        self.store = store
        self.switch_answers = True
        self.reloaded = False
        """Whether the next switch that is reconciled reports that it has lost its cells."""
        self.contributions: dict[int, list[int]] = {}
        """Contributions of each worker that the switch has counted, by job number; zeros unless given. An empty list
        means that the switch cannot count."""
        self.results: dict[int, int] = {}
        """How many sums the switch has counted, by job number; 0 unless given."""
        self.lives: dict[str, Life] = {}
        """The workers' lives, by token. They outlive the service."""
        self.ahead: dict[int, set[int]] = {}
        """Slots where a worker is a round ahead of the others, by rank."""
        self.deaf: set[str] = set()
        """Tokens of workers that ignore orders."""
        self.done: list[Output] = []
        if store is not None:
            self.jobs.restore(store.load(), self.now)
        for each in self.switches:
            self.jobs.switch_changed(each.name, "", self.now)
        self.settle()

    @property
    def slots_free(self) -> int:
        return sum(each.pool.slots_free for each in self.switches)

    def settle(self) -> None:
        """Carries out all outputs, as if switches answered at once."""
        while outputs := self.jobs.take_outputs():
            self.write(outputs)
            self.carry_out(outputs)

    def write(self, outputs: Sequence[Output]) -> None:
        if self.store is not None:
            self.store.write(output for output in outputs if isinstance(output, Write))

    def carry_out(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self.done.append(output)
            if self.switch_answers or isinstance(output, Halt | GoOn):
                self.answer(output)

    def answer(self, output: Output) -> None:
        match output:
            case Admit(name, entry):
                self.jobs.admitted(name, entry.job, self.now)
            case Evict(name, number) if self.jobs.cluster.switches[name].trouble:
                self.jobs.evict_failed(name, number, self.now)
            case Evict(name, number):
                self.jobs.evicted(name, number, self.now)
            case Count(name, number):
                counts, results = self.contributions.get(number, SWITCH_WORKERS_MAX * [0]), self.results.get(number, 0)
                self.jobs.counted(name, number, counts, self.now, results)
            case Reconcile():
                reloaded, self.reloaded = self.reloaded, False
                self.jobs.reconciled(output, Reconciled(reloaded=reloaded), self.now)
            case Halt(worker, event) | GoOn(worker, event) if worker.token not in self.deaf:
                self.obey(worker, event)

    def obey(self, worker: Worker, event: messages.JobEvent) -> None:
        """Makes a worker carry out an order."""
        told = Event.HALT if event.HasField("halt") else Event.MOVE
        self.happens(worker, told, getattr(event, told.name.lower()))

    def beat(self, worker: Worker, round_newest: int = 1) -> None:
        self.happens(worker, Event.BEAT, round_newest=round_newest)

    def halt_by_itself(self, worker: Worker) -> None:
        """Makes a worker believe that its service is lost, and halt; then the service hears of the halt."""
        if self.life(worker).halted is None:
            self.happens(worker, Event.LOST, WiresumError("the service is lost"), "the service is lost")
        else:
            self.beat(worker)
        self.settle()

    def happens(self, worker: Worker, event: Event, *what: Any, round_newest: int | None = None) -> None:
        """Passes an event to the worker's life, and its heartbeats, farewells and aborts to the service."""
        for do, *which in self.life(worker).handle(event, self.now, *what):
            assert do is not Do.ABORT_ALL, "it halts, and goes on"
            if do is Do.BEAT:
                newest = worker.round_newest if round_newest is None else round_newest
                self.jobs.beat(worker, newest, self.now, which[1])
            elif do is Do.TELL and which[1].cause == messages.JobEnded.WORKER_LEFT:
                self.leave(worker)
            elif do is Do.TELL:
                self.abort(worker, which[1].reason)

    def life(self, worker: Worker) -> Life:
        """The state machine of a worker's process, created on first use."""
        if worker.token not in self.lives:
            grant = reply_to(worker, self.jobs.cluster, self.jobs.limits)
            ahead = self.ahead.get(worker.rank, set())
            rounds = [7 + (slot in ahead) for slot in range(grant.slots)]
            request = join_request(job_name=worker.job.name, rank=worker.rank, world_size=grant.workers)
            self.lives[worker.token] = self.begin(request, grant, rounds)
        return self.lives[worker.token]

    def begin(self, request: messages.JoinRequest, grant: messages.JoinReply, rounds: Sequence[int]) -> Life:
        """A life of a worker that attends. `rounds` has the round that the worker waits for when it halts, by slot."""
        life = Life(request, grant, Services(["service:1"], "", "service:1"), "the service", self.now)
        positions = struct.pack(f">{grant.slots}I", *rounds)
        worker = AgentWorker(halt=lambda: positions, move=lambda _grant, _roles: None)
        life.handle(Event.BEGIN, self.now, worker)
        return life

    @property
    def halted(self) -> set[str]:
        """Tokens of workers that have halted."""
        return {token for token, life in self.lives.items() if life.halted is not None}

    def ask(self, **fields: object) -> Worker:
        worker = self.jobs.ask(join_request(**fields), self.now)
        self.settle()
        return worker

    def ask_all(self, world_size: int, **fields: object) -> list[Worker]:
        return [self.ask(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]

    def running(self, world_size: int = 3, **fields: object) -> list[Worker]:
        workers = self.ask_all(world_size, **fields)
        for worker in workers:
            self.jobs.attend(member(worker), self.now)
        self.settle()
        self.done.clear()
        return workers

    def leave(self, worker: Worker) -> None:
        self.jobs.leave(messages.LeaveRequest(member=member(worker)), self.now)
        self.settle()

    def abort(self, worker: Worker, reason: str, sums_wrong: int = 0) -> None:
        request = messages.AbortRequest(member=member(worker), reason=reason, sums_wrong=sums_wrong)
        self.jobs.abort(request, self.now)
        self.settle()

    def change(self, switch_name: str, trouble: str) -> None:
        self.jobs.switch_changed(switch_name, trouble, self.now)
        self.settle()

    def create(self, **fields: Any) -> str:
        """Creates a job in advance, and returns its token."""
        request = messages.CreateJobRequest(job_name="a-job", world_size=1)
        request.MergeFrom(messages.CreateJobRequest(**fields))
        token = self.jobs.create(request, self.now)
        self.settle()
        return token

    def wait(self, seconds: float, *, beating: Sequence[Worker] = (), round_newest: int = 1) -> None:
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            for worker in beating:
                self.beat(worker, round_newest)
            self.jobs.tick(self.now)
            self.settle()

    def break_streams(self, *workers: Worker) -> None:
        for worker in workers:
            self.jobs.broken(worker, worker.stream, self.now)

    def outputs(self, kind: type[T]) -> list[T]:
        return [output for output in self.done if isinstance(output, kind)]

    def granted(self) -> list[str]:
        """The names of jobs, in the order in which their first workers got their grants."""
        return list(dict.fromkeys(grant.worker.job.name for grant in self.outputs(Grant)))

    def said(self, worker: Worker) -> str:
        """The latest text that told a worker what it waits for."""
        return [wait.waiting.reason for wait in self.outputs(Wait) if wait.worker is worker][-1]

    def refused(self, worker: Worker) -> tuple[str, str]:
        """Code and text of a worker's refusal."""
        (found,) = (refuse.refusal for refuse in self.outputs(Refuse) if refuse.worker is worker)
        return found.code, found.text

    def refusal_of(self, action: Callable[[], object]) -> tuple[str, str]:
        """Code and text of the refusal that the action must raise."""
        try:
            action()
        except Refusal as refusal:
            return refusal.code, refusal.text
        raise AssertionError("this was not refused")


class RecordingDriver:
    """A driver that records its calls, and fails or blocks if a test wants."""

    def __init__(
        self,
        sizes: SwitchSizes | None = None,
        name: str = "recording switch",
        addresses: Sequence[str] = (),
        *,
        parent: str = "",
        port: int = SWITCH_PORT,
    ) -> None:
        """`addresses` are of the workers that the switch reaches, all unless given. `port` is that of its endpoint."""
        self.name = name
        self.parent = parent
        self.part_of = ""
        self.kind = "software"
        self.sizes = sizes or SwitchSizes(slots=4096, lanes_max=360, jobs_max=64, threads_max=16)
        self.endpoint = Endpoint("127.0.0.1", port)
        self.on_change: Callable[[], None] = lambda: None
        self.trouble = ""
        self.calls: list[tuple[str, int]] = []
        self.admitted: dict[int, JobEntry] = {}
        self.entries: list[JobEntry] = []
        self.refuse_with = ""
        self.evictions_to_fail = 0
        self.released = threading.Event()
        """While this event is cleared, every call blocks."""
        self.released.set()
        self._addresses = addresses

    def reaches(self, address: str) -> bool:
        return not self._addresses or address in self._addresses

    def results_group(self, job: int) -> Endpoint | None:
        return None

    def needs(self, shape: JobShape) -> Amounts:
        return NOTHING

    def versions(self) -> Versions:
        return Versions()

    def change(self, trouble: str, *, forgetting: bool = False) -> None:
        """Sets the trouble of the switch. With `forgetting`, the switch was restarted, and holds no jobs."""
        self.trouble = trouble
        if forgetting:
            self.admitted.clear()
        self.on_change()

    def reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        self._record("reconcile", len(entries))
        if any(entry.job not in self.admitted for entry in entries):
            return Reconciled(reloaded=True)
        self.admitted = {entry.job: entry for entry in entries}
        return Reconciled()

    def admit(self, entry: JobEntry) -> None:
        self._record("admit", entry.job)
        if self.refuse_with:
            raise DriverError(self.refuse_with)
        for other in self.admitted.values():
            apart = entry.slot_base + entry.slots <= other.slot_base or other.slot_base + other.slots <= entry.slot_base
            assert apart and entry.job != other.job, f"{entry} collides with {other}"
        assert len(entry.endpoints) == entry.workers
        assert entry.slots % entry.threads == 0
        self.admitted[entry.job] = entry
        self.entries.append(entry)

    def evict(self, job: int) -> None:
        self._record("evict", job)
        if self.evictions_to_fail:
            self.evictions_to_fail -= 1
            raise DriverError("no answer")
        self.admitted.pop(job, None)

    def counters(self, job: int) -> JobCounters:
        self._record("counters", job)
        workers = self.admitted[job].workers if job in self.admitted else 0
        return JobCounters(
            packets={"admitted": 10 * job}, results=job, tensor_last=range(workers), contributions=[5] * workers
        )

    def stray(self) -> JobCounters:
        return JobCounters(packets={"unknown": 3})

    def close(self) -> None:
        self._record("close", 0)

    def _record(self, call: str, job: int) -> None:
        self.calls.append((call, job))
        assert self.released.wait(PATIENCE_S)
        if self.trouble:
            raise DriverError(self.trouble)


def join_request(**fields: object) -> messages.JoinRequest:
    """A valid request, for a job of one worker; `fields` replace its fields."""
    rank = fields.get("rank", 0)
    assert isinstance(rank, int)
    request = messages.JoinRequest(
        protocol_version=messages.PROTOCOL_VERSION,
        job_name="a-job",
        rank=0,
        world_size=1,
        endpoint=messages.Endpoint(address="127.0.0.1", port=5000 + 16 * (rank % 1000)),
        threads_max=4,
        lanes_max=360,
        host_name=f"host-{rank}",
        process_id=1000 + rank % 1000,
        software_version="0.0.test",
        timeout_ms=int(1000 * PATIENCE_S),
    )
    for name, value in fields.items():
        if isinstance(value, messages.Endpoint | messages.Resumed):
            getattr(request, name).CopyFrom(value)
        elif isinstance(value, dict):
            getattr(request, name).update(value)
        else:
            setattr(request, name, value)
    return request


class JoinCall:
    """A call of Join that may wait. It resembles a future, but its stream is read only when the result is wanted."""

    def __init__(self, call: Any) -> None:
        self.events = call
        self.waiting: list[messages.Waiting] = []

    def next_waiting(self) -> messages.Waiting:
        """The next message on what the call waits for."""
        event: messages.JoinEvent = next(self.events)
        assert event.HasField("waiting"), event
        self.waiting.append(event.waiting)
        return event.waiting

    def result(self) -> messages.JoinReply:
        """Waits for the grant. Raises a `grpc.RpcError` if the call is refused."""
        granted: messages.JoinReply | None = None
        for event in self.events:
            if event.HasField("granted"):
                granted = event.granted
            else:
                self.waiting.append(event.waiting)
        assert granted is not None, "the stream ended without an answer"
        return granted

    def refusal(self) -> tuple[str, str]:
        """Code and text of the refusal of a Join that must fail."""
        try:
            reply = self.result()
        except grpc.RpcError as error:
            return refusal_of(error)
        raise AssertionError(f"this Join was not refused, but got {reply}")

    def cancel(self) -> None:
        self.events.cancel()


class Client:
    """The service's stubs, for workers and for operators."""

    def __init__(self, port: int, *, tls: Path | None = None, channel: grpc.Channel | None = None) -> None:
        self.target = f"127.0.0.1:{port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = channel or open_channel(self.target, tls=tls, options=options)
        self.stub = join_pb2_grpc.JoinServiceStub(self.channel)
        self.operator = operator_pb2_grpc.OperatorServiceStub(self.channel)

    def join_soon(self, **fields: object) -> JoinCall:
        return JoinCall(self.stub.Join(join_request(**fields), timeout=PATIENCE_S))

    def join(self, **fields: object) -> messages.JoinReply:
        return self.join_soon(**fields).result()

    def join_all(self, world_size: int, **fields: object) -> list[messages.JoinReply]:
        asked = [self.join_soon(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]
        return [call.result() for call in asked]

    def refusal(self, **fields: object) -> tuple[str, str]:
        return self.join_soon(**fields).refusal()

    def leave(self, reply: messages.JoinReply) -> None:
        self.stub.Leave(messages.LeaveRequest(member=member_of(reply)), timeout=PATIENCE_S)

    def report(self) -> messages.Report:
        return self.operator.GetReport(messages.GetReportRequest(), timeout=PATIENCE_S)

    def jobs(self) -> list[messages.JobReport]:
        return list(self.report().jobs)

    def slots_free(self) -> int:
        return sum(switch.slots_free for switch in self.report().switches)

    def close(self) -> None:
        self.channel.close()


def refusal_of(error: Any) -> tuple[str, str]:
    return error.code().name, error.details()


def member_of(reply: messages.JoinReply) -> messages.Member:
    return messages.Member(job=reply.job, worker=reply.worker, token=reply.token, switch_name=reply.switch_name)


class Attendance:
    """One Attend stream, with heartbeats until `hang_up`. While `obeys` is set, it obeys orders to halt and to move."""

    def __init__(
        self, client: Client, reply: messages.JoinReply, interval_s: float = 0.1, round_newest: int = 1
    ) -> None:
        self.member = member_of(reply)
        self.round_newest = round_newest
        self.pulses = 0
        self.orders = 0
        """How many orders to halt or to move have come."""
        self.obeys = True
        self.halted: messages.Halted | None = None
        self.grant = reply
        """The newest grant."""
        self.ended: messages.JobEnded | None = None
        self.status: grpc.StatusCode | None = None
        self._interval_s = interval_s
        self._over = threading.Event()
        self._call = client.stub.Attend(self._beats())
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        wait_until(lambda: bool(self.pulses or self._over.is_set()), "a first pulse, or an end")

    def _beats(self) -> Iterator[messages.Heartbeat]:
        while not self._over.is_set():
            yield messages.Heartbeat(member=self.member, round_newest=self.round_newest, halted=self.halted)
            self._over.wait(self._interval_s)

    def _read(self) -> None:
        try:
            for event in self._call:
                self.pulses += event.HasField("pulse")
                self.orders += event.HasField("halt") or event.HasField("move")
                if event.HasField("ended"):
                    self.ended = event.ended
                if event.HasField("halt") and self.obeys:
                    positions = bytes(4 * self.grant.slots)
                    self.halted = messages.Halted(move_number=event.halt.move_number, positions=positions)
                if event.HasField("move") and self.obeys:
                    self.grant, self.halted = event.move.grant, None
            self.status = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.status = error.code()
        self._over.set()

    def hang_up(self) -> None:
        self._over.set()
        self._call.cancel()
        self._reader.join(PATIENCE_S)

    def wait_ended(self) -> messages.JobEnded:
        wait_until(lambda: self.ended is not None or self.status is not None, "the job ended for this worker")
        assert self.ended is not None, f"the stream ended with {self.status}"
        return self.ended
