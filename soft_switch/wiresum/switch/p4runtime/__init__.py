"""The P4Runtime server of the software switch. Needs the extra `wiresum[controller]`, for P4Runtime's messages."""

from __future__ import annotations

from wiresum.switch.p4runtime.server import P4RuntimeServer

__all__ = ["P4RuntimeServer"]
