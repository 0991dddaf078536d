"""Trains jobs under random faults and attacks. No healthy job may end, and no sum may be wrong.

There are two software switches, two controllers with one state, and jobs whose workers check every element of every sum
(laboratory.py), all with certificates, which are renewed and revoked. Workers and controllers reach services through
proxies (proxied_laboratory.py), which can be cut, silently or with a reset. If this process is root, the cluster is in
a network namespace of its own, in which packets are lost, too, and the state is on a small disk of its own, which fills
up. Attacks are in attacks.py. Faults of the state's files are in disk_faults.py: they may end jobs, but with a cause
that workers hear, and only for a limited time. All random choices follow from a seed that is printed.

    python -m wiresum_lab.soaks.cluster_soak --seconds 3600
    python -m wiresum_lab.soaks.cluster_soak --seconds 25 --seed 7 --json
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import grpc

from wiresum import join
from wiresum.join import join_pb2_grpc
from wiresum.join.constants import THREADS_MAX
from wiresum.join.credentials import open_channel
from wiresum_lab.doubles.controller import join_request, member_of
from wiresum_lab.laboratory import HOST, STEP_S_MAX, SWITCHES, Job
from wiresum_lab.patience import FACTOR, PATIENCE_S, TimedOutError
from wiresum_lab.processes import Program, ProgramError, wait_until, wiresum
from wiresum_lab.proxies import TcpProxy
from wiresum_lab.soaks.attacks import Attacks
from wiresum_lab.soaks.disk_faults import DiskError, DiskFaults, DiskTimedOutError, disk_of_its_own
from wiresum_lab.soaks.proxied_laboratory import (
    ANSWER_S_MAX,
    ProxiedLaboratory,
    SoakError,
    SoakTimedOutError,
)

JOBS = 2
WORKERS = 2
"""Workers of each job."""
WORKER_SLOTS = 64
WAIT_S_MAX = 90.0 * FACTOR
LOST_S_MAX = 60.0 * FACTOR
"""Longest time from the death of a worker to the end of its job at the other workers, more than any limit. A controller
waits for heartbeats after a disturbance, so the time counts from the last fault of a controller."""
VICTIM_STEP_S_MAX = 3600.0
"""Time-out of a step in a job that loses a worker. The job must hear of the loss before, at any disturbance of the
controllers."""
RECONNECT_S_MAX = 10.0 * FACTOR
"""Longest time from the end of a disturbance until all workers have their connections again."""
STILL_S_MAX = 8.0
VISIT, VISIT_S_MAX = "visit", 3.0
"""The kind of a visit, in which a worker joins and leaves, and the longest pause between two visits."""
JOIN_S_MAX = 15.0 * FACTOR
"""Longest time from the first try, or from the end of a disturbance, until a worker has its place."""
COMMAND_S_MAX = PATIENCE_S
"""Time-out of an operator's command."""
LOOK_S = 5.0
"""Interval between checks of drained switches, memory and files."""
CALM_FILES_MAX = 300
"""Most open files of a service when all attacks are over."""
CALM_S = (60.0, 120.0)
"""Shortest and longest time between two faults of the state's files. For a while after a fault jobs may end, which
hides other causes of their end."""
DISTURBING = ("controller", "p4runtime", "links", "files", "switch")
CAUSES = (
    "does not know job",
    "keys are lost",
    "was started anew",
    "after the controller's state was written",
    "was lost",
    "is lost",
    "ended the job",
)
"""Texts of which workers hear one when a fault of the state has ended their job."""
LOSS = """
table inet soak {{
  chain lossy {{
    type filter hook input priority filter; policy accept;
    {packets} drop
  }}
}}
"""


class Soak:
    """Faults and attacks. Each method is a generator: it begins, yields how long it lasts, and ends."""

    def __init__(self, laboratory: ProxiedLaboratory, chance: random.Random, *, own: bool) -> None:
        """`own` says that network and disk are this program's own, so that it may disturb them."""
        self.laboratory, self.chance = laboratory, chance
        self.disk = DiskFaults(laboratory, chance, own_disk=own)
        self.jobs_begun = 0
        self.jobs = [self._begin_job() for _ in range(JOBS)]
        self.steps = 0
        """The sum of the steps of ended jobs."""
        self.may_end: dict[str, float] = {}
        """Jobs that a fault of the state may have ended, with the time of the fault."""
        self.ended_by: Counter[str] = Counter()
        """The causes of which the workers of ended jobs have heard."""
        self.victims = 0
        self.joins = 0
        self.join_s_max = 0.0
        """The longest join, counted from the last disturbance."""
        self.kinds: dict[Callable[[], Iterator[float]], str] = {
            self.freeze_a_controller: "controller",
            self.kill_a_controller: "controller",
            self.cut_controllers_off: "controller",
            self.cut_a_controller_from_a_switch: "p4runtime",
            self.cut_a_worker_from_the_service: "worker",
            self.reset_connections: "worker",
            self.freeze_a_worker: "worker",
            self.kill_a_worker_of_a_short_job: "victim",
            self.revoke_a_certificate: "victim",
            self.renew_certificates: "certificates",
            self.drain_a_switch: "drain",
            self.drain_while_the_controller_stands_still: "drain",
            self.end_a_job_while_the_controller_stands_still: "victim",
            self.restart_a_switch: "switch",
        }
        """The kind of each fault or attack. Only one of a kind runs at a time."""
        self.kinds |= Attacks(laboratory, chance).kinds | self.disk.kinds
        if own:
            self.kinds |= {self.spoil_the_links: "links", self.lose_packets_one_way: "links"}

    def keep_only(self, names: Sequence[str]) -> None:
        """Keeps only the faults and attacks with these names; no names keep all. SoakError for an unknown name."""
        known = {one.__name__ for one in self.kinds}
        if unknown := [name for name in names if name not in known]:
            raise SoakError(f"there is no {unknown[0]}, but {', '.join(sorted(known))}")
        self.kinds = {one: kind for one, kind in self.kinds.items() if not names or one.__name__ in names}

    @property
    def _upsets(self) -> int:
        """How many faults have happened that may end any job."""
        return self.disk.damages + self.laboratory.switches_restarted

    # Jobs.

    def _begin_job(self) -> Job:
        self.jobs_begun += 1
        return self._start_job(f"job-{self.jobs_begun}")

    def _start_job(self, name: str, step_s_max: float = STEP_S_MAX, tls: str = "worker") -> Job:
        return self.laboratory.start_job(name, WORKERS, tls=tls, slots=WORKER_SLOTS, step_s_max=step_s_max)

    def _goes_on(self, job: Job) -> bool:
        """Whether all workers of a job still run. Raises an error if a worker has a wrong sum, or has ended without an
        error."""
        job.check_sums()
        for rank in job.ended():
            if not job.said(rank).get("error"):
                raise SoakError(f"{job.name}, rank {rank}: {job.programs[rank].tail()}")
        return not job.ended()

    def _check_jobs(self, damages: int) -> None:
        """Raises `SoakError` if a job has ended that must go on. `damages` is the former count of faults of the
        state."""
        now = time.monotonic()
        if self.disk.damages != damages:
            self.may_end.update({job.name: now for job in self.jobs})
        for job in list(self.jobs):
            goes_on = self._goes_on(job)
            since = self.may_end.get(job.name)
            overdue = since is not None and now > max(since, self.laboratory.disturbed_at) + LOST_S_MAX
            if goes_on and overdue:
                del self.may_end[job.name]
            elif not goes_on and since is None:
                raise SoakError(f"{job.name} has ended: {_said(job)}")
            elif len(job.ended()) == WORKERS:
                self._begin_anew(job)
            elif not goes_on and overdue:
                raise SoakTimedOutError(f"a part of {job.name} has ended, and the others have not heard: {_said(job)}")

    def _begin_anew(self, job: Job) -> None:
        """Replaces a job that a fault of the state has ended."""
        for said in _said(job):
            if not any(cause in said["error"] for cause in CAUSES):
                raise SoakError(f"{job.name} has ended without a cause: {said}")
            self.ended_by[next(cause for cause in CAUSES if cause in said["error"])] += 1
        self.steps += job.steps()
        del self.may_end[job.name]
        self.laboratory.forget(job)
        self.jobs[self.jobs.index(job)] = self._begin_job()

    # Faults.

    def freeze_a_controller(self) -> Iterator[float]:
        program = self.chance.choice(list(self.laboratory.controllers.values()))
        if program.exit_code is not None:
            return
        program.process.send_signal(signal.SIGSTOP)
        yield self.chance.uniform(1, 45)
        program.process.send_signal(signal.SIGCONT)

    def kill_a_controller(self) -> Iterator[float]:
        self.chance.choice(list(self.laboratory.controllers.values())).kill()
        yield self.chance.uniform(0.5, 20)

    def cut_controllers_off(self) -> Iterator[float]:
        """Cuts both controllers off from workers and switches."""
        switch_ways = (way for ways in self.laboratory.p4runtime_ways.values() for way in ways.values())
        yield from self._cut([*(way for ways in self.laboratory.ways.values() for way in ways), *switch_ways], 40)

    def cut_a_controller_from_a_switch(self) -> Iterator[float]:
        ways = self.chance.choice(list(self.laboratory.p4runtime_ways.values()))
        yield from self._cut([ways[self.chance.choice(SWITCHES)]], 40)

    def cut_a_worker_from_the_service(self) -> Iterator[float]:
        yield from self._cut(self.laboratory.ways[self._any_worker()], 60)

    def _cut(self, ways: Sequence[TcpProxy], s_max: float) -> Iterator[float]:
        for way in ways:
            self.laboratory.proxies.cut(way)
        yield self.chance.uniform(1, s_max)
        for way in ways:
            self.laboratory.proxies.mend(way)

    def reset_connections(self) -> Iterator[float]:
        for job in self.jobs:
            for way in self.laboratory.ways[job.name, self.chance.randrange(WORKERS)]:
                self.laboratory.proxies.reset(way)
        yield 0.5

    def freeze_a_worker(self) -> Iterator[float]:
        """Stops a worker for a while. The time is long only without a recent disturbance: a worker that neither
        reconnects nor sends a packet counts as dead."""
        process = self.chance.choice(self.jobs).programs[self.chance.randrange(WORKERS)].process
        process.send_signal(signal.SIGSTOP)
        calm = time.monotonic() > self.laboratory.disturbed_at + RECONNECT_S_MAX
        yield self.chance.uniform(0.5, 15 if calm else 1.5)
        process.send_signal(signal.SIGCONT)

    def _any_worker(self) -> tuple[str, int]:
        return self.chance.choice(self.jobs).name, self.chance.randrange(WORKERS)

    def spoil_the_links(self) -> Iterator[float]:
        """Drops a fraction of all packets, including the control plane's."""
        _nft(LOSS.format(packets=_part(self.chance.choice((1, 5, 20)))))
        yield self.chance.uniform(1, 15)
        _nft("delete table inet soak")

    def lose_packets_one_way(self) -> Iterator[float]:
        """Drops a fraction of the packets from the switches, or of the packets to them; or all TCP packets from a
        service."""
        at = self.laboratory.at.values()
        switches = "{" + ", ".join(f"{switch.data}-{switch.data + THREADS_MAX - 1}" for switch in at) + "}"
        ports = [*self.laboratory.ports.values(), *(switch.p4runtime for switch in at)]
        kinds = [f"udp sport {switches}", f"udp dport {switches}"]
        some = [f"{kind} {part}" for kind in kinds for part in (_part(5), _part(30), "")]
        _nft(LOSS.format(packets=self.chance.choice([*some, f"tcp sport {self.chance.choice(ports)}"])))
        yield self.chance.uniform(1, 10)
        _nft("delete table inet soak")

    # Operators.

    def drain_a_switch(self) -> Iterator[float]:
        self.laboratory.draining = {self.chance.choice(SWITCHES)}
        self.laboratory.tend_draining()
        yield self.chance.uniform(2, 20)
        self.laboratory.draining = set()
        self.laboratory.tend_draining()

    def drain_while_the_controller_stands_still(self) -> Iterator[float]:
        """Drains a switch while the controller is stopped. A command that waits until the switch is empty must not take
        the silence for success."""
        damages, name = self.disk.damages, self.chance.choice(SWITCHES)
        self.laboratory.draining = {name}
        command = self._operate("jobs", "drain", name, "--wait", "--timeout", f"{COMMAND_S_MAX:.0f}")
        yield self.chance.uniform(0.5, 3)
        self._stand_still()
        while command.exit_code is None:
            yield 0.2
        report = self.laboratory.report(ANSWER_S_MAX) if command.exit_code == 0 else None
        jobs = report.jobs if report is not None else ()
        running = [job.name for job in jobs if job.state == "running" and job.switch_name == name]
        if running and self.disk.damages == damages:
            raise SoakError(f"a drain that waits ended with status 0, and {running} run there: {command.said()}")
        self.laboratory.draining = set()
        self.laboratory.tend_draining()

    def end_a_job_while_the_controller_stands_still(self) -> Iterator[float]:
        """Ends a job, like an epilog of a batch system, while the controller is stopped. If the command succeeds, the
        job has ended."""

        def end(job: Job) -> None:
            self._stand_still()
            self._operate_until_done("jobs", "end", f"{job.name}*")

        yield from self._short_job("worker", end, "an operator ended it")

    def _stand_still(self) -> None:
        """Stops the serving controller for a time so short that no takeover is needed, or a little longer."""
        serving = next((one for one in self.laboratory.controllers.values() if "ready: control" in one.said()), None)
        if serving is None or serving.exit_code is not None:
            return
        still_s = self.chance.uniform(1, STILL_S_MAX)
        serving.process.send_signal(signal.SIGSTOP)
        threading.Timer(still_s, serving.process.send_signal, (signal.SIGCONT,)).start()
        self.laboratory.disturbed_at = time.monotonic() + still_s

    def _operate(self, *words: str) -> Program:
        settings = {"WIRESUM_SWITCH": self.laboratory.targets, "WIRESUM_TLS": str(self.laboratory.pki.tls("operator"))}
        return Program(wiresum(*words), self.laboratory.folder / "operator.log", settings, append=True)

    def _operate_until_done(self, *words: str) -> None:
        """Repeats a command until it succeeds, in a thread of its own."""

        def operate() -> None:
            while self._operate(*words).process.wait(COMMAND_S_MAX) != 0:
                time.sleep(1)

        threading.Thread(target=operate, daemon=True).start()

    # Workers that no fault concerns.

    def join_and_leave(self) -> Iterator[float]:
        """A visit: a worker gets its place soon, if a controller can give it one. Visits go on during all attacks."""
        self.joins += 1
        thread = threading.Thread(target=self._join_and_leave, args=(f"visit-{self.joins}",), daemon=True)
        thread.start()
        asked_at = time.monotonic()
        while thread.is_alive():
            if self.disk.is_full:
                asked_at = time.monotonic()
            if time.monotonic() > max(asked_at, self.laboratory.disturbed_at) + JOIN_S_MAX:
                raise SoakTimedOutError(f"visit-{self.joins} got no place in {JOIN_S_MAX:.0f} s")
            yield 0.1
        self.join_s_max = max(self.join_s_max, time.monotonic() - max(asked_at, self.laboratory.disturbed_at))
        yield self.chance.uniform(0, VISIT_S_MAX)

    def _join_and_leave(self, name: str) -> None:
        endpoint = join.Endpoint(address=HOST, port=1024)
        request = join_request(job_name=name, endpoint=endpoint, threads_max=1, slots=16, attempt=name)
        for target in itertools.cycle(self.laboratory.targets.split(",")):
            channel = open_channel(target, tls=str(self.laboratory.pki.tls("worker")))
            stub = join_pb2_grpc.JoinServiceStub(channel)
            with channel, contextlib.suppress(grpc.RpcError):
                for event in stub.Join(request, timeout=JOIN_S_MAX / 4):
                    if event.HasField("granted"):
                        stub.Leave(join.LeaveRequest(member=member_of(event.granted)), timeout=JOIN_S_MAX / 4)
                        return
            time.sleep(0.2)

    def restart_a_switch(self) -> Iterator[float]:
        """Restarts a switch. Jobs at the other switch go on. Jobs at this switch move, or end if another fault comes
        before they have moved."""
        report = self.laboratory.report(ANSWER_S_MAX)
        if report is None:
            return
        name = self.chance.choice(SWITCHES)
        self.laboratory.switches_restarted += 1
        elsewhere = {job.name for job in report.jobs if job.switch_name not in ("", name)}
        self.may_end.update({job.name: time.monotonic() for job in self.jobs if job.name not in elsewhere})
        self.laboratory.switches[name].kill()
        yield self.chance.uniform(0.5, 5)
        self.laboratory.start_switch(name)
        yield RECONNECT_S_MAX

    def renew_certificates(self) -> Iterator[float]:
        for name in self.chance.sample(("controller", "operator", "worker", *SWITCHES), 3):
            self.laboratory.pki.renew(name)
        yield 0.5

    # Jobs that lose a worker.

    def kill_a_worker_of_a_short_job(self) -> Iterator[float]:
        yield from self._short_job("worker", lambda job: job.programs[1].kill(), "rank 1")

    def revoke_a_certificate(self) -> Iterator[float]:
        holder = f"guest-{self.victims + 1}"
        self.laboratory.pki.issue(holder, "worker", tenants=("guests",))
        yield from self._short_job(holder, lambda _: self.laboratory.pki.revoke(holder), "revoked")

    def _short_job(self, tls: str, strike: Callable[[Job], None], wanted: str) -> Iterator[float]:
        """Runs a job that `strike` ends. Rank 0 must hear `wanted` as the cause, and the job's slots must become free.
        If the rank was cut off at the end of its job, and a standby took over meanwhile, it hears instead that the job
        is not known: the cause is not on disk."""
        self.victims += 1
        upsets = self._upsets
        job = self._start_job(f"short-{self.victims}", VICTIM_STEP_S_MAX, tls)
        give_up_at = time.monotonic() + WAIT_S_MAX
        while not job.steps():
            if self._goes_on(job) and time.monotonic() > max(give_up_at, self.laboratory.disturbed_at + WAIT_S_MAX):
                raise SoakTimedOutError(f"{job.name} did not begin: {_said(job)}")
            if not self._goes_on(job):
                if self._upsets == upsets:
                    raise SoakError(f"{job.name} did not begin: {_said(job)}")
                break
            yield 0.5
        strike(job)
        struck_at, takeovers = time.monotonic(), self.laboratory.takeovers()
        while 0 not in job.ended():
            if time.monotonic() > max(struck_at, self.laboratory.disturbed_at) + LOST_S_MAX:
                raise SoakTimedOutError(f"in {LOST_S_MAX:.0f} s {job.name} did not hear that it has ended: {wanted}")
            yield 0.5
        said = job.said(0).get("error", "")
        forgotten = "does not know job" in said and self.laboratory.takeovers() > takeovers
        lost = self._upsets != upsets and any(cause in said for cause in CAUSES)
        if wanted not in said and not forgotten and not lost:
            raise SoakError(f"{job.name} heard something else than {wanted!r}: {said}")
        while len(job.ended()) < WORKERS:
            if time.monotonic() > max(struck_at, self.laboratory.disturbed_at) + 2 * LOST_S_MAX:
                raise SoakTimedOutError(f"a part of {job.name} has ended, and the others have not heard: {_said(job)}")
            yield 0.5
        self.laboratory.forget(job)

    # The whole run.

    def settle(self) -> None:
        """Waits until each job that a fault of the state may have ended has gone on for long enough, or was
        replaced."""
        while self.may_end:
            self.laboratory.tend_controllers()
            self._check_jobs(self.disk.damages)
            time.sleep(0.1)

    def run(self, seconds: float, say: Callable[[str], None]) -> Counter[str]:
        """Runs faults and attacks for so many seconds. Returns how often each came. Raises `SoakError`."""
        came: Counter[str] = Counter()
        under_way: dict[str, tuple[Iterator[float], float]] = {}
        began_at = time.monotonic()
        next_at, looked_at = began_at + 1, began_at
        files_at = began_at + self.chance.uniform(0, 30)
        damages = self.disk.damages
        while time.monotonic() < began_at + seconds or under_way:
            now = time.monotonic()
            if now >= next_at and now < began_at + seconds:
                next_at = now + self.chance.uniform(0.3, 4)
                calm = now < files_at
                begin = self.chance.choice([one for one, kind in self.kinds.items() if not (calm and kind == "files")])
                if self.kinds[begin] == "files":
                    files_at = now + self.chance.uniform(*CALM_S)
                if self.kinds[begin] not in under_way:
                    came[begin.__name__] += 1
                    say(f"{now - began_at:7.1f} s  {begin.__name__}")
                    under_way[self.kinds[begin]] = begin(), now
            if VISIT not in under_way and now < began_at + seconds:
                under_way[VISIT] = self.join_and_leave(), now
            for kind, (steps, until) in list(under_way.items()):
                if now >= until:
                    lasts_s = next(steps, None)
                    if lasts_s is None:
                        del under_way[kind]
                    else:
                        rest_s = max(0.0, began_at + seconds - now)
                        under_way[kind] = steps, now + min(lasts_s, rest_s + 0.5)
            if now >= looked_at + LOOK_S:
                looked_at = now
                self.laboratory.tend_draining()
                self.laboratory.check_sizes()
            if self.disk.disturbs or any(kind in under_way for kind in DISTURBING):
                self.laboratory.disturbed_at = max(now, self.laboratory.disturbed_at)
            self.laboratory.tend_controllers(may_fail=self.disk.is_full or "files" in under_way)
            self._check_jobs(damages)
            damages = self.disk.damages
            time.sleep(0.1)
        return came


@click.command()
@click.option("--seconds", default=3600.0, show_default=True, help="How long.")
@click.option("--seed", type=int, help="Seed of the faults.  [default: drawn]")
@click.option("--only", multiple=True, help="A fault or attack by its name. Can be repeated.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object at the end, and nothing else.")
@click.option("--inside", is_flag=True, hidden=True)
def main(seconds: float, seed: int | None, only: tuple[str, ...], as_json: bool, inside: bool) -> None:
    """Train under faults and attacks. Exits with status 1 if a healthy job ends or a sum is wrong, and with 3 if
    something did not come in time."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    if not inside and os.geteuid() == 0 and shutil.which("ip") and shutil.which("nft"):
        chosen = [f"--only={name}" for name in only]
        sys.exit(
            _in_namespace(["--seconds", str(seconds), "--seed", str(seed), *chosen, *["--json"] * as_json, "--inside"])
        )
    say: Callable[[str], None] = (lambda _: None) if as_json else click.echo
    say(f"seed {seed}" + ("" if inside else "; not root, or no `ip` and `nft`: the links are not touched"))
    folder = Path(tempfile.mkdtemp(prefix="wiresum-soak-"))
    with disk_of_its_own(folder / "state") if inside else contextlib.nullcontext():
        try:
            with ProxiedLaboratory(folder) as laboratory:
                outcome = _soak(laboratory, seed, seconds, only, say, own=inside)
        except (SoakError, DiskError, ProgramError, AssertionError) as error:
            shutil.copytree(folder / "state", folder / "left", dirs_exist_ok=True)
            timed_out = isinstance(error, SoakTimedOutError | DiskTimedOutError | TimedOutError)
            raise (SoakTimedOutError if timed_out else SoakError)(f"seed {seed}: {error}; see {folder}") from error
    shutil.rmtree(folder)
    click.echo(json.dumps(outcome) if as_json else f"well: {outcome}")


def _soak(
    laboratory: ProxiedLaboratory,
    seed: int,
    seconds: float,
    only: Sequence[str],
    say: Callable[[str], None],
    *,
    own: bool,
) -> dict[str, Any]:
    soak = Soak(laboratory, random.Random(seed), own=own)
    soak.keep_only(only)
    _await(lambda: all(job.steps() for job in soak.jobs), "the jobs train")
    came = soak.run(seconds, say)
    soak.settle()
    for job in soak.jobs:
        job.goes_on(WAIT_S_MAX)
    for job in soak.jobs:
        job.finish()
    _await(
        laboratory.all_switches_are_empty, "no job and no slot is left behind", meanwhile=laboratory.tend_controllers
    )
    _await(lambda: all(files <= CALM_FILES_MAX for _, files in laboratory.sizes().values()), "few files are open")
    return {"seed": seed, "seconds": seconds, "steps": soak.steps + sum(job.steps() for job in soak.jobs), "own": own,
            "came": dict(came), "ended_by": dict(soak.ended_by),
            "visits": soak.joins, "visit_s_max": round(soak.join_s_max, 1),
            "kib": {name: kib for name, (kib, _) in laboratory.sizes().items()}}  # fmt: skip


_await = functools.partial(wait_until, patience_s=WAIT_S_MAX)


def _said(job: Job) -> list[dict[str, Any]]:
    return [job.said(rank) for rank in range(WORKERS)]


def _in_namespace(arguments: list[str]) -> int:
    """Runs this program in a network namespace of its own, whose loopback interface it may disturb."""
    name = f"wiresum-soak-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-netns", name, "link", "set", "lo", "up", "mtu", "1500"], check=True)
        command = ["ip", "netns", "exec", name, sys.executable, __file__, *arguments]
        return subprocess.run(command, check=False).returncode
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def _part(percent: int) -> str:
    """A condition of nft that a fraction of packets fulfils."""
    return f"numgen random mod 100 < {percent}"


def _nft(rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


if __name__ == "__main__":
    main()
