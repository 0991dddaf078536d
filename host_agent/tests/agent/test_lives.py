"""Whole jobs in virtual time: the real memberships of all workers, services with real jobs, and faults at any moment.

A seed makes a job, its services, and up to six faults that begin within FAULTS_S: a service is killed, stopped or
frozen, takes no jobs, or hands over to its standby; its disk lags; a switch, perhaps of a tree, is lost, out of reach
or drained; workers' calls are cut, or what they are told is lost; and perhaps one worker ends the job, or dies, or its
certificate is revoked. The switch that rank 0 starts as the job's fallback starts late or not at all, dies, alone or
with rank 0, or stands still. One worker forks a child, and some jobs are at a second aggregator, too. In a *mild* world
each fault is over before anybody gives up: there the job goes on, or all hear why it does not. In any world all workers
end or all go on, within a bound, each life keeps what its table promises (watched.py), and in the end no service keeps
anything of the job, and no child runs.

pytest host_agent/tests/agent/test_lives.py --seeds 10000        a long run; --first-seed 10000: the next
pytest host_agent/tests/agent/test_lives.py --seed 1234          repeats a seed
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wiresum.agent import lifetime
from wiresum.agent.errors import SwitchUnreachableError, WiresumError
from wiresum.agent.life_table import ABORT_S_MAX, IMPOSSIBLE, LEAVE_S_MAX, NOTHING, RESUME_S, TABLE, Event, Phase
from wiresum.agent.membership import Membership
from wiresum.controller.jobs.cluster import Switch
from wiresum_lab.clocks.for_threads import Task, never
from wiresum_lab.doubles.controller import NOBODY, switch
from wiresum_lab.doubles.resuming import DataPath, FallbackOf, Job
from wiresum_lab.doubles.virtual_network import LATENCY_S, LIMITS, SIZES, Network, Running, Service

from .rounds import Rounds, Sums
from .watched import Watched

FAULTS_S = 8.0
MILD_S, LONG_S = 4.0, 60.0
"""How long a fault lasts, at most."""
FALL_BACK_S = 20.0
"""In a mild world: until a job that has lost all its services goes on at its fallback, though a child ends at once."""
STEP_S = 0.2
SETTLE_S = 20.0
"""Until a service has found out whom it has lost."""
MARGIN_S = 75.0
"""In a world that is not mild: until a service ends a job that has no lease, or whose workers do not come back."""
KEEP_S = 700.0
"""Until a service has lost whoever does not say that it leaves."""
REASON, BUG = "the loss is NaN", "a thread has died"
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the states of services are, so that no world waits for a disk."""
RACKS = ("127.0.1.1", "127.0.1.2")


def two_switches() -> list[Switch]:
    return [switch(name, SIZES) for name in ("first", "second")]


def tree() -> list[Switch]:
    """Of three switches, and a fourth that each host reaches, too."""
    racks = [switch(address, SIZES, [address], parent="spine") for address in RACKS]
    return [switch("spine", SIZES, NOBODY), *racks, switch("spare", SIZES)]


WORLDS_LEAST, CELLS_LEAST = 90, 60
"""So many worlds visit so many of the cells of the table where something is done."""


class World:
    def __init__(self, seed: int, folder: Path) -> None:
        chance = self.chance = random.Random(f"lives {seed}")
        self.network = Network()
        self.mild = chance.random() < 0.6
        reattach_ms = chance.choice([300, 5000, 20_000])
        self.limits = dataclasses.replace(
            LIMITS,
            heartbeat_interval_ms=300, reattach_ms=reattach_ms, reattach_with_state_ms=reattach_ms,
            connection_lost_ms=60_000 if self.mild else 1000, heartbeat_lost_ms=60_000 if self.mild else 10_000,
        )  # fmt: skip
        states = [folder / str(index) if chance.random() < 0.4 else None for index in range(chance.choice([1, 1, 2]))]
        if len(states) == 2 and chance.random() < 0.5:  # a controller and its standby
            states = [folder / "both"] * 2
        switches = chance.choice([tuple, tuple, two_switches, tree])
        self.services = [Service(self.network, self.limits, state, switches=switches) for state in states]
        for service in self.services:
            if service is self.services[0] or (states[0] != states[-1] and chance.random() < 0.5):
                service.start()
        workers = chance.choice([1, 2, 2, 3, 4])
        self.rounds = Rounds(chance, workers)
        self.paths = [Sums(self.rounds, rank) for rank in range(workers)]
        fallback = FallbackOf(Service(self.network, self.limits)) if chance.random() < 0.4 else None
        if fallback is not None and chance.random() < 0.3:
            fallback.squat()
        self.child_chance = random.Random(f"children {seed}")
        self.start_s = 0.0
        """What was drawn for the last child."""
        if fallback is not None:
            fallback.start_s, fallback.on_end = self._start_s, self._lose_child
        endpoints, share = ",".join(each.endpoint for each in self.services), chance.random() < 0.5
        addresses = [chance.choice(RACKS) for _ in self.paths]
        self.job = Job(self.network, endpoints, list(self.paths), fallback, share=share, addresses=addresses)
        for path, member in zip(self.paths, self.job.members, strict=True):
            path.member = member
            path.know(member.grant)
            path.secret = member.grant.members_secret
        members = zip(self.paths, self.job.members, strict=True)
        self.watched = [Watched(member._life, path, member.where) for path, member in members]
        self.beside: Job | None = None
        """The part of the same job at a second aggregator, of which no service fails."""
        if fallback is None and chance.random() < 0.2:
            steady = Service(self.network, self.limits).start()
            others = [DataPath() for _ in self.paths]
            for each in others:
                each.answered = True
            self.beside = Job(self.network, steady.endpoint, others, share=share, beside=self.job)
            for rank in range(workers):
                self.network.start(functools.partial(self._end_at_all, rank), f"program of rank {rank}")
        self.causes: list[WiresumError] = []
        """What each worker of a job at two aggregators has heard first."""
        self.enders = [chance.randrange(workers)] if chance.random() < 0.6 else []
        if chance.random() < 0.1:
            self.enders = list(range(workers))
        self.switches_lost: set[tuple[Path | str, str]] = set()
        """A service that is started anew finds out."""
        self.is_forgotten = False
        """An order is, which a service has heard."""
        self.said: list[str] = []
        """What has happened, for people."""
        self.is_over = False
        self.network.start_task(self._pass_on(), "rounds")

    def _pass_on(self) -> Task:
        """Where all workers are at one lease, and its switch has what they sent, each round passes."""
        while not self.is_over:
            keys = {path.key for path in self.paths}
            if len(keys) == 1 and not keys & self.rounds.lost_keys and self._all_send():
                self.rounds.pass_on(self.network.now())
            yield never, self.network.now() + STEP_S

    def _all_send(self) -> bool:
        return not any(path.stands_still or path.over or path.errors or path.is_dead for path in self.paths)

    def _at_all(self, rank: int) -> list[Membership]:
        """The memberships of a worker."""
        return [job.members[rank] for job in (self.job, self.beside) if job is not None]

    def _end_at_all(self, rank: int) -> None:
        """As a program does whose job is over at one of its aggregators."""
        assert self.beside is not None
        heard = [path.errors for path in (self.paths[rank], self.beside.paths[rank])]
        self.network.wait_for(lambda: any(heard) or self.is_over, math.inf)
        if any(heard) and not self.paths[rank].is_dead:
            self.causes += next(filter(None, heard))[:1]
            self._order(rank, "leave")

    # Faults.

    def _say(self, what: str) -> None:
        self.said.append(f"{self.network.now() - 1000.0:.2f} {what}")

    def _lose_sums(self, running: Running, switch_name: str = "") -> None:
        """Of all its switches, unless it is said which."""
        at = [each.endpoint for each in self.services if each.state == running.owner.state]
        leases = running.jobs.cluster.holders()
        elsewhere = {lease.key for lease in leases if switch_name and switch_name not in lease.nodes}
        self.rounds.lost_keys |= {path.key for path in self.paths if path.served_at in at} - elsewhere

    def _kill(self, running: Running, end: Callable[[Service], None] = Service.kill) -> Callable[[], object]:
        """With a state on disk its switch is another process, which lives."""
        if not running.owner.keeps_state:
            self._lose_sums(running)
        end(running.owner)
        self._forget(running)
        return functools.partial(self._start, running.owner)

    def _start_s(self) -> float:
        """Of the fallback's child; one may end instead, or not become ready. In a mild world the next one does."""
        before = self.start_s
        self.start_s = self.child_chance.choice([0.0, 0.0, 1.0, 2.0, -1.0, 1.0 if self.mild else math.inf])
        return abs(self.start_s) if self.mild and before < 0.0 else self.start_s

    def _lose_child(self, running: Running) -> None:
        assert self.job.fallback is not None
        self.rounds.lost_keys |= {path.key for path in self.paths if path.served_at == self.job.fallback.target}
        self._forget(running)

    def _child_fault(self) -> None:
        """All services are away until the job is at the fallback, whose child may die, alone or with its parent, or
        stand still then."""
        fallback, chance, clock = self.job.fallback, self.child_chance, self.network
        assert fallback is not None
        clock.sleep(chance.random() * FAULTS_S)
        away = [self.network.services.get(each.endpoint) for each in self.services]
        heals = [self._kill(running) for running in away if running is not None]
        self._say("all services are away")
        self._await_fallback(lambda: any(child.is_ready for child in fallback.children))
        clock.sleep(chance.choice([0.0, 1.0, 1.0]) * MILD_S * chance.random())
        how, running = chance.choice(["", "kill", "kill", "freeze", "die"]), self.network.services.get(fallback.target)
        if running is not None and running.served is not None:
            self._say(f"{how} the fallback's child")
            if how == "kill":
                fallback.service.kill()
            elif how == "freeze":
                running.frozen = True
            elif how == "die":
                self._die(0)
            clock.sleep(chance.random() * (MILD_S if self.mild else chance.choice([MILD_S, LONG_S])))
            running.thaw()
            self._await_fallback(self._is_settled)
        for heal in heals:
            heal()

    def _await_fallback(self, is_true: Callable[[], object]) -> None:
        """Unless a service of the job's own is there, rank 0 can start none, or somebody ends the job."""
        fallback = self.job.fallback
        assert fallback is not None

        def has_come() -> bool:
            away = all(each.endpoint not in self.network.services for each in self.services)
            ends = any(path.is_gone or path.over or path.fails for path in self.paths)
            return not away or ends or fallback.is_barred or self._is_settled() or bool(is_true())

        has_come_soon = self.network.wait_for(has_come, self.network.now() + FALL_BACK_S)
        assert has_come_soon or not self.mild, f"it does not go on at the fallback: {self._state()}"

    def _stop(self, running: Running) -> Callable[[], object]:
        return self._kill(running, functools.partial(Service.stop, keep_jobs=running.owner.keeps_state))

    def _forget(self, running: Running) -> None:
        """A service ends that may have heard an order, and have told some of the workers of it."""
        ends = running.jobs.history.page(None).jobs
        self.is_forgotten |= any(said in end.reason for end in ends for said in ("ended the job", "has left the job"))

    def _start(self, service: Service) -> None:
        """Or its standby, unless one of both serves. One that is frozen does not, and may find itself deposed."""
        both = [each for each in self.services if each.state == service.state]
        running = [self.network.services.get(each.endpoint) for each in both]
        if all(each is None or each.frozen for each in running) and None in running:
            self._begin(self.chance.choice([each for each, at in zip(both, running, strict=True) if at is None]))

    def _begin(self, service: Service) -> None:
        service.start()
        for state, name in sorted(self.switches_lost, key=str):
            if state == service.state:
                service.running.lose_switch(name)

    def _freeze(self, running: Running) -> Callable[[], object]:
        """Its standby may take over."""
        running.frozen = True
        self._hand_over(running)
        return running.thaw

    def _hand_over(self, running: Running) -> Callable[[], object]:
        for other in self.services:
            if other.state == running.owner.state and other.endpoint not in self.network.services:
                self._forget(running)
                self._begin(other)
        return bool

    def _lag(self, running: Running) -> Callable[[], object]:
        running.lag_s = 1.5 * self.chance.random()
        return functools.partial(setattr, running, "lag_s", 0.0)

    def _refuse(self, running: Running) -> Callable[[], object]:
        running.refuses_with = "it takes no jobs"
        return functools.partial(setattr, running, "refuses_with", "")

    def _drain(self, running: Running, name: str) -> Callable[[], object]:
        running.drain(name, resume=False)
        return lambda: running.drain(name, resume=True) if running.runs else None

    def _part(self, running: Running, name: str) -> Callable[[], object]:
        """The service from a switch, which holds what it held."""
        running.lose_switch(name, comes_back=False, forgets=False)
        return lambda: running.find_switch(name) if running.runs else None

    def _lose_switch(self, running: Running, name: str) -> Callable[[], object]:
        self._lose_sums(running, name)
        running.lose_switch(name, comes_back=False)
        self.switches_lost.add((running.owner.state, name))
        return lambda: running.find_switch(name) if running.runs else None

    def _await_moment(self, members: list[Membership], within_s: float) -> None:
        """Often it is one of a worker's life that seldom comes."""
        moment = self.chance.choice([*[None] * len(Phase), *Phase, *["halted"] * 4])
        lives = [each._life for each in members]

        def has_come() -> bool:
            return any(life.phase is moment or (moment == "halted" and life.halted is not None) for life in lives)

        if self.network.wait_for(has_come if moment is not None else never, self.network.now() + within_s):
            self.network.sleep(self.chance.choice([0.0, LATENCY_S, STEP_S]))

    def _fault(self) -> None:
        chance, job = self.chance, self.job
        self._await_moment(job.members, chance.random() * FAULTS_S)
        lasts_s = chance.random() * (MILD_S if self.mild else chance.choice([MILD_S, LONG_S]))
        of_service = [self._kill, self._kill, self._stop, self._freeze, self._hand_over, self._lag, self._refuse]
        of_switch = [self._lose_switch, self._lose_switch, self._part, self._drain]
        what: Any = chance.choice([*of_service, *of_switch, None, None, None])
        if what is not None:
            running = self.network.services.get(chance.choice(self.services).endpoint)
            if running is None or running.frozen:
                return
            named = [chance.choice(running.switches).name] if what in of_switch else []
            self._say(f"{what.__name__} {running.owner.endpoint} {named} for {lasts_s:.2f} s")
            heal = what(running, *named)
        else:
            ranks = [rank for rank in range(len(job.hosts)) if chance.random() < 0.5]
            how = chance.choice(["refused", "silence", "deaf", "lost"])
            self._say(f"{how} at {ranks} for {lasts_s:.2f} s")
            heal = functools.partial(self._cut, ranks, "")
            self._cut(ranks, how)
        self.network.sleep(lasts_s)
        heal()
        self._say("healed")

    def _fault_after_fault(self, faults: list[Callable[[], None]]) -> None:
        """A job that has gone on meets the next one."""
        for fault in faults:
            fault()
            self.network.wait_for(self._is_settled, self.network.now() + FAULTS_S)

    def _cut(self, ranks: list[int], how: str) -> None:
        for host in (self.job.hosts[rank] for rank in ranks if not self.paths[rank].is_dead):
            host.loses_packets = how == "deaf"
            host.loses = (lambda: self.chance.choice(["", "question", "answer"])) if how == "lost" else str
            if how in ("refused", "silence"):
                host.cut(how)
            elif not how:
                host.cut_off = ""

    def _fork(self) -> None:
        """A child that a worker forks is no member, and the worker goes on."""
        member = self.chance.choice(self.job.members)
        self._await_moment([member], self.chance.random() * FAULTS_S)
        child, life = copy.copy(member), copy.copy(member._life)
        del life.handle  # it is not watched
        Watched.visited[life.phase, Event.FORKED] += 1
        life._timers, child._life = dict(life._timers), life
        child.after_fork_in_child()
        lifetime._inherited.pop()  # a process that is a child keeps it
        child.abort("a child has failed")
        child.leave()
        assert (life.phase, life.next_timer(), child._events.empty()) == (Phase.INERT, None, True)
        with pytest.raises(SwitchUnreachableError, match="no member of the job"):
            child.diagnose()

    def _end(self, rank: int) -> None:
        member, path = self.job.members[rank], self.paths[rank]
        self._await_moment([member], self.chance.random() * (FAULTS_S + 2.0))
        orders = ["abort", "abort", "leave", "abort leave", "abort abort"]
        how = self.chance.choice([*orders, "halt", "move", "die", "bar"])
        self._say(f"rank {rank} {how}")
        if how in ("halt", "move"):
            path.fails[how] = ValueError(BUG)
            return
        if how == "die":
            self._die(rank)
            return
        if how == "bar":
            path.is_barred = True
            self.network.revoke(self.job.hosts[rank].certificate)
            return
        self.network.run(*(functools.partial(self._order, rank, word) for word in how.split()))

    def _die(self, rank: int) -> None:
        self.enders += [] if rank in self.enders else [rank]
        self.paths[rank].is_dead = True
        self.job.hosts[rank].cut("refused")
        if rank == 0 and self.job.fallback is not None:
            self.job.fallback.orphan()

    def _order(self, rank: int, word: str) -> None:
        members, path, clock = self._at_all(rank), self.paths[rank], self.network
        if word == "leave":
            self._await_moment(members[:1], self.chance.random() * 3.0)
        if not path.errors:
            path.over.append(word)
        began_at = clock.now()
        for member in members:
            member.abort(REASON) if word == "abort" else member.leave()
        aborts = "abort" in path.over or bool(path.fails)  # one that cannot halt ends its job by itself
        bound_s = ABORT_S_MAX if word == "leave" and aborts else LEAVE_S_MAX
        assert clock.now() - began_at <= len(members) * (bound_s + 1.0), "an order is bounded"
        assert word == "abort" or all(member._life.phase is Phase.LEFT for member in members)

    # What must be.

    def run(self) -> None:
        try:
            faults = [self._fault] * self.chance.choice([1, 2, 3, 4, 6])
            if self.chance.random() < 0.3:
                faults = [functools.partial(self._fault_after_fault, faults)]
            enders = [functools.partial(self._end, rank) for rank in self.enders]
            if self.job.fallback is not None:
                faults += [self._child_fault] * self.child_chance.choice([0, 1, 1, 2, 3])
            self.network.run(*enders, *faults, self._fork)
            self._heal()
            self.network.sleep(STEP_S if self.mild else SETTLE_S)
            bound_s = self.limits.reattach_ms / 1000 + RESUME_S
            if not self.mild or any(path.is_gone or "leave" in path.over for path in self.paths):  # perhaps unheard
                bound_s += self.limits.heartbeat_lost_ms / 1000 + MARGIN_S
            settled = self.network.wait_for(self._is_settled, self.network.now() + bound_s)
            assert settled, f"neither over nor going on: {self._state()}"
            self._check()
        finally:
            self.is_over = True
        self.job.leave()
        if self.beside is not None:
            self.beside.leave()
        self._expect_promises_kept()
        self._expect_nothing_kept()
        for running in list(self.network.services.values()):
            running.owner.kill()
        self.network.expect_no_threads()

    def _heal(self) -> None:
        if self.job.fallback is not None:
            self.job.fallback.unsquat()
        for running in list(self.network.services.values()):
            running.thaw()
        for service in self.services:
            self._start(service)
        for running in self.network.services.values():
            for each in running.switches:
                running.drain(each.name, resume=True)
                running.find_switch(each.name)

    def _expect_promises_kept(self) -> None:
        problems = [f"rank {rank}: {problem}" for rank, each in enumerate(self.watched) for problem in each.problems]
        assert problems == []
        for path, member in zip(self.paths, self.job.members, strict=True):
            assert (member.moved is not None) == bool(path.moves), "it says that it has moved"
            failed = [error for error in path.errors if "this worker has failed" in str(error)]
            assert failed == [], "a worker's own thread has an error"

    def _expect_nothing_kept(self) -> None:
        if self.job.fallback is not None:
            fallback, until = self.job.fallback, self.network.now() + KEEP_S
            ended = self.network.wait_for(lambda: not fallback.child_runs and fallback.is_given_back, until)
            assert ended, "a child outlives its jobs, or keeps its port"
            assert fallback.told == [], "another process was told something"
        services = list(self.network.services.values())
        slots = [sum(each.sizes.slots for each in running.switches) for running in services]
        assert self.network.wait_for(
            lambda: (
                all(not len(each.jobs.roster) for each in services) and [each.slots_free for each in services] == slots
            ),
            self.network.now() + KEEP_S,
        ), [(each.jobs.all(), each.jobs.roster.released, each.slots_free) for each in services]
        for each in services:
            assert each._writes or each.store is None or each.store.load().jobs == []
        assert [each.jobs.roster.named for each in services] == [{}] * len(services)

    def _check_fallback(self) -> None:
        """The job goes on: elsewhere nobody keeps the fallback open."""
        fallback = self.job.fallback
        if fallback is not None and {path.served_at for path in self.paths} != {fallback.target}:
            assert not fallback.is_open, "rank 0 keeps the fallback open, which serves nobody"

    def _is_settled(self) -> bool:
        is_over = all(path.errors or "leave" in path.over or path.is_dead for path in self.paths)
        return (is_over and self._is_over_beside()) or self._go_on()

    def _is_over_beside(self) -> bool:
        members = zip(self.paths, self.beside.members, strict=True) if self.beside is not None else ()
        return all(path.is_dead or member._life.phase in (Phase.OVER, Phase.LEFT) for path, member in members)

    def _go_on(self) -> bool:
        keys = {path.key for path in self.paths}
        return len(keys) == 1 and not keys & self.rounds.lost_keys and self._all_send()

    def _state(self) -> str:
        return "; ".join(
            f"rank {path.rank} {member._life.phase.name} at {member.service} still {path.stands_still} {path.errors}"
            for path, member in zip(self.paths, self.job.members, strict=True)
        )

    def _check(self) -> None:
        if self._go_on():
            before = self.rounds.passed
            self.network.sleep(5.0)
            if self.job.fallback is not None:  # it may just be on its way from there
                self.network.wait_for(self._go_on, self.network.now() + RESUME_S)
            # It shows late who cannot move, or was barred while the service stood still.
            if not any((path.fails or path.is_barred) and path.errors for path in self.paths):
                assert self._go_on() and self.rounds.passed > before, f"it goes on, and stays so: {self._state()}"
                self._check_fallback()
                assert self.beside is None or not any(path.errors for path in self.beside.paths)
                return
        errors = [error for path in self.paths for error in path.errors if not path.is_dead]
        errors = errors if self.beside is None else self.causes
        assert all(len(path.errors) <= 1 for path in self.paths), "each hears of it once"
        assert not self.mild or self.enders, f"a mild world ends no job: {errors}"
        for error in errors if self.mild else []:
            self._check_cause(error)

    def _check_cause(self, error: WiresumError) -> None:
        enders = [self.paths[rank] for rank in self.enders]
        said = [
            BUG if each.fails else f"ended the job: {REASON}" for each in enders if "abort" in each.over or each.fails
        ]
        said += [f"rank {each.rank}" for each in enders if each.is_gone]
        said += ["was revoked" for each in enders if each.is_barred]
        if self.is_forgotten or any(each.is_gone for each in enders):
            said.append("looked for another lease")  # for those who have heard it, or are gone
        assert any(text in str(error) for text in said), error


def test_all_workers_of_a_job_end_or_go_on_whatever_fails(life_seed: int) -> None:
    Watched.visited.update({(Phase.JOINED, Event.BEGIN): 1})
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        _live(life_seed, Path(folder))


def _live(seed: int, folder: Path) -> None:
    world = World(seed, folder)
    try:
        world.run()
    except BaseException:
        print(f"repeat it: --seed {seed}", *world.said, sep="\n")  # noqa: T201 - for people
        raise


def test_the_worlds_visit_most_of_what_can_happen() -> None:
    """With the worlds before. `pytest -s` shows how often each cell was visited; those that are not are tested alone
    (test_life.py)."""
    if Watched.visited[Phase.JOINED, Event.BEGIN] < WORLDS_LEAST:
        pytest.skip("too few seeds")
    acts = [(phase, event) for phase in Phase for event in Event if TABLE[phase][event] not in (IMPOSSIBLE, NOTHING)]
    for phase, event in acts:
        print(f"{phase.name:9} {event.name:10} {Watched.visited[phase, event]:9}")  # noqa: T201 - for people
    assert sum(cell in Watched.visited for cell in acts) >= CELLS_LEAST
