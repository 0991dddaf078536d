"""Finds out what is wrong with a job, from two reports some time apart. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wiresum.agent.diagnosis import collectives_behind, latest
from wiresum.cli.doctor.finding import Finding, note, ok, problem, warning
from wiresum.cli.rates import HEARTBEAT_LATE_MS, REFUSED, Sample, key_of, rates_of
from wiresum.cli.text import counted
from wiresum.join.peers import TRANSLATION_ADVICE, describe_peer, why_translated
from wiresum.join.trees import packets_behind

if TYPE_CHECKING:
    from wiresum import join

ANSWERS_MANY = 3
"""How many answers to single workers count as many, while no result comes. One or two may have been on their way."""
RESENT_MANY = 0.01
"""Fraction of results that were asked for again. A smaller one is not worth a warning."""
EVERY_WORKER = "a sum needs every worker"
LOOK_AT_LAGGARD = (
    "that rank is in its computation, or loads data, or hangs: look at its process (py-spy dump). If its packets were "
    "lost on the way, the path check would fail there (wiresum doctor --check path)"
)


def findings(before: Sample, now: Sample, name: str = "") -> Iterator[Finding]:
    """Findings about the job of this name, or about all jobs if the name is empty."""
    found = [job for job in now.report.jobs if name in ("", job.name)]
    if not found:
        yield _not_there(name, now.report) if name else ok("jobs", "there are no jobs")
    for job in found:
        amiss = list(_amiss(job, before, now))
        yield from amiss or [_healthy(job, before, now)]


def _not_there(name: str, report: join.Report) -> Finding:
    others = ", ".join(f"'{job.name}'" for job in report.jobs) or "none"
    return problem(
        "there",
        f"there is no job '{name}'; the jobs that there are: {others}",
        "no worker of it has asked to join, or it has ended",
        "look at what its workers printed; WIRESUM_SWITCH must name this service, and WIRESUM_JOB this job",
    )


def _healthy(job: join.JobReport, before: Sample, now: Sample) -> Finding:
    if job.state == "running" and job.streams == 1 < job.world_size:
        return ok("health", f"'{job.name}' is running, {job.joined} workers, on one host: no switch sees their sums")
    rates = rates_of(before, now).get(key_of(job))
    if job.state == "running" and rates is not None and not rates.results:
        watched_s = now.taken_at - before.taken_at
        return note(
            "still",
            f"'{job.name}' is running, {job.joined} workers, and summed nothing in {watched_s:.1f} s",
            "its workers compute, load data, or hang all together: nobody waits for another one's packets",
            "look again (wiresum top); if it stays so, look at one of its processes (py-spy dump)",
        )
    pace = f", {rates.results:,.0f} results/s" if rates else ""
    return ok("health", f"'{job.name}' is {job.state}, {job.joined} workers{pace}")


def _amiss(job: join.JobReport, before: Sample, now: Sample) -> Iterator[Finding]:
    if job.joined < job.world_size and job.state in ("created", "forming"):
        yield _missing(job)
    if job.state == "queued":
        yield warning(
            "queued",
            job.waiting,
            "its workers have all asked and wait for slots",
            "wait, end another job (wiresum jobs end), or end and create this with a priority (wiresum jobs create)",
        )
    if job.state == "moving" or (job.state == "running" and job.waiting):
        yield _moving(job)
    if job.state == "running":
        yield from _heartbeats(job)
        yield from _wrong_sums(job)
        if job.uncounted:
            yield _uncounted(job)
            return
        if (earlier := _stuck_since(job, before)) is not None:
            watched_s = now.taken_at - before.taken_at
            yield from _laggards(job, earlier, watched_s)
            lagging = list(_lagging_switches(job, earlier, watched_s))
            yield from lagging or _deaf_without_laggard(job, earlier, watched_s)
        yield from _packets(job)


def _moving(job: join.JobReport) -> Finding:
    if job.state == "running":
        return note(
            "moving",
            f"'{job.name}': {job.waiting}",
            "the job goes on meanwhile, unless its switch is lost",
            "wait, or make room: end another job (wiresum jobs end), or resume a switch (wiresum jobs resume)",
        )
    return warning(
        "moving",
        f"'{job.name}': {job.waiting}",
        "its workers stand still until the job has another lease; a move that takes too long ends it",
        "look at what it waits for: at those workers, or at the switches (wiresum doctor --check switch)",
    )


def _missing(job: join.JobReport) -> Finding:
    return warning(
        "missing",
        f"'{job.name}' has {job.joined} of {job.world_size} workers: {job.waiting}",
        "nobody begins before all are there",
        "look at what those ranks print; each needs the same WIRESUM_SWITCH, the same job name and the same world size",
    )


def _uncounted(job: join.JobReport) -> Finding:
    silent = ", ".join(node.switch_name for node in job.switches if node.uncounted) or job.switch_name
    return warning(
        "uncounted",
        f"'{job.name}': '{silent}' does not say what it counted, so nobody knows whether sums are made",
        "a busy switch answers late; one that is stopped or cut off does not, and perhaps answers no packets either",
        "look at the switch itself and at the way to its P4Runtime port (wiresum doctor --check switch)",
    )


def _heartbeats(job: join.JobReport) -> Iterator[Finding]:
    for worker in job.workers:
        if worker.state == "attending" and worker.heartbeat_age_ms > HEARTBEAT_LATE_MS:
            yield warning(
                "heartbeat",
                f"'{job.name}': the last heartbeat of {describe_peer(worker.peer)} came "
                f"{worker.heartbeat_age_ms / 1000:.1f} s ago",
                "a worker that is silent for too long is taken for lost, and the job ends",
                "is that host overloaded, swapping, or cut off? A debugger or a stopped process looks the same",
            )


def _wrong_sums(job: join.JobReport) -> Iterator[Finding]:
    for worker in job.workers:
        if worker.sums_wrong:
            yield warning(
                "sums",
                f"'{job.name}': {describe_peer(worker.peer)} got {worker.sums_wrong} wrong sums from "
                f"'{worker.switch_name}'",
                "it asked for them again, and stored none; a sum that is wrong twice ends the job",
                "if workers of one host alone say so, test the memory and the network card of that host; if those of "
                "several do, the switch's (docs/runbook.md, WiresumSumsWrong)",
            )


def _laggards(job: join.JobReport, earlier: join.JobReport, watched_s: float) -> Iterator[Finding]:
    """Finds workers that keep the others waiting: they are behind in both reports. A worker that asks for sums
    meanwhile, and is answered in vain, does not receive; a worker that computes asks for nothing."""
    behind = _behind(earlier) & _behind(job)
    if len(behind) == len(job.workers):
        return
    answered = _answered_in_vain(job, earlier)
    for worker in job.workers:
        if worker.peer.rank not in behind:
            continue
        what = f"'{job.name}': no result in {watched_s:.1f} s; the others wait for {describe_peer(worker.peer)}"
        if answered and len(behind) == 1:
            yield warning(
                "deaf",
                f"{what}, to which the switch sent {answered} answers that did not help",
                "its questions reach the switch, and what the switch sends does not reach it",
                _advice_for_deaf(worker),
            )
        elif not worker.contributions and (translated := why_translated(worker.peer)):
            advice = f"{TRANSLATION_ADVICE}. If no address is translated: {LOOK_AT_LAGGARD}"
            yield warning("translated", f"{what}. {translated}", EVERY_WORKER, advice)
        else:
            yield warning("lags", what, EVERY_WORKER, LOOK_AT_LAGGARD)
    if answered and len(behind) > 1:
        yield _somebody_is_deaf(job, answered, watched_s)


def _deaf_without_laggard(job: join.JobReport, earlier: join.JobReport, watched_s: float) -> Iterator[Finding]:
    """Finds a worker that does not receive the last sums of a tensor, where no worker is behind."""
    answered = _answered_in_vain(job, earlier)
    if answered and not _behind(job):
        yield _somebody_is_deaf(job, answered, watched_s)


def _somebody_is_deaf(job: join.JobReport, answered: int, watched_s: float) -> Finding:
    return warning(
        "deaf",
        f"'{job.name}': no result in {watched_s:.1f} s, and the switch sent {answered} answers to single workers that "
        f"did not help",
        "a worker asks for sums, and what the switch sends does not reach it",
        "the error of that worker names it; on each host of the job: does `wiresum doctor --check path` pass, and does "
        "the firewall let UDP from the switch's data ports in?",
    )


def _advice_for_deaf(worker: join.WorkerReport) -> str:
    return (
        f"let UDP from the switch's data ports to {worker.endpoint.address}, port {worker.endpoint.port} and those "
        f"above it, pass: look at the firewall of that host and on the way, at drops of its interface, and at "
        f"`wiresum doctor --check path` there"
    )


def _answered_in_vain(job: join.JobReport, earlier: join.JobReport) -> int:
    """How many answers the switch sent to single workers between two reports without a result in between; 0: too few to
    prove anything. A worker asks five times a second at least."""
    answered = job.packets.get("resent", 0) - earlier.packets.get("resent", 0)
    return answered if answered >= ANSWERS_MANY else 0


def _lagging_switches(job: join.JobReport, earlier: join.JobReport, watched_s: float) -> Iterator[Finding]:
    """Finds switches whose sums do not reach their parent: the switch is behind in both reports, and no worker is."""
    if _behind(job):
        return
    lagging, lagged = (packets_behind(report.switches, report.workers) for report in (job, earlier))
    for node in job.switches:
        if lagging.get(node.switch_name) and lagged.get(node.switch_name):
            yield warning(
                "uplink",
                f"'{job.name}': no result in {watched_s:.1f} s, and no worker is behind, but the "
                f"sums of {node.switch_name} are at {node.parent}",
                "packets between the two switches are lost; the workers ask for them again, in vain",
                f"look at the link between {node.switch_name} and {node.parent}: its MTU, drops, firewalls on the way",
            )


def _stuck_since(job: join.JobReport, before: Sample) -> join.JobReport | None:
    """This job in the report before, if no result came in between; otherwise None."""
    earlier = {key_of(old): old for old in before.report.jobs}.get(key_of(job))
    return earlier if earlier is not None and earlier.results == job.results else None


def _behind(job: join.JobReport) -> set[int]:
    """Ranks of workers of which the switch has fewer packets; among workers that share a stream, of those that have
    begun fewer collectives."""
    newest = max((worker.contributions for worker in job.workers), default=0)
    behind = [worker for worker in job.workers if worker.contributions < newest]
    said = latest(worker.tensor_said for worker in job.workers if worker.HasField("tensor_said"))
    late = [
        worker
        for worker in behind
        if said is not None and worker.HasField("tensor_said") and collectives_behind(worker.tensor_said, said) > 0
    ]
    return {worker.peer.rank for worker in late or behind}


def _packets(job: join.JobReport) -> Iterator[Finding]:
    resent = job.packets.get("resent", 0)
    if job.results and resent > RESENT_MANY * job.results:
        yield warning(
            "resent",
            f"'{job.name}': {resent} results were asked for again, {100 * resent / job.results:.1f}% of all",
            "each is a packet that was lost, or a worker that was late to take it",
            "wiresum top --job shows whose packets; look at drops at its interface and at wiresum doctor there",
        )
    refused = {reason: job.packets.get(reason, 0) for reason in REFUSED if job.packets.get(reason, 0)}
    if refused:
        yield warning(
            "refused",
            f"'{job.name}': the switch refused packets that bore its number: {counted(refused)}",
            "they changed no sum; a worker of the job sends no such packets, so somebody else does",
            "look for who else sends to the switch's data ports, for example a process of a job that has ended",
        )
