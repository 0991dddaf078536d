"""Admits jobs to switches, leases their slots, and watches over the workers: `JoinServer`, for any `SwitchDriver`s."""

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
