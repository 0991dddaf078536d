"""Stage `count`: what the switch counts for each job. p4src/v1model/count.p4."""

from __future__ import annotations

from collections.abc import Iterable

import finsy as fy

from wiresum.controller.driver import REASONS, JobCounters
from wiresum.join.constants import SWITCH_WORKERS_MAX, Reason

COLUMNS = tuple(reason.name.lower() for reason in Reason)
"""Columns of counter `packets`, which has a row for each job."""
COLUMNS_OF = {"packets": len(COLUMNS), "contributions": SWITCH_WORKERS_MAX, "results": 1}
"""Number of columns of each counter."""


def reads(row: int) -> list[fy.P4CounterEntry]:
    return _entries(row, None)


def resets(row: int) -> list[fy.P4CounterEntry]:
    return _entries(row, 0)


def decode(entries: Iterable[fy.P4CounterEntry], workers: int = SWITCH_WORKERS_MAX) -> JobCounters:
    """The counters that entries give. `tensor_last` is empty: the switch does not remember tags."""
    packets = dict.fromkeys(REASONS, 0)
    contributions = [0] * SWITCH_WORKERS_MAX
    results = 0
    for entry in entries:
        assert entry.index is not None
        count = entry.packet_count
        if entry.counter_id == "packets":
            column = COLUMNS[entry.index % len(COLUMNS)]
            if column in packets:
                packets[column] = count
        elif entry.counter_id == "contributions":
            contributions[entry.index % SWITCH_WORKERS_MAX] = count
        else:
            results = count
    return JobCounters(packets=packets, results=results, contributions=tuple(contributions[:workers]))


def _entries(row: int, value: int | None) -> list[fy.P4CounterEntry]:
    return [
        fy.P4CounterEntry(
            counter, index=row * columns + column, data=None if value is None else fy.P4CounterData(packet_count=value)
        )
        for counter, columns in COLUMNS_OF.items()
        for column in range(columns)
    ]
