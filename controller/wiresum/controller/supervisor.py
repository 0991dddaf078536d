"""What a supervisor that starts a service hears of it: systemd's notification protocol (sd_notify(3)).

A datagram to the socket that NOTIFY_SOCKET names: READY=1 once the service can be used, STATUS= for `systemctl status`,
WATCHDOG=1 for as long as it is alive (WATCHDOG_USEC says how often at least), STOPPING=1. Without the variables nobody
listens, and nothing is sent. (The library for this, sdnotify, has seen no release since 2017, and systemd's own is
built against its C library; the protocol is a line of text.)
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

BEATS = 3
"""In the time after which the supervisor takes a silent service for dead."""


class Supervisor:
    """Used by one thread."""

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._interval_s = _watchdog_s(environ) / BEATS
        self._clock = clock
        self._beat_at = -self._interval_s

    def ready(self, status: str) -> None:
        """It can be used; or, later, this is how it is now."""
        self._send(f"READY=1\nSTATUS={' '.join(status.split())}")

    def beat(self) -> None:
        """It is alive. To be called often: it sends as often as it must."""
        now = self._clock()
        if self._interval_s and now >= self._beat_at + self._interval_s:
            self._beat_at = now
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_supervisor:
                to_supervisor.setblocking(False)  # one that does not read must not hold us up
                to_supervisor.sendto(text.encode(), address)
        except OSError as error:
            log.warning("the supervisor at %s does not hear %s: %s", self._address, text.partition("\n")[0], error)


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """0: nobody watches this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    microseconds = environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isascii() and microseconds.isdigit() else 0.0
