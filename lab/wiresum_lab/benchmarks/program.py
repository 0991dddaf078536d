"""What the benchmarks' programs have in common: options, tables, and cases that take turns on a star of namespaces."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from wiresum.join.lanes import lanes_of_mtu
from wiresum_lab.namespaces.links import MTU_BYTES
from wiresum_lab.namespaces.star import StarError, check_prerequisites, termination_as_exit
from wiresum_lab.ranks.ranks import Ranks, RanksError

REPORT_COLUMNS = 120
START_DELAY_NS = 20_000_000  # until all ranks have been told when to begin
BLOCK = lanes_of_mtu(MTU_BYTES)
"""Floats in a packet."""

AnyCase = TypeVar("AnyCase")
AnyTurn = TypeVar("AnyTurn", bound="TurnCase")


def parser_of(description: str | None, *, records: str, workers: int | None) -> argparse.ArgumentParser:
    """The options that all these benchmarks have; each adds its own. `description` is the module's docstring, whose
    first line is shown; `records` is where its records go; without `workers` their number is no option."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0] if description else None)
    if workers is not None:
        parser.add_argument("--workers", type=int, default=workers, help="workers (default: %(default)s)")
    parser.add_argument("--link-mbit", type=float, default=100.0, help="rate of every link (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path(records), help="where the records go (default: %(default)s)")
    return parser


def add_tensor(parser: argparse.ArgumentParser) -> None:
    """The options of benchmarks that sum one size again and again."""
    parser.add_argument("--bytes", type=int, default=8_000_000, help="bytes of the tensor (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="of each case (default: %(default)s)")


def prerequisites_met(console: Console) -> bool:
    """Can stars be built here? If not, says what is missing."""
    try:
        check_prerequisites()
    except StarError as error:
        console.print(str(error), style="red", markup=False)
        return False
    return True


def run(
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Console], Sequence[AnyCase]],
    *,
    record: Callable[[AnyCase], Mapping[str, Any]],
    table: Callable[[Sequence[AnyCase], argparse.Namespace], Table],
    draw: Callable[[Sequence[AnyCase], argparse.Namespace], None] = lambda cases, options: None,
) -> int:
    """A benchmark's main program: measures, leaves the records in `options.json`, and prints the table. `measure` finds
    a folder `options.logs` beside them. Returns the exit status."""
    console = Console(highlight=False, soft_wrap=True, width=REPORT_COLUMNS)
    if not prerequisites_met(console):
        return 2
    options.logs = options.json.parent / "log"
    options.logs.mkdir(parents=True, exist_ok=True)
    with termination_as_exit():
        cases = measure(options, console)
    options.json.write_text(json.dumps([record(case) for case in cases], indent=1) + "\n")
    draw(cases, options)
    console.print(table(cases, options))
    return 0


def table_of(title: str, columns: Iterable[str]) -> Table:
    """The first column is text, the others are numbers."""
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


@dataclass
class TurnCase:
    """One group of the ranks, and what it sums."""

    group: str
    repetitions: list[dict[str, Any]] = field(default_factory=list, kw_only=True)

    @property
    def seconds(self) -> float:
        return self.median("seconds")

    @property
    def retransmissions(self) -> int:
        """Of all workers, in all repetitions."""
        return sum(repetition["retransmissions"] for repetition in self.repetitions)

    def median(self, name: str) -> float:
        return float(statistics.median(repetition[name] for repetition in self.repetitions))


def take_turns(
    cases: Sequence[AnyTurn],
    repetitions: int,
    warm_ups: int,
    prepare: Callable[[int], object],
    go: Callable[[AnyTurn], dict[str, Any]],
) -> None:
    """One repetition of each case at a time, so that other load on the machine affects all alike. `prepare` is told the
    number of the draw. The first repetitions are not counted."""
    for draw in range(warm_ups + repetitions):
        prepare(draw)
        for case in cases:
            repetition = go(case)
            if draw >= warm_ups:
                case.repetitions.append(repetition)


def sum_once(ranks: Ranks, group: str) -> tuple[float, list[dict[str, Any]]]:
    """Makes all ranks (`SummingRank`s) begin a sum at the same moment, and look at it when the last one has ended.
    Returns the seconds from the first rank's start to the last one's end, and each rank's report."""
    ranks.command("load")
    ranks.command("go", group, time.monotonic_ns() + START_DELAY_NS)
    reports = ranks.command("report")
    if wrong := sum(report["wrong_elements"] for report in reports):
        raise RanksError(f"{wrong} elements of a sum by '{group}' are wrong")
    return seconds_of(reports), reports


def seconds_of(answers: Sequence[Mapping[str, Any]]) -> float:
    """From the first rank's start to the last one's end."""
    return float(max(answer["end_ns"] for answer in answers) - min(answer["start_ns"] for answer in answers)) / 1e9
