"""Everything that may happen to jobs, in any order, with switches that come and go and a service that is killed:
nothing is lost, leaked or given twice."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from wiresum.controller.driver import Sizes
from wiresum.controller.jobs.job import TRANSITIONS, Event, Job, Presence, State, Worker
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.outputs import Admit, Count, Evict, Output, Reconcile
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.store import Store
from wiresum.controller.testing import JobsBench, member, switch

SIZES = Sizes(slots=24, lanes_max=64, jobs_max=2)
LIMITS = Limits(slots_least=8, slots_default=16, overtaken_max=2, join_timeout_ms_default=20_000)
NAMES = ("a", "b", "c", "d", "e", "f")
STEPS = 400
SEEDS = range(4)


class World:
    """Jobs, workers, operators and switches, all of whom do as chance will have it."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.store.begin()
        self.trouble: set[str] = set()
        self.failures = 0
        """How many of the next calls to switches fail, though those can be reached."""
        self.quiet = False
        """Whether no worker sends packets any more."""
        self.reloaded = False
        """Whether a switch says, when it is reconciled next, that it was started anew."""
        self.keys: set[int] = set()
        """All that a switch was ever told."""
        self.now = 0.0
        self.start()

    def start(self) -> None:
        switches = [switch("left", SIZES), switch("right", SIZES)]
        quotas = [Quota("poor", slots=16, jobs=1)]
        self.bench = JobsBench(switches=switches, limits=LIMITS, quotas=quotas, store=self.store, now=self.now)
        self.bench.answer = self.answer  # type: ignore[method-assign]
        for name in self.trouble:
            self.bench.change(name, "no answer")

    def answer(self, output: Output) -> None:
        """As switches do, of which some cannot be reached."""
        jobs, now = self.bench.jobs, self.bench.now
        if not isinstance(output, Admit | Count | Evict | Reconcile):
            return
        if isinstance(output, Admit):
            assert output.entry.key not in self.keys, "a key is used once"
            self.keys.add(output.entry.key)
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
                jobs.reconcile_failed(name, now) if fails else jobs.reconciled(output, reloaded, now)

    def contributions(self) -> list[int]:
        return [0, 0] if self.quiet else [self.chance.randrange(2) for _ in range(2)]

    def workers(self, *presences: Presence) -> list[Worker]:
        jobs = self.bench.jobs.all()
        return [worker for job in jobs for worker in job.workers.values() if worker.presence in presences]

    def steps(self) -> Mapping[Callable[[], None], int]:
        """What may happen, and how likely it is."""
        return {
            self.ask: 4,
            self.ask_all: 10,
            self.hang_up: 3,
            self.attend: 8,
            self.go: 6,
            self.wait: 8,
            self.lose_or_find: 2,
            self.fail: 2,
            self.drain: 2,
            self.end: 2,
            self.kill: 1,
        }

    def ask(self, rank: int | None = None, name: str = "") -> None:
        name = name or self.chance.choice(NAMES)
        tenant, priority = ("poor", 1) if name == "d" else ("", 0)
        try:
            self.bench.ask(
                job_name=name,
                rank=self.chance.randrange(2) if rank is None else rank,
                world_size=2,
                slots=self.chance.choice((0, 8, 64)),
                attempt=self.chance.choice("xxy"),
                tenant=tenant,
                priority=priority,
            )
        except Refusal as refusal:
            assert refusal.code in ("ALREADY_EXISTS", "UNAVAILABLE"), refusal.text

    def ask_all(self) -> None:
        name = self.chance.choice(NAMES)
        for rank in range(2):
            self.ask(rank, name)

    def fail(self) -> None:
        self.failures, self.reloaded = self.chance.randint(1, 3), self.chance.random() < 0.3

    def hang_up(self) -> None:
        if workers := self.workers(Presence.WAITING, Presence.GRANTED):
            worker = self.chance.choice(workers)
            self.bench.jobs.hung_up(worker, worker.call, self.bench.now)

    def attend(self) -> None:
        for worker in self.workers(Presence.GRANTED):
            self.bench.jobs.attend(member(worker), self.bench.now)
            self.bench.jobs.beat(worker, 5, self.bench.now)
        self.bench.settle()

    def go(self) -> None:
        workers = self.workers(Presence.ATTENDING)
        if not workers:
            return
        worker = self.chance.choice(workers)
        match self.chance.choice(("leave", "leave", "abort", "break")):
            case "leave":
                self.bench.leave(worker)
            case "abort":
                self.bench.abort(worker, "a reason")
            case _:
                self.bench.jobs.broken(worker, worker.stream, self.bench.now)
                self.bench.settle()

    def wait(self) -> None:
        self.bench.wait(self.chance.choice((0.5, 0.5, 4.0, 12.0)), beating=self.workers(Presence.ATTENDING))

    def lose_or_find(self, name: str = "") -> None:
        name = name or self.chance.choice(("left", "right"))
        self.trouble ^= {name}
        self.bench.change(name, "no answer" if name in self.trouble else "")

    def drain(self) -> None:
        self.bench.jobs.drain(self.chance.choice(("left", "right")), resume=self.chance.random() < 0.7)
        self.bench.settle()

    def end(self) -> None:
        try:
            self.bench.jobs.end(self.chance.choice(NAMES), "", self.bench.now)
        except Refusal as refusal:
            assert refusal.code == "NOT_FOUND"
        self.bench.settle()

    def kill(self) -> None:
        self.now = self.bench.now
        self.start()

    def check(self) -> None:
        self.slots_and_numbers_are_in_one_hand()
        self.every_job_is_where_its_state_says()
        self.what_runs_is_on_disk()

    def slots_and_numbers_are_in_one_hand(self) -> None:
        for each in self.bench.switches:
            leased = [job.lease for job in each.numbered.values()]
            slots = [slot for lease in leased if lease for slot in range(lease.base, lease.base + lease.count)]
            assert len(slots) == len(set(slots))
            assert each.leases.slots_free == SIZES.slots - len(slots)

    def every_job_is_where_its_state_says(self) -> None:
        jobs = self.bench.jobs
        for job in jobs.all():
            held = bool(job.switch_name) and job in self.bench.jobs.cluster.switches[job.switch_name].numbered.values()
            assert held == (job.state in (State.ADMITTING, State.RUNNING, State.ENDING)), job
            assert bool(jobs.waiting.position(job)) == (job.state is State.QUEUED), job

    def what_runs_is_on_disk(self) -> None:
        on_disk = {(record.switch_name, record.number, record.state) for record in self.store.load().jobs}
        jobs = [job for job in self.bench.jobs.cluster.holders() if job.state is not State.ADMITTING]
        assert on_disk == {(job.switch_name, job.number, job.state.value) for job in jobs}

    def finish(self) -> None:
        """When nobody beats any more and all switches are there, all is as it was."""
        self.failures, self.quiet = 0, True
        for name in sorted(self.trouble):
            self.lose_or_find(name)
        for name in ("left", "right"):
            self.bench.jobs.drain(name, resume=True)
        self.bench.wait(90)
        assert all(each.is_usable() for each in self.bench.switches)
        assert self.bench.jobs.all() == []
        assert self.bench.slots_free == 2 * SIZES.slots
        assert self.store.load().jobs == []


def run(folder: Path, seed: int) -> None:
    with contextlib.closing(Store(folder)) as store:
        store._database.execute("PRAGMA synchronous = OFF")  # here nobody cuts the power
        world = World(store, random.Random(seed))
        steps = world.steps()
        for _ in range(STEPS):
            (step,) = world.chance.choices(list(steps), list(steps.values()))
            step()
            world.check()
        world.finish()


def test_nothing_is_lost_leaked_or_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: set[tuple[State, Event]] = set()
    move = Job.move

    def note(job: Job, event: Event, why: str = "") -> None:
        passed.add((job.state, event))
        move(job, event, why)

    monkeypatch.setattr(Job, "move", note)
    for seed in SEEDS:
        print(f"seed {seed}")  # noqa: T201 - shown if it fails
        run(tmp_path / str(seed), seed)
    assert passed == set(TRANSITIONS), "it came to everything that may be"
