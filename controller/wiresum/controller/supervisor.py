"""Notifies systemd (sd_notify(3)), by datagrams to the socket that NOTIFY_SOCKET names; without this variable nothing
is sent.

READY=1 and STATUS= once the service can be used, WATCHDOG=1 while it is alive (WATCHDOG_USEC says how often),
STOPPING=1. The library for this, sdnotify, has had no release since 2017.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

BEATS = 3
"""Beats in the time after which systemd takes a silent service for dead."""


class Supervisor:
    """Notifies systemd. Used by one thread."""

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._interval_s = _watchdog_s(environ) / BEATS
        self._clock = clock
        self._beat_at = -self._interval_s

    def ready(self, status: str) -> None:
        """Says that the service can be used; later calls give a new status."""
        self._send(f"READY=1\nSTATUS={' '.join(status.split())}")

    def beat(self) -> None:
        """Says that the service is alive. To be called often: datagrams are sent only as often as they must."""
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
                to_supervisor.setblocking(False)  # the supervisor may not read
                to_supervisor.sendto(text.encode(), address)
        except OSError as error:
            log.warning("the supervisor at %s does not hear %s: %s", self._address, text.partition("\n")[0], error)


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Seconds of systemd's watchdog; 0: there is no watchdog."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    microseconds = environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isascii() and microseconds.isdigit() else 0.0
