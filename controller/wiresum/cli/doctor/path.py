"""Checks the path of the data: joins a job of its own, and sums a tensor through the switch.

The job has two workers, both in this process. A single one would prove less: a switch that adds wrongly may still
return one worker's numbers unchanged.
"""

from __future__ import annotations

import array
import contextlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from urllib.parse import unquote

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, JobAbortedError, Region, Session, SessionStats, TrafficStats, WiresumError
from wiresum.cli.doctor.finding import Finding, note, ok, problem, warning
from wiresum.cli.doctor.host import Drops, doubt_about_frames, drops
from wiresum.cli.service import Service, ServiceError
from wiresum.join import credentials

WORKERS = 2
JOIN_S_MAX = 15.0
SUM_S_MAX = 30.0
LOSS_MUCH = 0.001
"""Fraction of packets lost. A healthy network loses fewer."""
WATCH_S = 0.5
"""How often the service is asked, while the job runs, what the switch has counted."""
SLOTS = 64
"""How many slots the job asks for: enough to measure, and no burden for other jobs."""
SLOTS_USUAL = 256
"""How many slots the service gives a job that asks for no number."""
FAR_S = 0.001
"""The round trip from which on a usual lease may be too small: at 1 ms its packets fill 3 Gbit/s."""
JOB = "wiresum:job/"
"""Prefix of the names in a certificate that say which jobs its holder may join."""
SAME_WAY = "training would fail in the same way"
AS_A_WORKER = (
    "this joins as a worker does, a job of its own named doctor-...: run it with a worker's settings (WIRESUM_TLS, "
    "WIRESUM_TENANT, WIRESUM_ADDRESS). If that certificate is for single jobs alone, issue it again with --job "
    "'doctor-*' besides. Where no worker is to run, leave the path out: --check host --check switch --check job"
)


@dataclass(frozen=True)
class Trial:
    """What one worker saw of the trial."""

    wrong: int
    """How many of the `numbers` sums were wrong."""
    numbers: int
    seconds: float
    lanes: int
    stats: SessionStats


@dataclass
class Seen:
    """What is known of the trial's packets, for the case that the trial fails."""

    counted: int | None = None
    """Packets that the switch has counted; None: the switch has not said."""
    results: int = 0
    """Sums that were complete at the switch."""
    came_back: int = 0
    """Sums that came back to a worker."""
    slow: str = ""
    """Why a switch did not say what it counted, if this happened at least once."""


def findings(config: AgentConfig, interfaces: Collection[str], mebibytes: int, service: Service) -> Iterator[Finding]:
    """Findings about the path. `interfaces`: the ones that data goes through, whose counters of dropped packets are
    read. `service`: is asked what became of the packets if they do not come back."""
    name = job_name(config.tls)
    config = replace(config, join_timeout_s=JOIN_S_MAX, slots=SLOTS)
    before = _drops_at(interfaces)
    seen = Seen()
    try:
        with _watched(service, name, seen):
            trials = _try(config, name, numbers=mebibytes << 18, seen=seen)
    except (RuntimeError, OSError) as error:  # the native agent raises RuntimeError
        yield _failed(error, seen, next(filter(None, map(doubt_about_frames, interfaces)), ""))
        return
    lost = _drops_at(interfaces)
    yield _sums(trials)
    yield from _far(trials)
    yield from _losses(trials, Drops(lost.no_buffer - before.no_buffer, lost.at_interface - before.at_interface))


def job_name(tls: str) -> str:
    """Name of the doctor's own job: one that the certificate in `tls` allows, unless it allows single names alone."""
    own = f"doctor-{socket.gethostname()}-{os.getpid()}"
    try:
        names = credentials.load(tls).names if tls else ()
    except credentials.CredentialsError:  # joining reports this error, too
        names = ()
    patterns = [unquote(name.removeprefix(JOB)) for name in names if name.startswith(JOB)]
    fitting = (pattern.replace("*", own, 1).replace("*", "") for pattern in patterns)
    allowed = (
        name
        for name in (own, *fitting)
        if name.count(own) == 1 and not join.name_problem(name) and any(fnmatchcase(name, each) for each in patterns)
    )
    return next(allowed, own)


def _drops_at(interfaces: Collection[str]) -> Drops:
    each = [drops(interface) for interface in interfaces]
    return Drops(each[0].no_buffer, sum(one.at_interface for one in each))  # buffers are counted for the whole host


@contextlib.contextmanager
def _watched(service: Service, name: str, seen: Seen) -> Iterator[None]:
    """Notes, while the block runs, what the service says of the job; after the job has ended nobody knows."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_S):
            with contextlib.suppress(ServiceError):
                _note(service.report(), name, seen)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _note(report: join.Report, name: str, seen: Seen) -> None:
    """Notes what a report says of the job. Counters of a job only grow, and so does what is noted."""
    for job in report.jobs:
        if job.name == name and job.slots and not job.uncounted:
            seen.counted = max(seen.counted or 0, sum(job.packets.values()))
            seen.results = max(seen.results, job.results)
    seen.slow = next((f"{switch.name}: {switch.trouble}" for switch in report.switches if switch.uncounted), seen.slow)


def _try(config: AgentConfig, name: str, *, numbers: int, seen: Seen) -> list[Trial]:
    """Lets both workers sum random numbers. Raises the first error."""
    values = [array.array("I", secrets.token_bytes(4 * numbers)) for _ in range(WORKERS)]
    expected = array.array("I", (sum(column) & 0xFFFFFFFF for column in zip(*values, strict=True)))
    results: list[Trial | BaseException | None] = [None] * WORKERS

    def work(rank: int) -> None:
        try:
            results[rank] = _sum(config, name, rank, values[rank], expected, seen)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S_MAX + 2 * SUM_S_MAX)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        # The first failure is the cause. It ends the job, which the other worker reports as an error of its own.
        raise min(errors, key=lambda error: isinstance(error, JobAbortedError))
    trials = [result for result in results if isinstance(result, Trial)]
    if len(trials) < WORKERS:
        raise WiresumError(f"the trial did not end in {JOIN_S_MAX + 2 * SUM_S_MAX:.0f} s")
    return trials


def _sum(
    config: AgentConfig, name: str, rank: int, values: array.array[int], expected: array.array[int], seen: Seen
) -> Trial:
    # Each worker has a stream of its own: otherwise no packet would leave this host.
    session = Session.join(replace(config, share=False), job_name=name, rank=rank, world_size=WORKERS)
    try:
        sums = array.array("I", bytes(4 * len(values)))
        region = Region(values.buffer_info()[0], sums.buffer_info()[0], len(values))
        started_at = time.monotonic()
        session.submit([region], dtype=Dtype.I32, timeout_s=SUM_S_MAX, notify=False).wait()
        seconds = time.monotonic() - started_at
        wrong = 0 if sums == expected else sum(a != b for a, b in zip(sums, expected, strict=True))
        return Trial(wrong, len(values), seconds, session.lanes, session.stats())
    finally:
        seen.came_back = max(seen.came_back, session.stats().results)
        session.close()


def _failed(error: BaseException, seen: Seen, doubt: str) -> Finding:
    """The finding for a failed trial. `doubt`: about this host's frames."""
    code = getattr(error, "code", "")
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return problem("join", str(error), SAME_WAY, AS_A_WORKER)
    if code:
        # Who refuses a connection, or a certificate, has got our frames.
        has_answered = "refused" in str(error) or credentials.is_about_tls(str(error))
        cut_off = code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") and not has_answered
        return problem("join", str(error), SAME_WAY, doubt if cut_off else "")
    frames = f". If they let it pass: {doubt}" if doubt else ""
    what, advice = _where_it_stops(seen, frames)
    if getattr(error, "translated", ""):
        advice = f"{join.TRANSLATION_ADVICE}. If no address is translated: {advice}"
    return problem("data", f"{error}. {what}", SAME_WAY, advice)


def _where_it_stops(seen: Seen, frames: str) -> tuple[str, str]:
    """Says how far packets got, and what to do."""
    firewall = "a firewall here or there must let UDP pass between the switch's 16 data ports and this host"
    if seen.came_back or seen.slow:
        evidence = f"{seen.came_back} sums came back" if seen.came_back else seen.slow
        return (
            f"It is no firewall ({evidence}): the switch or this host is too busy, or the way loses packets",
            "look at the load of the switch's processor (bmv2 takes 80 to 90 us of it for a packet) and of this host, "
            "at other jobs (wiresum top), and at drops on the way; --size 1 sums less",
        )
    if seen.counted is None:
        return "What the switch counted is not known (the service tells operators alone)", f"{firewall}{frames}"
    if not seen.counted:
        return "The switch has counted none of this job's packets: they do not reach it", f"{firewall}{frames}"
    return (
        f"The switch has counted {seen.counted} packets of this job, and {seen.results} sums were complete, but none "
        "came back: packets reach it, and what it sends does not reach this host",
        f"{firewall}, above all towards this host, and the MTU on the way back must hold what it sends. A bmv2 that "
        "other jobs keep busy may be as silent: try again when they have ended (wiresum jobs)",
    )


def _sums(trials: list[Trial]) -> Finding:
    first = trials[0]
    wrong = sum(trial.wrong for trial in trials)
    if wrong:
        return problem(
            "sums",
            f"{wrong} of {WORKERS * first.numbers} sums came back wrong",
            "a model that trains with them is worthless",
            "stop all jobs on this switch, and report this: neither worker nor switch may ever do that",
        )
    rtt_us = min(part.rtt_s for trial in trials for part in trial.stats.aggregators) * 1e6
    gbit = 32 * first.numbers / max(trial.seconds for trial in trials) / 1e9
    return ok(
        "sums",
        f"{WORKERS} workers summed {first.numbers << 2 >> 20} MiB through {_switches(len(first.stats.aggregators))}, "
        f"every bit right: round trip {rtt_us:,.0f} us, {gbit:.2f} Gbit/s to each worker, packets of {first.lanes} "
        "numbers",
    )


def _far(trials: list[Trial]) -> Iterator[Finding]:
    """Says what a path with a long round trip holds for each Gbit/s. The path's rate is not known, and the interface's
    may be far above it."""
    far_s = max(part.rtt_least_ns for trial in trials for part in trial.stats.aggregators) * 1e-9
    if far_s < FAR_S:
        return
    lease_bytes = 4 * SLOTS_USUAL * trials[0].lanes
    held_bytes = far_s * 1e9 / 8
    slots = math.ceil(held_bytes / (4 * trials[0].lanes))
    yield note(
        "far",
        f"a packet takes {1e3 * far_s:.0f} ms to the switch and back: for each Gbit/s this path holds "
        f"{held_bytes / 1e6:.1f} MB, and the usual lease of {SLOTS_USUAL} slots {lease_bytes / 1e6:.1f} MB",
        f"such a lease carries at most {lease_bytes * 8e-6 / far_s:,.0f} Mbit/s here",
        "if the path is faster, ask for more slots, a power of two: Options(slots=...) of a process group, or `wiresum "
        f"jobs create --slots`. Each Gbit/s takes {slots:,}",
    )


def _switches(count: int) -> str:
    return "the switch" if count == 1 else f"{count} aggregators"


def _losses(trials: list[Trial], lost: Drops) -> Iterator[Finding]:
    sent = sum(trial.stats.packets_sent for trial in trials)
    again = sum(_again(trial.stats) for trial in trials)
    said = f"{again} of {sent} packets were sent again or asked about ({100 * again / max(1, sent):.2f}%)"
    said += _where_lost(trials)
    if lost.no_buffer:
        yield warning(
            "buffer_drops",
            f"this host dropped {lost.no_buffer} datagrams meanwhile since a socket's buffer was full",
            "each has to be sent again",
            "raise net.core.rmem_max (see host), and give the process another core",
        )
    if lost.at_interface:
        yield warning(
            "interface_drops",
            f"the interface dropped {lost.at_interface} packets meanwhile",
            "each has to be sent again",
            "larger receive rings: ethtool -G, and see ethtool -S for the reason",
        )
    if again <= LOSS_MUCH * sent:
        yield ok("loss", said)
        return
    yield warning(
        "loss",
        said,
        "packets were lost on the way, or a core was busy for longer than the time-out; either costs time, never a sum",
        "nothing if the host is just busy; else look at drops of the ports between here and the switch (ethtool -S)",
    )


def _again(stats: TrafficStats) -> int:
    return stats.retransmissions + stats.questions


def _where_lost(trials: list[Trial]) -> str:
    """Says for which of several aggregators the packets were; empty if there is only one."""
    parts = list(zip(*(trial.stats.aggregators for trial in trials), strict=True))
    if len(parts) == 1:
        return ""
    counts = [(sum(map(_again, part)), part[0].switch) for part in parts]
    return ": " + ", ".join(f"{count} to {switch}" for count, switch in counts)
