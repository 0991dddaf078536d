"""Admits jobs to switches, leases their slots, and watches over the workers: `JoinServer`, for any `SwitchDriver`s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Imports the server on first use: a switch, a help text and a backup need no gRPC."""
    if name == "JoinServer":
        from wiresum.controller.service.join_server import JoinServer

        return JoinServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
