"""Says which groups got no room at the switch, in one line for groups made in succession."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from wiresum.agent.periodic import Periodic

log = logging.getLogger("wiresum")


class NoRoom:
    """The groups of one process that got no room. Made once and kept until the process ends. Any thread may call any
    method."""

    def __init__(self, looks: Periodic) -> None:
        """`looks` calls now and then, to see whether more groups come."""
        self._looks = looks
        self._lock = threading.Lock()
        self._jobs: list[str] = []
        """Jobs that no line has named yet."""
        self._cause = ""
        self._known = 0
        atexit.register(self._say)
        os.register_at_fork(after_in_child=self._forget)

    def add(self, job: str, cause: str) -> None:
        """Notes a job. `cause` is a sentence that says why the switch refused the job."""
        log.info("wiresum: no room at the switch for the process group of job '%s': %s", job, cause)
        with self._lock:
            if not self._jobs:
                self._cause, self._known = cause, 0
                self._looks.add(self._look)
            self._jobs.append(job)

    def _look(self) -> None:
        with self._lock:
            still_come = len(self._jobs) > self._known
            self._known = len(self._jobs)
        if not still_come:
            self._say()

    def _say(self) -> None:
        with self._lock:
            jobs, self._jobs = self._jobs, []
            self._looks.discard(self._look)
        if jobs:
            log.warning(
                "wiresum: no room at the switch for %d process group%s (the first is of job '%s'), so all of their "
                "collectives go through Gloo, which is slower: %s",
                len(jobs),
                "s" * (len(jobs) > 1),
                jobs[0],
                self._cause,
            )

    def _forget(self) -> None:
        self._lock, self._jobs = threading.Lock(), []
