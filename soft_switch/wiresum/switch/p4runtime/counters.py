"""The program's counters, by row, from what the data plane counts by job.

The data plane counts a job's packets from zero when the job is installed, and keeps the counts until its number is used
again. A row's counters never restart unless a controller sets them. So a row has a base, to which the counts of its
installed jobs are added; when a job ends, its last counts are added to the base.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from wiresum.controller.driver import REASONS, JobCounters
from wiresum.join.constants import STRAY_ROW, SWITCH_WORKERS_MAX, Reason

COLUMNS = {"packets": len(Reason), "contributions": SWITCH_WORKERS_MAX, "results": 1}
"""Columns of each counter: p4src/v1model/count.p4. The last reason of `packets`, for other protocols, stays zero."""


class Counted(Protocol):
    """The part of a switch that `Counters` reads."""

    def counters(self, job: int) -> JobCounters: ...
    def stray(self) -> JobCounters: ...


Row = dict[str, list[int]]


class Value(NamedTuple):
    at: int
    """Index of the counter."""
    packets: int


class View:
    """The counters at one moment. A row is read once, since a read waits for the data threads."""

    def __init__(self, row: Callable[[int], Row], sizes: Mapping[str, int]) -> None:
        self._row = functools.lru_cache(maxsize=None)(row)
        self._sizes = sizes

    def read(self, counter: str, index: int | None) -> Iterator[Value]:
        """Yields the value at an index, or all values if the index is None."""
        columns = COLUMNS[counter]
        for at in range(self._sizes[counter]) if index is None else [index]:
            yield Value(at, self._row(at // columns)[counter][at % columns])


class Counters:
    """The counters of the program, all zero at first."""

    def __init__(self, switch: Counted, sizes: Mapping[str, int]) -> None:
        """`sizes`: sizes of the counters, by name."""
        self._switch = switch
        self._sizes = sizes
        self._bases: dict[int, Row] = {STRAY_ROW: _negated(_row_of(switch.stray()))}
        self._rows: dict[int, int] = {}
        """The row of each installed job."""

    def began(self, job: int, row: int) -> None:
        self._rows[job] = row

    def ended(self, job: int) -> None:
        """Notes that a job has ended; to be called when the data plane has removed the job, so that its counts are
        final."""
        row = self._rows.pop(job)
        self._bases[row] = _sum(self._base(row), _row_of(self._switch.counters(job)))

    def view(self) -> View:
        return View(self._row, self._sizes)

    def write(self, counter: str, index: int | None, packets: int) -> None:
        columns = COLUMNS[counter]
        for value in list(self.view().read(counter, index)):
            row, column = divmod(value.at, columns)
            self._bases[row] = self._base(row)
            self._bases[row][counter][column] += packets - value.packets

    def _row(self, row: int) -> Row:
        total = self._base(row)
        if row == STRAY_ROW:
            total = _sum(total, _row_of(self._switch.stray()))
        for job in (job for job, used in self._rows.items() if used == row):
            total = _sum(total, _row_of(self._switch.counters(job)))
        return total

    def _base(self, row: int) -> Row:
        return self._bases.get(row) or _zeros()


def _zeros() -> Row:
    return {counter: [0] * columns for counter, columns in COLUMNS.items()}


def _row_of(counters: JobCounters) -> Row:
    row = _zeros()
    for column, reason in enumerate(REASONS):
        row["packets"][column] = counters.packets.get(reason, 0)
    for worker, packets in enumerate(counters.contributions):
        row["contributions"][worker] = packets
    row["results"][0] = counters.results
    return row


def _sum(one: Row, other: Row) -> Row:
    return {counter: [a + b for a, b in zip(one[counter], other[counter], strict=True)] for counter in COLUMNS}


def _negated(row: Row) -> Row:
    return {counter: [-packets for packets in values] for counter, values in row.items()}
