"""Admits jobs to a switch, leases its slots, and watches over the workers.

`JoinServer` is the whole of it, for one `SwitchDriver` or several.
"""

from __future__ import annotations

from wiresum.controller.driver import (
    REASONS,
    DriverError,
    Endpoint,
    JobCounters,
    JobEntry,
    Reconciled,
    SwitchDriver,
    SwitchSizes,
)
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.service.join_server import JoinServer

__all__ = [
    "REASONS",
    "DriverError",
    "Endpoint",
    "JobCounters",
    "JobEntry",
    "JoinServer",
    "Limits",
    "Quota",
    "Reconciled",
    "SwitchDriver",
    "SwitchSizes",
]
