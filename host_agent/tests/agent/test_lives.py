"""Whole jobs in virtual time: the real memberships of all workers, services with real jobs, and faults at any moment.

A seed makes a job, its services, and up to four faults that begin within FAULTS_S: a service is killed, stopped, or
takes no jobs; a switch is lost; a worker's calls are cut, or what it is told is lost; and perhaps one worker ends the
job. In a *mild* world each fault is over before anybody gives up: there the job goes on, or all hear why it does not.
In any world all workers end or all go on, within a bound, and what each says of its positions is so.

pytest host_agent/tests/agent/test_lives.py --seeds 10000        a long run
pytest host_agent/tests/agent/test_lives.py --seed 1234          repeats a seed
"""

from __future__ import annotations

import dataclasses
import functools
import random
import struct
from collections.abc import Callable
from pathlib import Path

from wiresum import join as messages
from wiresum.agent.errors import WiresumError
from wiresum.agent.life_table import ABORT_S_MAX, LEAVE_S_MAX, RESUME_S, Phase
from wiresum.agent.membership import Membership
from wiresum.agent.statistics import TrafficStats
from wiresum_lab.doubles.moving import roles
from wiresum_lab.doubles.resuming import SLOTS, DataPath, FallbackOf, Job
from wiresum_lab.doubles.virtual_network import LIMITS, Network, Service

FAULTS_S = 8.0
MILD_S, LONG_S = 4.0, 60.0
"""How long a fault lasts, at most."""
STEP_S = 0.2
SETTLE_S = 20.0
"""Until a service has found out whom it has lost."""
MARGIN_S = 75.0
"""In a world that is not mild: until a service ends a job that has no lease, or whose workers do not come back."""
REASON, BUG = "the loss is NaN", "a thread has died"


class Rounds:
    """What the data paths of a job have summed."""

    def __init__(self, chance: random.Random, workers: int) -> None:
        self._chance, self.workers = chance, workers
        self.lost_keys: set[int] = set()
        """Of leases whose switch has lost what it held."""
        self.passed = 0
        self._round = 7
        self._draw()

    def _draw(self) -> None:
        ahead = [[self._chance.random() < 0.3 for _ in range(SLOTS)] for _ in range(self.workers)]
        self.positions = [[self._round + each for each in mine] for mine in ahead]
        self.roles = roles(self.positions)

    def pass_on(self) -> None:
        self.passed += 1
        self._round += 2
        self._draw()


class Sums(DataPath):
    """Of one worker; it moves on with the others."""

    def __init__(self, rounds: Rounds, rank: int) -> None:
        super().__init__()
        self.rounds, self.rank = rounds, rank
        self.stands_still = False
        self.key, self.served_at = 0, ""
        self.member: Membership | None = None
        self.over: list[str] = []
        """What this worker has said of its end."""

    def traffic(self) -> TrafficStats:
        self._packets += not self.stands_still
        return TrafficStats(packets_sent=self._packets, bytes_received=self.rounds.passed)

    def halt(self) -> bytes:
        super().halt()
        assert not self.over, "one with an order does not halt"
        self.stands_still = True
        return struct.pack(f">{SLOTS}I", *self.rounds.positions[self.rank])

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        assert self.stands_still and not self.over
        assert grant.key != self.key and grant.key not in self.rounds.lost_keys
        super().move(grant, roles)
        assert roles == self.rounds.roles[self.rank], "the roles are those of where all workers stand"
        self.stands_still = False
        self.know(grant)

    def know(self, grant: messages.JoinReply) -> None:
        assert self.member is not None
        self.key, self.served_at = grant.key, self.member.service


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
        self.services = [
            Service(self.network, self.limits, folder / str(index) if chance.random() < 0.4 else None).start()
            for index in range(chance.choice([1, 1, 2]))
        ]
        for other in self.services[1:]:
            if chance.random() < 0.5:
                other.kill()
        workers = chance.choice([1, 2, 2, 3, 4])
        self.rounds = Rounds(chance, workers)
        self.paths = [Sums(self.rounds, rank) for rank in range(workers)]
        fallback = FallbackOf(Service(self.network, self.limits)) if chance.random() < 0.4 else None
        endpoints, share = ",".join(each.endpoint for each in self.services), chance.random() < 0.5
        self.job = Job(self.network, endpoints, list(self.paths), fallback, share=share)
        for path, member in zip(self.paths, self.job.members, strict=True):
            path.member = member
            path.know(member.grant)
        self.ender = chance.randrange(workers) if chance.random() < 0.6 else None
        self.switches_lost: set[Service] = set()
        """A service that is started anew finds out."""
        self.is_forgotten = False
        """An order is, which a service has heard."""
        self.said: list[str] = []
        """What has happened, for people."""
        self.is_over = False
        self.network.start(self._pass_on, "rounds")

    def _pass_on(self) -> None:
        """Where all workers are at one lease, and its switch has what they sent, each round passes."""
        while not self.is_over:
            keys = {path.key for path in self.paths}
            if len(keys) == 1 and not keys & self.rounds.lost_keys and self._all_send():
                self.rounds.pass_on()
            self.network.sleep(STEP_S)

    def _all_send(self) -> bool:
        return not any(path.stands_still or path.over or path.errors for path in self.paths)

    # Faults.

    def _say(self, what: str) -> None:
        self.said.append(f"{self.network.now() - 1000.0:.2f} {what}")

    def _lose_sums(self, service: Service) -> None:
        self.rounds.lost_keys |= {path.key for path in self.paths if path.served_at == service.endpoint}

    def _kill(self, service: Service) -> Callable[[], object]:
        """With a state on disk its switch is another process, which lives."""
        if not service.keeps_state:
            self._lose_sums(service)
        self._forget()
        service.kill()
        return functools.partial(self._start, service)

    def _stop(self, service: Service) -> Callable[[], object]:
        self._lose_sums(service)
        self._forget()
        service.stop()
        return functools.partial(self._start, service)

    def _forget(self) -> None:
        """A service ends that may have heard an order, and have told some of the workers of it."""
        heard = (Phase.TOLD, Phase.OVER, Phase.LEFT)
        self.is_forgotten |= self.ender is not None and self.job.members[self.ender]._life.phase in heard

    def _start(self, service: Service) -> None:
        if service.endpoint not in self.network.services:
            service.start()
            if service in self.switches_lost:
                service.running.lose_switch()

    def _lose_switch(self, service: Service) -> Callable[[], object]:
        self._lose_sums(service)
        running = service.running
        running.lose_switch(comes_back=False)
        self.switches_lost.add(service)
        return lambda: running.find_switch() if running.runs else None

    def _refuse(self, service: Service) -> Callable[[], object]:
        running = service.running
        running.refuses_with = "it takes no jobs"
        return functools.partial(setattr, running, "refuses_with", "")

    def _fault(self) -> None:
        chance, job = self.chance, self.job
        self.network.sleep(chance.random() * FAULTS_S)
        lasts_s = chance.random() * (MILD_S if self.mild else chance.choice([MILD_S, LONG_S]))
        what = chance.choice([self._kill, self._kill, self._stop, self._lose_switch, self._refuse, None, None])
        service = chance.choice(self.services)
        if what is not None:
            if service.endpoint not in self.network.services:
                return
            self._say(f"{what.__name__} {service.endpoint} for {lasts_s:.2f} s")
            heal = what(service)
        else:
            ranks = [rank for rank in range(len(job.hosts)) if chance.random() < 0.5]
            how = chance.choice(["refused", "silence", "deaf"])
            self._say(f"{how} at {ranks} for {lasts_s:.2f} s")
            heal = functools.partial(self._cut, ranks, "")
            self._cut(ranks, how)
        self.network.sleep(lasts_s)
        heal()
        self._say("healed")

    def _cut(self, ranks: list[int], how: str) -> None:
        for rank in ranks:
            host = self.job.hosts[rank]
            host.loses_packets = how == "deaf"
            if how in ("refused", "silence"):
                host.cut(how)
            elif not how:
                host.cut_off = ""

    def _end(self) -> None:
        if self.ender is None:
            return
        self.network.sleep(self.chance.random() * (FAULTS_S + 2.0))
        member, path = self.job.members[self.ender], self.paths[self.ender]
        how = self.chance.choice(["abort", "abort", "leave", "abort leave", "halt", "move"])
        self._say(f"rank {self.ender} {how}")
        if how in ("halt", "move"):
            path.fails[how] = ValueError(BUG)
            return
        for word in how.split():
            if not path.errors:
                path.over.append(word)
            began_at = self.network.now()
            member.abort(REASON) if word == "abort" else member.leave()
            bound_s = LEAVE_S_MAX if word == "abort" else ABORT_S_MAX if "abort" in path.over else LEAVE_S_MAX
            assert self.network.now() - began_at <= bound_s + 1.0, "an order is bounded"

    # What must be.

    def run(self) -> None:
        try:
            faults = [self._fault] * self.chance.choice([1, 1, 2, 3, 4])
            self.network.run(self._end, *faults)
            self._heal()
            self.network.sleep(STEP_S if self.mild else SETTLE_S)
            patience_s = max(self.limits.reattach_ms, self.limits.heartbeat_lost_ms) / 1000 + RESUME_S
            bound_s = self.network.now() + patience_s + MARGIN_S
            assert self.network.wait_for(self._is_settled, bound_s), f"neither over nor going on: {self._state()}"
            self._check()
        finally:
            self.is_over = True
        self.job.leave()
        for service in [*self.services, *([self.job.fallback.service] if self.job.fallback else [])]:
            service.kill()
        self.network.expect_no_threads()

    def _heal(self) -> None:
        for service in self.services:
            self._start(service)

    def _is_settled(self) -> bool:
        return all(bool(path.errors or "leave" in path.over) for path in self.paths) or self._go_on()

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
            assert self._go_on() and self.rounds.passed > before, f"it goes on, and stays so: {self._state()}"
            return
        errors = [error for path in self.paths for error in path.errors]
        assert all(len(path.errors) <= 1 for path in self.paths), "each hears of it once"
        ender = self.paths[self.ender] if self.ender is not None else None
        assert not self.mild or ender is not None, f"a mild world ends no job: {errors}"
        if self.mild and ender is not None:
            self._check_cause(ender, errors)

    def _check_cause(self, ender: Sums, errors: list[WiresumError]) -> None:
        if "abort" in ender.over or ender.fails:
            said = BUG if ender.fails else f"ended the job: {REASON}"
        else:
            said = f"rank {self.ender}"
        for error in errors:
            # Who has yet to hear it looks for those who have heard it.
            assert said in str(error) or (self.is_forgotten and "looked for another lease" in str(error)), errors


def test_all_workers_of_a_job_end_or_go_on_whatever_fails(life_seed: int, tmp_path: Path) -> None:
    world = World(life_seed, tmp_path)
    try:
        world.run()
    except BaseException:
        print(f"repeat it: --seed {life_seed}", *world.said, sep="\n")  # noqa: T201 - for people
        raise
