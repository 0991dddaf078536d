"""WIRESUM_SWITCH=local: a software switch that this process starts as its child, for jobs whose workers are all on this
host. The switch only admits workers; sums do not pass it (docs/cluster.md, "Several workers on a host").

The switch serves any job, at the loopback address alone, and ends with this process: `wiresum switch --fallback`.
"""

from __future__ import annotations

import logging
import threading
import time

from wiresum.agent import child_switch
from wiresum.agent.errors import SwitchUnreachableError
from wiresum.agent.polling import sleep_until
from wiresum.agent.world import WORLD
from wiresum.join.lanes import lanes_of_mtu
from wiresum.join.served import pack

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
LANES = lanes_of_mtu(9000)
"""No network bounds the packets, and in long ones each element costs less: measured, a fifth less than at 1500."""

_lock = threading.Lock()
_known: list[str] = []
"""Endpoints of switches; this process, or another one of the run, has started the newest."""


def know(endpoint: str) -> None:
    """Later groups of this process use that endpoint, too."""
    with _lock:
        _known.append(endpoint)


def endpoint() -> str:
    """Returns the endpoint of this run's switch; starts one if none serves. Raises a `SwitchUnreachableError`."""
    with _lock:
        if not _known or not WORLD.listens(_known[-1]):
            _known.append(_start())
        return _known[-1]


def _start() -> str:
    try:
        held = child_switch.hold_port(HOST)
        at = "{}:{}".format(*held.getsockname())
        child = child_switch.start_switch(
            ["--control", at, "--port", "0", "--threads", "1", "--lanes", str(LANES)], held, pack(None)
        )
    except OSError as error:
        raise SwitchUnreachableError(f"WIRESUM_SWITCH=local: no switch can be started here: {error}") from error
    sleep_until(lambda: child.is_ready or not child.runs, time.monotonic() + child_switch.START_S_MAX)
    held.close()  # the child listens there now
    if not child.is_ready:
        said = child.said()
        child.stop()
        raise SwitchUnreachableError(f"WIRESUM_SWITCH=local: the switch of this host does not start: {said}")
    log.info("a software switch of this process serves jobs of this host at %s", at)
    return at
