"""This module translates what the services say of a job into this package's words."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wiresum import join as messages
from wiresum.agent.errors import (
    JobAbortedError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLeftError,
    WorkerLostError,
)
from wiresum.join.trees import packets_behind

_SERIALS = 1 << 16
UNHEARD_MS = 5000
"""A worker whose last heartbeat is older may be stopped: heartbeats come every half second."""


def error_of(ended: messages.JobEnded, job_name: str, where: str) -> WiresumError:
    text = f"job '{job_name}' has ended: {ended.reason}"
    who: dict[str, Any] = {field: getattr(ended.worker, field) for field in ("rank", "host_name", "address")}
    if ended.cause == messages.JobEnded.WORKER_LOST:
        return WorkerLostError(text, **who)
    if ended.cause == messages.JobEnded.WORKER_LEFT:
        return WorkerLeftError(text, reason=ended.reason, **who)
    if ended.cause == messages.JobEnded.SWITCH_LOST:
        return SwitchUnreachableError(f"job '{job_name}' has ended at {where}: {ended.reason}")
    return JobAbortedError(text, reason=ended.reason)


def error_of_forgotten(job_name: str, where: str, own_stop: str, rank: int, address: str) -> WiresumError:
    """Returns the error of a worker, at this address, that its service has forgotten. `own_stop`: a sentence, if this
    process was stopped."""
    if own_stop:
        text = f"job '{job_name}' has ended meanwhile: {own_stop}. Start the job again"
        return WorkerLostError(text, rank=rank, host_name=socket.gethostname(), address=address)
    return SwitchUnreachableError(
        f"{where} does not know job '{job_name}' any more: it was started anew, or it took this worker for lost while "
        f"the connection was broken. Start the job again"
    )


def describe(diagnoses: Mapping[str, messages.Diagnosis], tensor: int) -> str:
    """Returns a sentence on who lags in a collective. The tag has its number in the low 16 bits, a serial number.

    `diagnoses` are the aggregators', by what people call them. A small collective goes through one of them only, so
    only all of them together show each worker's progress. A worker that keeps up everywhere, but is missing at one
    aggregator, has lost the way to that one.
    """
    findings = _laggards(_together(diagnoses.values()), tensor)
    if not findings:
        findings = _unheard(_together(diagnoses.values()))
    if not findings:
        findings = [finding for diagnosis in diagnoses.values() for finding in _lagging_switches(diagnosis)]
    if not findings:
        findings = [
            f"at {where}, {finding}"
            for where, diagnosis in diagnoses.items()
            if (newest := _newest(diagnosis.workers)) is not None
            for finding in _laggards(diagnosis.workers, newest)
        ]
    findings += _silent_switches(diagnoses.values())
    findings = [
        f"at {where}, {diagnosis.moving}" for where, diagnosis in diagnoses.items() if diagnosis.moving
    ] + findings
    if findings:
        return "; ".join(findings)
    if all(_are_on_one_host(diagnosis.workers) for diagnosis in diagnoses.values()):
        first = next(worker for diagnosis in diagnoses.values() for worker in diagnosis.workers if _sends(worker))
        return (
            f"all workers have begun collective number {tensor % _SERIALS}, so none lags: is "
            f"{messages.describe_peer(first.peer)}, which sums for all of them, held up?"
        )
    return (
        f"all workers have begun collective number {tensor % _SERIALS}, so none lags: packets between them and "
        f"{' and '.join(diagnoses)} are lost, or come very slowly"
    )


def _together(diagnoses: Iterable[messages.Diagnosis]) -> list[messages.Diagnosis.Worker]:
    """Merges what all aggregators have seen of each worker."""
    together = []
    for parts in zip(*(diagnosis.workers for diagnosis in diagnoses), strict=True):
        worker = messages.Diagnosis.Worker(
            peer=parts[0].peer,
            contributions=sum(part.contributions for part in parts),
            heartbeat_age_ms=min(part.heartbeat_age_ms for part in parts),
            left=any(part.left for part in parts),
            uncounted=any(part.uncounted for part in parts),
            switch_name=parts[0].switch_name if len(parts) == 1 else "",
            sharing=parts[0].sharing,
        )
        if (newest := _newest(parts)) is not None:
            worker.tensor_last = newest
        if (said := latest(part.tensor_said for part in parts if part.HasField("tensor_said"))) is not None:
            worker.tensor_said = said
        together.append(worker)
    return together


def _newest(workers: Iterable[messages.Diagnosis.Worker]) -> int | None:
    """Returns the tag of the newest collective begun; a worker that has sent nothing has begun none, whatever its field
    says."""
    return latest(worker.tensor_last for worker in workers if worker.contributions and worker.HasField("tensor_last"))


def latest(tensors: Iterable[int]) -> int | None:
    """Returns the tag of the latest of these collectives; None if there are none."""
    newest: int | None = None
    for tensor in tensors:
        if newest is None or collectives_behind(newest, tensor) > 0:
            newest = tensor
    return newest


def _laggards(workers: Sequence[messages.Diagnosis.Worker], tensor: int) -> list[str]:
    findings = []
    contributions_most = max((worker.contributions for worker in workers), default=0)
    for worker in workers:
        peer = messages.describe_peer(worker.peer)
        if worker.left:
            findings.append(f"{peer} has left the job")
        elif lag := _lag_in_its_own_words(worker, tensor):
            findings.append(_lags(peer, lag, worker))
        elif worker.uncounted or not _sends(worker) or _are_on_one_host(workers):
            continue
        elif not worker.contributions:
            switch = worker.switch_name or "the switch"
            findings.append(f"nothing of {peer} has reached {switch}: {_why_not_there(worker)}")
        elif any(_lag_in_its_own_words(other, tensor) for other in workers if other.peer.rank in worker.sharing):
            continue
        elif lag := _lag(worker, tensor, contributions_most):
            who = f"{peer}, which sends for all workers of its host," if worker.sharing else peer
            findings.append(_lags(who, lag, worker))
    return findings


def _lags(who: str, lag: str, worker: messages.Diagnosis.Worker) -> str:
    return f"{who} is {lag} behind; it was alive {worker.heartbeat_age_ms / 1000:.1f} s ago"


def _unheard(workers: Iterable[messages.Diagnosis.Worker]) -> list[str]:
    """Names workers that may be stopped: each has begun what all others have, and has been silent since."""
    return [
        f"nothing has been heard of {messages.describe_peer(worker.peer)} for {worker.heartbeat_age_ms / 1000:.1f} s"
        for worker in workers
        if worker.heartbeat_age_ms > UNHEARD_MS
    ]


def _sends(worker: messages.Diagnosis.Worker) -> bool:
    """Returns whether this worker sends, for itself or for all that share its stream."""
    return not worker.sharing or worker.peer.rank == worker.sharing[0]


def _are_on_one_host(workers: Sequence[messages.Diagnosis.Worker]) -> bool:
    """Returns whether the workers share one stream, of which no packet leaves their host."""
    return len(workers) > 1 and all(len(worker.sharing) == len(workers) for worker in workers)


def _why_not_there(worker: messages.Diagnosis.Worker) -> str:
    let_through = "is its UDP traffic let through?"
    if not (translated := messages.why_translated(worker.peer)):
        return let_through
    return f"{translated}: {messages.TRANSLATION_ADVICE}. If nothing does, {let_through}"


def why_translated(diagnosis: messages.Diagnosis) -> str:
    """Returns a sentence about the first worker of which apparently nothing has reached the switch, and whose address
    something on the way may translate; empty: there is none."""
    silent = (worker for worker in diagnosis.workers if worker.uncounted or not worker.contributions)
    return next(filter(None, (messages.why_translated(worker.peer) for worker in silent)), "")


def who_is_cut_off(diagnosis: messages.Diagnosis) -> str:
    """Returns a sentence that names the workers of which nothing has reached the switch; empty unless something of
    others has."""
    senders = [worker for worker in diagnosis.workers if _sends(worker) and not worker.uncounted]
    silent = [messages.describe_peer(worker.peer) for worker in senders if not worker.contributions]
    if not silent or len(silent) == len(senders):
        return ""
    return f"Packets of other workers have reached the switch, and none of {', '.join(silent)}: begin there"


def _lagging_switches(diagnosis: messages.Diagnosis) -> list[str]:
    """If no worker lags, the way from a switch to the one above may."""
    behind = packets_behind(diagnosis.switches, diagnosis.workers)
    return [
        f"the sums of {node.switch_name} come to {node.parent} {packets} packet{'s' * (packets > 1)} behind: packets "
        f"between the two are lost, or come very slowly"
        for node in diagnosis.switches
        if (packets := behind.get(node.switch_name, 0))
    ]


def _silent_switches(diagnoses: Iterable[messages.Diagnosis]) -> list[str]:
    names = [node.switch_name for diagnosis in diagnoses for node in diagnosis.switches if node.uncounted]
    return [f"{name} does not say what it has counted" for name in names]


def collectives_behind(tensor_last: int, tensor: int) -> int:
    """Returns how many collectives lie between two tags; negative if `tensor` is the older one."""
    behind = (tensor - tensor_last) % _SERIALS
    return behind if behind < _SERIALS // 2 else behind - _SERIALS


def _lag_in_its_own_words(worker: messages.Diagnosis.Worker, tensor: int) -> str:
    """Returns the lag of a worker that shares a stream, as that worker reports it, since a switch cannot tell; empty:
    no lag, or no report."""
    if not worker.sharing or not worker.HasField("tensor_said"):
        return ""
    return _collectives(collectives_behind(worker.tensor_said, tensor))


def _lag(worker: messages.Diagnosis.Worker, tensor: int, contributions_most: int) -> str:
    """Returns the worker's lag, "" for none. A switch that does not remember tags still counts packets, which show a
    stopped worker: the others wait for it."""
    if not worker.HasField("tensor_last"):
        packets = contributions_most - worker.contributions
        return f"{packets} packet{'s' * (packets > 1)}" if packets else ""
    return _collectives(collectives_behind(worker.tensor_last, tensor))


def _collectives(behind: int) -> str:
    if behind <= 0:
        return ""
    return "one collective" if behind == 1 else f"{behind} collectives"
