"""Jobs that somebody has ended, remembered for workers that would continue them later. Pure.

A job is known by an id that only its workers can say (`Resumed.job_id`), not by its name, which another job may have by
then.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

from wiresum import join

OVER_MAX = 256
"""How many ended jobs are remembered; beyond, the oldest of the tenant that has most goes, as in history.py. They are
not kept across a restart."""
ORDERED = (join.JobEnded.ABORTED_BY_WORKER, join.JobEnded.WORKER_LEFT, join.JobEnded.ENDED_BY_OPERATOR)
"""Causes of an end that somebody wanted: the job does not continue elsewhere either."""


class _Known(NamedTuple):
    tenant: str
    ended: join.JobEnded
    until: float


class Over:
    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._known: dict[bytes, _Known] = {}
        """Ended jobs by digest, the oldest first."""

    def note(self, name: str, tenant: str, job_id: bytes, ended: join.JobEnded, now: float) -> None:
        """Remembers why a job is over. Does nothing for a job that has begun here, which has no `job_id`, or whose
        workers may continue elsewhere."""
        if not job_id or ended.cause not in ORDERED:
            return
        digest = _digest(name, job_id)
        self._known.pop(digest, None)
        self._known[digest] = _Known(tenant, ended, now + self._keep_s)
        if len(self._known) > OVER_MAX:
            counts = Counter(known.tenant for known in self._known.values())
            most = max(counts, key=counts.__getitem__)
            del self._known[next(digest for digest, known in self._known.items() if known.tenant == most)]

    def find(self, name: str, job_id: bytes, now: float) -> join.JobEnded | None:  # R7.32
        """Why the job is over; None: it is not, as far as is known."""
        known = self._known.get(_digest(name, job_id))
        return known.ended if known is not None and now < known.until else None


def _digest(name: str, job_id: bytes) -> bytes:
    """Digest of an id. Since the table has digests, the time of a look-up reveals nothing about an id."""
    return hashlib.blake2s(job_id + name.encode()).digest()
