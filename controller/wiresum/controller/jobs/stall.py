"""A service that stood still: nobody was silent meanwhile, and no deadline passed. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Job

log = logging.getLogger(__name__)


def forgive(stalled: float, now: float, jobs: Iterable[Job], switches: Iterable[Switch]) -> None:
    """Moves all times of jobs and switches by the `stalled` seconds."""
    log.warning("this service was stopped for %.1f s, which it does not count against workers", stalled)
    for switch in switches:
        switch.trouble_since += stalled
    for job in jobs:
        job.progress_at += stalled
        job.complete_by += stalled
        if job.active_at is not None:
            job.active_at += stalled
        job.left_at += stalled
        job.drained_at += stalled
        if job.moving is not None:
            job.moving.forgive(stalled)
        if job.waits_to_move_since is not None:
            job.waits_to_move_since += stalled
        if job.moved is not None:
            job.moved.at += stalled
        for worker in job.workers.values():
            worker.heard_at += stalled
            worker.counted_at += stalled
            worker.deadline += stalled
            if worker.broken_at is not None:
                worker.broken_at, worker.broken_in_silence = now, True
            if worker.away_since is not None:
                worker.away_since += stalled
