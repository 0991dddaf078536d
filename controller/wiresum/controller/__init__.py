"""Admits jobs to a switch, leases its slots, and watches over the workers.

`JoinServer` is the whole of it, for one `SwitchDriver`.
"""

from __future__ import annotations

from wiresum.controller.driver import (
    REASONS,
    DriverError,
    Endpoint,
    JobCounters,
    JobEntry,
    Sizes,
    SwitchDriver,
)
from wiresum.controller.jobs import Limits
from wiresum.controller.service import JoinServer

__all__ = [
    "REASONS",
    "DriverError",
    "Endpoint",
    "JobCounters",
    "JobEntry",
    "JoinServer",
    "Limits",
    "Sizes",
    "SwitchDriver",
]
