"""Orders of the worker that has started this switch: as its jobs' fallback (docs/operations.md, "Without any switch"),
or as the switch of its host (WIRESUM_SWITCH=local), which serves any job.

Standard input is a Unix socket that only the worker and this switch have. The first message brings the socket to listen
at, which the worker has held before, so that no other process could take the port. Each message lists all jobs to
serve.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wiresum.join import credentials
from wiresum.join.served import MESSAGE_BYTES_MAX, ServedJob, unpack

if TYPE_CHECKING:
    from wiresum.controller.service.served_jobs import ServedJobs
    from wiresum.switch.software_switch import SoftwareSwitch

log = logging.getLogger(__name__)

ORPHAN_S_MAX = 10.0
FIRST_MESSAGE_S_MAX = 10.0


class Parent:
    def __init__(
        self, process: int, channel: socket.socket, listener: socket.socket, jobs: list[ServedJob] | None
    ) -> None:
        self.listener = listener
        self._process, self._channel, self._jobs = process, channel, jobs
        self._ended_at: float | None = None

    @classmethod
    def at_stdin(cls, process: int) -> Parent:
        """Waits for the first message. Raises a `UsageError` if none comes."""
        channel: socket.socket | None = None
        try:
            channel = socket.socket(fileno=0)
            channel.settimeout(FIRST_MESSAGE_S_MAX)
            message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 1)
            (listener,) = files
            jobs = unpack(message)
        except (OSError, ValueError, TypeError) as error:
            if channel is not None:
                channel.detach()  # the descriptor belongs to the process
            raise click.UsageError(
                f"--fallback is for workers, which say over standard input what to serve ({error}): leave it out"
            ) from error
        channel.settimeout(None)
        return cls(process, channel, socket.socket(fileno=listener), jobs)

    def served(self, tls: Path | None) -> ServedJobs | None:
        """The jobs that the worker names, from now on; None: the switch serves any job."""
        if self._jobs is None:
            return None
        from wiresum.controller.security.names import parse
        from wiresum.controller.service.served_jobs import ServedJobs

        served = ServedJobs(parse(credentials.load(tls, serving=True).names).tenants if tls else ())
        served.replace(self._jobs)
        threading.Thread(target=self._hear, args=(served,), name="wiresum-parent", daemon=True).start()
        return served

    def is_over(self, running: SoftwareSwitch, now: float) -> bool:
        """True if the worker has ended, and its jobs' other workers have heard so from this switch, or have had the
        time to."""
        if os.getppid() == self._process:
            return False
        self._ended_at = now if self._ended_at is None else self._ended_at
        return running.stats().jobs_now == 0 or now >= self._ended_at + ORPHAN_S_MAX

    def _hear(self, served: ServedJobs) -> None:
        while message := self._channel.recv(MESSAGE_BYTES_MAX):
            served.replace(unpack(message) or [])
        log.debug("the worker that has started this switch says nothing any more")
