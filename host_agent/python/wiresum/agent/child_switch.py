"""A `wiresum switch` that this process starts as its child, for the fallback (fallback.py) and for jobs of one host
(own_switch.py), and the TCP port that the child listens at.

The parent binds the port, and passes it on, so that no other process can listen there before, between or after its
children.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from typing import Protocol

log = logging.getLogger(__name__)

START_S_MAX, STOP_S_MAX = 30.0, 10.0
LINES_KEPT = 5
LAST_LINES_S = 0.25
"""How long to wait for the last lines of an ended child."""
TRIES_MAX = 16
"""Attempts to find a port."""

_READY = re.compile(r"^ready: .* data (\S+):(\d+)-")
_OF_THE_SUPERVISOR = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables that are meant for the worker, not for its child."""


class Child(Protocol):
    """A switch that this process has started: `_Child`."""

    data: tuple[str, int]
    """The switch's address and first port."""

    @property
    def runs(self) -> bool: ...

    @property
    def is_ready(self) -> bool: ...

    def tell(self, served: bytes) -> None: ...

    def said(self) -> str: ...

    def stop(self) -> None: ...


def start_switch(options: list[str], held: socket.socket, served: bytes) -> Child:
    """Starts a switch. `held`: its listening socket. `served`: its jobs, as in served.py. Raises an `OSError`."""
    command = [sys.executable, "-m", "wiresum.cli", "switch", *options, "--fallback", str(os.getpid())]
    return _Child(command, held, served)


class _Child:
    """A child process, until `stop`. Its output goes to our log at level debug."""

    def __init__(self, command: list[str], held: socket.socket, served: bytes) -> None:
        self._channel, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        socket.send_fds(self._channel, [served], [held.fileno()])
        self._told = served
        environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_SUPERVISOR}
        self._process = subprocess.Popen(
            command,
            cwd="/",  # Python looks for modules in the folder that it is started in
            env=environment,
            stdin=its_end.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the worker, which says when to end
        )
        its_end.close()
        self.data = ("", 0)
        """Address and first port; 0 until the switch serves."""
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader = threading.Thread(target=self._read, name="wiresum-fallback-log", daemon=True)
        self._reader.start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self.data[1] != 0

    def tell(self, served: bytes) -> None:
        """Tells the child which jobs to serve from now on, if they have changed. Does not wait."""
        if served != self._told:
            with contextlib.suppress(OSError):  # the child is busy, and told at the next look; or ends
                self._channel.send(served)
                self._told = served

    def said(self) -> str:
        """Returns the last lines of the child's output."""
        self._reader.join(LAST_LINES_S)
        ended = "it still starts" if self.runs else f"status {self._process.returncode}"
        return " / ".join(self._said) or ended

    def stop(self) -> None:
        """Ends the child, which tells its workers. Idempotent, bounded."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        self._reader.join(LAST_LINES_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.append(line.rstrip())
                log.debug("fallback switch: %s", line.rstrip())
                if (ready := _READY.match(line)) is not None:
                    self.data = ready[1], int(ready[2])


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def hold_port(address: str) -> socket.socket:
    """Takes some port, as `take_port` does. Raises an `OSError`."""
    problem = OSError("no port is free")
    for _ in range(TRIES_MAX):
        try:
            return take_port(f"{address}:{_free_port(address)}")
        except OSError as error:  # another process was faster
            problem = error
    raise problem


def take_port(endpoint: str) -> socket.socket:
    """Binds to this address, so that nobody else can, nor listen there. Raises an `OSError` if somebody does. (The port
    is a given one: the system releases a port that it has chosen when a socket stops listening.)"""
    host, _, port = endpoint.rpartition(":")
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # despite old connections' last packets
        held.bind((host, int(port)))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        held.close()
        raise
    return held


def end_listening(held: socket.socket) -> None:
    """Stops the listening that a killed child has left. The port stays taken."""
    with contextlib.suppress(OSError):  # a forked child has closed its copy
        # Done while the socket listens: afterwards others could take the port from a socket that may be reused.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        # To shut down a socket that does not listen would also shut down all connections that it ever takes.
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            held.shutdown(socket.SHUT_RDWR)
