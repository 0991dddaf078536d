"""Random operations on jobs, with switches that come and go and a service that is killed: nothing is lost, leaked or
assigned twice, and workers that have moved are where their job is. Two of the switches are racks below a third, so a
job has one switch or three, depending on its workers."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from wiresum import join
from wiresum.agent.errors import WiresumError
from wiresum.agent.life import Life, aborted
from wiresum.agent.life_table import Do
from wiresum.agent.life_table import Event as AgentEvent
from wiresum.agent.life_table import Phase as LifePhase
from wiresum.controller.driver import DriverError, Endpoint, Reconciled, SwitchSizes
from wiresum.controller.jobs import tree
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import (
    LEASE_FOLLOWING,
    TRANSITIONS,
    Event,
    GoingOn,
    Job,
    Lease,
    LeaseState,
    Members,
    Move,
    Presence,
    State,
    Watch,
    Worker,
)
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.outputs import Admit, Count, Evict, GoOn, Grant, Halt, Output, Reconcile, RefuseForGood
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.tree import Node, Phase
from wiresum.controller.resources import JOBS, SLOTS
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, join_request, member, switch

SIZES = SwitchSizes(slots=24, lanes_max=64, jobs_max=3)
RACKS = {"left": "10.0.1.1", "right": "10.0.2.1"}
ENDPOINTS = {
    name: Endpoint(f"10.9.0.{number}", 43488) for number, name in enumerate(("spine", "left", "right", "spare"))
}
LIMITS = Limits(slots_least=8, slots_default=16, overtaken_max=2, join_timeout_ms_default=20_000)
NAMES = ("a", "b", "c", "d", "e", "f")
LOST = (WiresumError("it is lost"), "it is lost")
LEASE_STATES = {
    State.FORMING: LeaseState.WANTED,
    State.QUEUED: LeaseState.WANTED,
    State.ADMITTING: LeaseState.ADMITTING,
    State.RUNNING: LeaseState.HELD,
    State.MOVING: LeaseState.RELEASED,
    State.ENDING: LeaseState.RELEASED,
}
"""Of what a job has."""
STEPS = 400
SEEDS = range(5)


class World:
    """Jobs, workers, operators and switches that all act at random."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.store.begin()
        self.trouble: set[str] = set()
        self.failures = 0
        """How many of the next calls to reachable switches fail."""
        self.quiet = False
        """Whether all workers have stopped sending packets."""
        self.late: dict[str, list[Output]] = {}
        """For each switch, the calls that it will answer later, in order."""
        self.prompt = False
        """Whether all switches answer at once."""
        self.reloaded = False
        """Whether a switch reports at its next reconciliation that it was restarted."""
        self.keys: dict[int, set[str]] = {}
        """All keys that a switch ever got, each with the switches that have it."""
        self.lives: dict[str, Life] = {}
        """By token; workers outlive the service."""
        self.resuming: dict[str, Life] = {}
        """By attempt: of workers that ask for a lease in place of one that they have lost elsewhere."""
        self.moved = self.halted_alone = self.gone_on = self.refused_for_good = 0
        self.now = 0.0
        self.start()

    def start(self) -> None:
        self.late = {}
        quotas = [Quota("poor", slots=48, jobs=1)]
        self.harness = JobsHarness(switches=switches(), limits=LIMITS, quotas=quotas, store=self.store, now=self.now)
        self.harness.answer = self.answer  # type: ignore[method-assign]
        self.harness.lives, self.harness.ahead = self.lives, {0: {0, 3}, 1: {5}}
        for name in self.trouble:
            self.harness.change(name, "no answer")

    def answer(self, output: Output) -> None:
        """Answers as switches and workers do; some cannot be reached, and some take time."""
        if isinstance(output, Grant):
            self.begin(output.worker, output.reply)
        self.refused_for_good += isinstance(output, RefuseForGood)
        if isinstance(output, Halt | GoOn) and output.worker.broken_at is None:
            self.tell(output)
        if not isinstance(output, Admit | Count | Evict | Reconcile):
            return
        name = output.switch_name
        if name in self.late or (not self.prompt and self.chance.random() < 0.3):
            self.late.setdefault(name, []).append(output)
        else:
            self.answer_now(output)

    def begin(self, worker: Worker, reply: join.JoinReply) -> None:
        life = self.resuming.pop(worker.attempt, None)
        if life is not None:
            life.handle(AgentEvent.GRANTED, self.harness.now, reply)
            assert (life.phase, life.grant.key) == (LifePhase.ATTENDING, reply.key), "it goes on there"
            self.lives[worker.token] = life
            self.gone_on += 1
        elif worker.token not in self.lives:
            assert self.harness.life(worker).grant.key == reply.key and not reply.roles

    def tell(self, output: Halt | GoOn) -> None:
        """Or else the stream breaks, and the worker hears of it later."""
        worker = output.worker
        if self.chance.random() < 0.2:
            self.harness.break_streams(worker)
            return
        self.harness.obey(worker, output.event)
        if isinstance(output, GoOn):
            assert self.lives[worker.token].grant.key == output.event.move.grant.key, "it answered this halt"
            self.moved += 1

    def catch_up(self) -> None:
        late, self.late = self.late, {}
        for output in itertools.chain.from_iterable(late.values()):
            self.answer_now(output)
        self.harness.settle()

    def answer_now(self, output: Output) -> None:
        jobs, now = self.harness.jobs, self.harness.now
        assert isinstance(output, Admit | Count | Evict | Reconcile)
        if isinstance(output, Admit):
            self.check_admission(output)
        fails = output.switch_name in self.trouble or self.failures > 0
        self.failures -= self.failures > 0
        match output:
            case Admit(name, entry):
                jobs.refused(name, entry.job, "no", now) if fails else jobs.admitted(name, entry.job, now)
            case Evict(name, number):
                jobs.evict_failed(name, number, now) if fails else jobs.evicted(name, number, now)
            case Count(name, number):
                jobs.counted(name, number, () if fails else self.contributions(), now)
            case Reconcile(name):
                reloaded, self.reloaded = self.reloaded and not fails, self.reloaded and fails
                jobs.reconcile_failed(name, DriverError("no"), now) if fails else jobs.reconciled(
                    output, Reconciled(reloaded), now
                )

    def check_admission(self, output: Admit) -> None:
        entry, told = output.entry, self.keys.setdefault(output.entry.key, set())
        assert output.switch_name not in told, "a key is used once"
        told.add(output.switch_name)
        (lease,) = (lease for lease in self.harness.jobs.cluster.holders() if lease.key == entry.key)
        node = lease.nodes[output.switch_name]
        if entry.uplink is not None:
            above = lease.nodes[node.branch.parent]
            if lease.state is LeaseState.RELEASED:
                return  # it was told before the one above was started anew, and is being told to forget it
            assert above.phase is Phase.HOLDING, "no switch sends its sums to one that does not know the job"
            assert above.entry is not None
            own, parent = ENDPOINTS[output.switch_name], ENDPOINTS[node.branch.parent]
            assert above.entry.port_offset == entry.port_offset
            assert above.entry.endpoints[entry.uplink.worker] == (own.address, own.port + entry.port_offset)
            assert entry.uplink.parent == (parent.address, parent.port + entry.port_offset)
        workers = [lease.job.members.workers[rank] for rank in node.branch.ranks]
        assert list(entry.endpoints[: len(workers)]) == [worker.endpoint for worker in workers]

    def contributions(self) -> list[int]:
        return [0, 0] if self.quiet else [self.chance.randrange(2) for _ in range(2)]

    def workers(self, *presences: Presence) -> list[Worker]:
        jobs = self.harness.jobs.all()
        return [worker for job in jobs for worker in job.members.workers.values() if worker.presence in presences]

    def steps(self) -> Mapping[Callable[[], None], int]:
        """The possible operations, with their weights."""
        return {
            self.ask: 4,
            self.ask_all: 10,
            self.go_on: 4,
            self.halt_alone: 2,
            self.hang_up: 3,
            self.attend: 14,
            self.go: 3,
            self.wait: 8,
            self.lose_or_find: 2,
            self.fail: 2,
            self.restart: 2,
            self.drain: 2,
            self.catch_up: 14,
            self.end: 2,
            self.kill: 1,
        }

    def go_on(self) -> None:
        """Workers that had a lease elsewhere ask for one, or say that the job is over."""
        name, secret = self.chance.choice(NAMES), bytes([self.chance.randrange(4)] * 16)
        for rank in range(2):
            grant = join.JoinReply(slots=8, threads=1, lanes=64, workers=2, rank=rank, members_secret=secret)
            rounds = [7 + (self.chance.random() < 0.3) for _ in range(8)]
            life = self.harness.begin(self.request(rank, name), grant, rounds)
            life.handle(AgentEvent.LOST, self.harness.now, *LOST)
            if self.chance.random() < 0.2:
                order = self.chance.choice(((AgentEvent.ABORT, aborted("a reason")), (AgentEvent.LEAVE,)))
                life.handle(order[0], self.harness.now, *order[1:])
            self.ask_for_place(life, AgentEvent.UNKNOWN if life.phase is LifePhase.TELLING else AgentEvent.LOST)

    def ask_for_place(self, life: Life, unknown: AgentEvent) -> None:
        """At a service that does not know its worker; one with an order only says that."""
        (question,) = (out[1] for out in life.handle(unknown, self.harness.now, *LOST) if out[0] is Do.ASK)
        self.resuming[question.attempt] = life
        self.ask(question)

    def halt_alone(self) -> None:
        """A worker has taken its service for lost, and finds it again."""
        workers = [w for w in self.workers(Presence.ATTENDING) if self.harness.life(w).halted is None]
        workers = [worker for worker in workers if worker.job.has_begun and worker.broken_at is None]
        if workers:
            self.halted_alone += 1
            self.harness.halt_by_itself(self.chance.choice(workers))

    def request(self, rank: int, name: str) -> join.JoinRequest:
        port = 5000 + 16 * rank + self.chance.choice((0, 0, 8))
        return join_request(
            job_name=name,
            rank=rank,
            world_size=2,
            slots=self.chance.choice((0, 8, 64)),
            endpoint=join.Endpoint(address=self.chance.choice(list(RACKS.values())), port=port),
            attempt=self.chance.choice("xxy"),
            tenant="poor" if name == "d" else "",
            timeout_ms=0,
        )

    def ask(self, request: join.JoinRequest | None = None) -> None:
        request = request or self.request(self.chance.randrange(2), self.chance.choice(NAMES))
        try:
            self.harness.jobs.ask(request, self.harness.now)
            self.harness.settle()
        except Refusal as refusal:
            two_jobs = refusal.code == "FAILED_PRECONDITION" and "these are two jobs" in refusal.text
            assert two_jobs or refusal.code in ("ALREADY_EXISTS", "UNAVAILABLE"), refusal.text

    def ask_all(self) -> None:
        name = self.chance.choice(NAMES)
        for rank in range(2):
            self.ask(self.request(rank, name))

    def fail(self) -> None:
        self.failures, self.reloaded = self.chance.randint(1, 3), self.chance.random() < 0.3

    def hang_up(self) -> None:
        if workers := self.workers(Presence.WAITING, Presence.GRANTED):
            worker = self.chance.choice(workers)
            self.harness.jobs.hung_up(worker, worker.call, self.harness.now)

    def attend(self) -> None:
        broken = [worker for worker in self.workers(Presence.ATTENDING) if worker.broken_at is not None]
        for worker in self.workers(Presence.GRANTED) + broken:
            if self.harness.life(worker).phase not in (LifePhase.ATTENDING, LifePhase.SEEKING):
                continue  # it has left, which the service before did not write down
            self.harness.jobs.attend(member(worker), self.harness.now)
            self.harness.beat(worker, 5)
        self.harness.settle()

    def go(self) -> None:
        workers = self.workers(Presence.ATTENDING)
        if not workers:
            return
        worker = self.chance.choice(workers)
        order = self.chance.choice((AgentEvent.LEAVE, AgentEvent.LEAVE, AgentEvent.ABORT, None))
        try:
            if order is not None:
                self.harness.happens(worker, order, *([aborted("a reason")] if order is AgentEvent.ABORT else []))
            else:
                self.harness.break_streams(worker)
        except Refusal as refusal:
            assert refusal.code == "NOT_FOUND" and worker.job.state is State.ENDING
            self.harness.break_streams(worker)
            self.ask_for_place(self.harness.life(worker), AgentEvent.UNKNOWN)
        self.harness.settle()

    def wait(self) -> None:
        beating = [worker for worker in self.workers(Presence.ATTENDING) if worker.broken_at is None]
        self.harness.wait(self.chance.choice((0.5, 0.5, 4.0, 12.0)), beating=beating)

    def lose_or_find(self, name: str = "") -> None:
        name = name or self.chance.choice(list(ENDPOINTS))
        self.trouble ^= {name}
        self.harness.change(name, "no answer" if name in self.trouble else "")

    def restart(self) -> None:
        """A switch loses what it holds."""
        if reachable := sorted(ENDPOINTS.keys() - self.trouble):
            name = self.chance.choice(reachable)
            self.lose_or_find(name)
            self.reloaded = True
            self.lose_or_find(name)

    def drain(self) -> None:
        self.harness.jobs.drain(self.chance.choice(list(ENDPOINTS)), resume=self.chance.random() < 0.7)
        self.harness.settle()

    def end(self) -> None:
        try:
            self.harness.jobs.end(self.chance.choice(NAMES), "", self.harness.now)
        except Refusal as refusal:
            assert refusal.code == "NOT_FOUND"
        self.harness.settle()

    def kill(self) -> None:
        self.now = self.harness.now
        self.start()

    def check(self) -> None:
        self.each_slot_and_number_has_one_job()
        self.jobs_are_consistent_with_their_states()
        self.running_jobs_are_on_disk()
        self.workers_are_where_their_job_is()

    def each_slot_and_number_has_one_job(self) -> None:
        for each in self.harness.switches:
            taken = [lease.nodes[each.name].slots for lease in each.numbered.values()]
            slots = [slot for some in taken if some for slot in range(some.base, some.base + some.count)]
            assert len(slots) == len(set(slots))
            assert each.pool.slots_free == SIZES.slots - len(slots)
            assert all(lease.number == number for number, lease in each.numbered.items())
            for tenant in {job.tenant for job in self.harness.jobs.all()} | {"nobody"}:
                nodes = [lease.nodes[each.name] for lease in each.numbered.values() if lease.job.tenant == tenant]
                has = each.taken_by(tenant)
                assert (has.of(JOBS), has.of(SLOTS)) == (len(nodes), sum(n.slots.count for n in nodes if n.slots))

    def jobs_are_consistent_with_their_states(self) -> None:
        jobs = self.harness.jobs
        for job in jobs.all():
            nodes = job.lease.nodes
            held = [each.name for each in self.harness.switches if job.lease in each.numbered.values()]
            assert set(held) == nodes.keys(), job
            assert bool(held) == (job.state is State.ADMITTING or job.has_begun or job.state is State.ENDING), job
            assert {node.phase for node in nodes.values()} == {Phase.HOLDING} or job.state is not State.RUNNING, job
            assert all(node.slots.count == job.lease.slots for node in nodes.values() if node.slots), job
            assert job.lease.state is LEASE_STATES[job.state], job
            assert bool(jobs.waiting.position(job.lease)) == (job.state is State.QUEUED), job

    def running_jobs_are_on_disk(self) -> None:
        on_disk = {
            (
                record.switch_name,
                record.number,
                record.state,
                str([n["lease"] for n in json.loads(record.body)["nodes"]]),
            )
            for record in self.store.load().jobs
        }
        holders = [
            lease
            for lease in self.harness.jobs.cluster.holders()
            if lease.state is not LeaseState.ADMITTING and (lease.is_current or lease.state is LeaseState.RELEASED)
        ]
        assert on_disk == {
            (
                lease.switch_name,
                lease.number,
                (lease.job.state if lease.is_current else State.ENDING).value,
                str([n.slots and {"base": n.slots.base, "count": n.slots.count} for n in lease.nodes.values()]),
            )
            for lease in holders
        }

    def workers_are_where_their_job_is(self) -> None:
        for worker in self.workers(Presence.ATTENDING):
            job, life = worker.job, self.harness.life(worker)
            if job.state is State.RUNNING and worker.broken_at is None:
                waits = job.members.going_on is not None and worker.rank in job.members.going_on.roles
                waits = waits or job.members.left_first is not None  # for its end, since one has left
                assert (life.halted is None and life.grant.key == job.lease.key) or waits, worker
            if life.halted is not None and job.has_begun:
                known = life.halted.move_number <= job.move_number
                assert known or worker.rank in job.members.may_be_halted, worker

    def finish(self) -> None:
        """Checks that all resources are free again once all workers are gone and all switches are back."""
        self.failures, self.quiet, self.prompt = 0, True, True
        self.catch_up()
        for name in sorted(self.trouble):
            self.lose_or_find(name)
        for name in ENDPOINTS:
            self.harness.jobs.drain(name, resume=True)
        self.harness.break_streams(*self.workers(Presence.ATTENDING))
        self.harness.wait(90)
        assert all(each.is_usable() for each in self.harness.switches)
        assert self.harness.jobs.all() == []
        assert self.harness.slots_free == len(ENDPOINTS) * SIZES.slots
        assert self.store.load().jobs == []


def switches() -> list[Switch]:
    racks = [switch(n, SIZES, [address], parent="spine", endpoint=ENDPOINTS[n]) for n, address in RACKS.items()]
    spine = switch("spine", SIZES, NOBODY, endpoint=ENDPOINTS["spine"])
    spare = switch("spare", SIZES, [RACKS["left"]], endpoint=ENDPOINTS["spare"])
    return [spine, *racks, spare]


def run(folder: Path, seed: int) -> World:
    with contextlib.closing(Store(folder)) as store:
        store._database.execute("PRAGMA synchronous = OFF")  # here nobody cuts the power
        world = World(store, random.Random(seed))
        steps = world.steps()
        for _ in range(STEPS):
            (step,) = world.chance.choices(list(steps), list(steps.values()))
            step()
            world.check()
        world.finish()
        return world


def note_steps(monkeypatch: pytest.MonkeyPatch, kind: type[Any], steps: set[tuple[Enum, Enum]]) -> None:
    def note(changed: Any, after: Enum) -> None:
        steps.add((changed.phase if kind is Node else changed.state, after))
        step(changed, after)

    step = kind.step
    monkeypatch.setattr(kind, "step", note)


def note_writers(monkeypatch: pytest.MonkeyPatch, *kinds: type) -> dict[tuple[str, str], set[str]]:
    """By class and field: the modules that write it, besides the class's own, and what reads it from disk."""
    writers: dict[tuple[str, str], set[str]] = {}

    def write(written: Any, name: str, value: object) -> None:
        module = sys._getframe(1).f_globals["__name__"]
        if module not in (type(written).__module__, "wiresum.controller.jobs.records"):
            writers.setdefault((type(written).__name__, name), set()).add(module)
        object.__setattr__(written, name, value)

    for kind in kinds:
        monkeypatch.setattr(kind, "__setattr__", write)
    return writers


def test_nothing_is_lost_leaked_or_assigned_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R7.12
    passed: set[tuple[State, Event]] = set()
    step = Job.step

    def note(job: Job, event: Event, why: str = "") -> None:
        passed.add((job.state, event))
        step(job, event, why)

    monkeypatch.setattr(Job, "step", note)
    phases: set[tuple[Enum, Enum]] = set()
    for kind in (Node, Lease):
        note_steps(monkeypatch, kind, phases)
    writers = note_writers(monkeypatch, Job, Lease, Members, GoingOn, Move, Watch)
    worlds = []
    for seed in SEEDS:
        print(f"seed {seed}")  # noqa: T201 - shown if it fails
        worlds.append(run(tmp_path / str(seed), seed))
    counts = [(w.moved, w.halted_alone, w.gone_on, w.refused_for_good) for w in worlds]
    assert min(map(sum, zip(*counts, strict=True))) > 0
    assert passed == set(TRANSITIONS), "every operation has happened"
    assert [several for several in writers.items() if len(several[1]) > 1] == [], "a field has one writer"
    all_phases = [*tree.FOLLOWING.items(), *LEASE_FOLLOWING.items()]
    possible = {(before, after) for before, afters in all_phases for after in afters}
    rare = {(Phase.HOLDING, Phase.FORGOTTEN), (Phase.LEASED, Phase.FORGOTTEN)}
    assert phases | rare == possible, "test_trees.py covers the rare ones"
