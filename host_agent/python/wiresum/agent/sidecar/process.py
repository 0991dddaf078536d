"""A sidecar's life: it serves sessions, and ends with its worker."""

from __future__ import annotations

import atexit
import os
import socket
import threading

from wiresum.agent.sidecar.lines import Channel
from wiresum.agent.sidecar.service import Service

CONTROL_DESCRIPTOR = 3
"""The descriptor where libwiresum puts its socket. Each byte that comes brings the socket of a new session."""
DESCRIPTORS_AT_ONCE = 16


def main() -> None:
    """Runs a process that libwiresum has started, and that is no child of the worker's any more."""
    _detach()
    control = socket.socket(fileno=CONTROL_DESCRIPTOR)
    control.set_inheritable(False)
    serve(control)
    # The interpreter's own end can wait for ever: for a lock of gRPC's, held by a thread that this end has stopped.
    atexit._run_exitfuncs()
    os._exit(0)


def serve(control: socket.socket) -> None:
    """Serves until the other end of `control` is closed, and all sessions have been ended."""
    sessions: list[tuple[Service, threading.Thread]] = []
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, DESCRIPTORS_AT_ONCE, DESCRIPTORS_AT_ONCE)
        if not data:
            break
        for descriptor in descriptors:
            service = Service(Channel(socket.socket(fileno=descriptor)))
            thread = threading.Thread(target=service.run, name="wiresum-session", daemon=True)
            thread.start()
            sessions.append((service, thread))
        sessions = [(service, thread) for service, thread in sessions if thread.is_alive()]
    for service, _ in sessions:
        service.hang_up()
    for _, thread in sessions:
        thread.join()


def _detach() -> None:
    """The worker's terminal does not signal us, and its files are not ours: a pipe that we hold would not end."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.closerange(CONTROL_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
