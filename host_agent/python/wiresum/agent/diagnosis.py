"""What the service says of a job, in the words of this package."""

from __future__ import annotations

from wiresum import join as messages
from wiresum.agent.errors import JobAbortedError, SwitchUnreachableError, WiresumError, WorkerLostError
from wiresum.agent.grant import Peer


def error_of(ended: messages.JobEnded, job_name: str) -> WiresumError:
    text = f"job '{job_name}' has ended: {ended.reason}"
    if ended.cause == messages.JobEnded.WORKER_LOST:
        return WorkerLostError(text, rank=ended.worker.rank, host_name=ended.worker.host_name)
    if ended.cause == messages.JobEnded.SWITCH_LOST:
        return SwitchUnreachableError(text)
    return JobAbortedError(text, reason=ended.reason)


def describe(diagnosis: messages.Diagnosis, tensor: int) -> str:
    """A sentence on who lags in a collective. Its tag has its number in the low 16 bits, a serial number."""
    findings = []
    contributions_most = max((worker.contributions for worker in diagnosis.workers), default=0)
    for worker in diagnosis.workers:
        peer = Peer(worker.peer.rank, worker.peer.host_name, worker.peer.process_id)
        if worker.left:
            findings.append(f"{peer} has left the job")
        elif not worker.contributions:
            findings.append(f"nothing of {peer} has reached the switch: is its UDP traffic let through?")
        elif lag := _lag(worker, tensor, contributions_most):
            findings.append(f"{peer} is {lag} behind; it was alive {worker.heartbeat_age_ms / 1000:.1f} s ago")
    if findings:
        return "; ".join(findings)
    return (
        f"all workers have begun collective number {tensor & 0xFFFF}, so none lags: packets between them and the "
        f"switch are lost, or come very slowly"
    )


def _lag(worker: messages.Diagnosis.Worker, tensor: int, contributions_most: int) -> str:
    """Empty if it does not lag. A switch that does not remember tags still counts packets, and by those a worker that
    has stopped differs from the others, which wait for it."""
    if not worker.HasField("tensor_last"):
        packets = contributions_most - worker.contributions
        return f"{packets} packet{'s' * (packets > 1)}" if packets else ""
    behind = (tensor - worker.tensor_last) % (1 << 16)
    if not 0 < behind < 1 << 15:
        return ""
    return "one collective" if behind == 1 else f"{behind} collectives"
