"""Entries of the table `lose`, which injects faults: p4src/common/deliver.p4."""

from __future__ import annotations

import finsy as fy

CHANCES = 1 << 16


def entry(fraction: float, **match: int) -> fy.P4TableEntry:
    """Loses a random `fraction`, above 0 and up to 1, of the copies of RESULTs that match `egress_port`, `job`,
    `receiver` (the worker's index) and `round`; omitted fields match anything."""
    chance = max(1, round(fraction * CHANCES)) - 1
    return fy.P4TableEntry("lose", match=fy.Match(match), action=fy.Action("lose_copies", chance=chance), priority=1)
