"""Common parts of the benchmarks' programs: options, cases that take turns, and records with their table."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from wiresum.join.lanes import lanes_of_mtu
from wiresum_lab.namespaces.links import MTU_BYTES
from wiresum_lab.namespaces.star import StarError, check_prerequisites, termination_as_exit
from wiresum_lab.ranks.ranks import Ranks, RanksError

START_DELAY_NS = 20_000_000  # time to tell all ranks when to begin
BLOCK = lanes_of_mtu(MTU_BYTES)
"""How many floats a packet carries."""
Record: TypeAlias = dict[str, Any]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Options(argparse.ArgumentParser):
    """The options of one benchmark: common options, and those added by `add`."""

    def __init__(self, name: str, description: str | None, *, workers: Any = 8, link_mbit: Any = 100.0) -> None:
        """`description` is the module's docstring, whose first line is shown. `workers` and `link_mbit` are the
        defaults of their options: None leaves the option out, and a list allows several values."""
        super().__init__(prog=f"make bench NAMES={name} ARGS='...'", description=(description or "").partition("\n")[0])
        self.add("--json", Path(f"build/bench/{name}.json"), "where the records go")
        if workers is not None:
            self.add("--workers", workers, "number of workers")
        if link_mbit is not None:
            self.add("--link-mbit", link_mbit, "rate of every link")

    def add(self, flag: str, default: Any, what: str, **more: Any) -> None:
        """Adds an option of the default's type; if the default is a list, the option takes several values."""
        several = isinstance(default, list)
        kind = {"type": type(default[0]), "nargs": "+"} if several else {"type": type(default)}
        self.add_argument(flag, default=default, help=f"{what} (default: %(default)s)", **{**kind, **more})


@dataclass
class Case:
    """A case of a benchmark. Its `settings`, by their names in records, distinguish it from all others."""

    settings: Record
    repetitions: list[Record] = field(default_factory=list)
    further: Record = field(default_factory=dict)
    """More entries of the case's record."""

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def all(self, name: str) -> list[Any]:
        return [repetition[name] for repetition in self.repetitions]

    def median(self, name: str) -> float:
        return float(statistics.median(self.all(name)))

    @property
    def seconds(self) -> float:
        return self.median("seconds")

    def goodput_mbit(self) -> float:
        """The goodput in fp32, whatever format crosses the links."""
        return float(self["bytes"]) * 8 / self.seconds / 1e6

    def times(self, cases: Sequence[Case], **peer: Any) -> float | None:
        """How many times faster this case is than the case whose settings differ by `peer`; None if there is no such
        case."""
        other = next((each for each in cases if each.settings == self.settings | peer), None)
        return other.seconds / self.seconds if other else None


def take_turns(
    cases: Sequence[Case],
    repetitions: int,
    warm_ups: int,
    prepare: Callable[[int], object],
    go: Callable[[Case], Record],
) -> None:
    """Runs one repetition of each case in turn, so that other load on the machine affects all cases alike. `prepare`
    gets the number of the draw. The first `warm_ups` repetitions are not recorded."""
    for draw in range(warm_ups + repetitions):
        prepare(draw)
        for case in cases:
            repetition = go(case)
            if draw >= warm_ups:
                case.repetitions.append(repetition)
    for case in cases:
        say(f"{', '.join(f'{name} {_cell(value)}' for name, value in case.settings.items())}: {case.seconds:.4g} s")


def sum_once(ranks: Ranks, group: str) -> tuple[float, list[Record]]:
    """Makes all ranks (`SummingRank`s) begin a sum at the same moment, and check it when the last rank has ended.
    Returns the seconds from the first rank's start to the last rank's end, and each rank's report."""
    ranks.command("load")
    ranks.command("go", group, time.monotonic_ns() + START_DELAY_NS)
    reports = ranks.command("report")
    return seconds_of(right(group, reports)), reports


def right(group: str, reports: Sequence[Record]) -> Sequence[Record]:
    """Returns the reports. Raises a `RanksError` if an element of a sum is wrong at a rank."""
    if wrong := sum(report["wrong_elements"] for report in reports):
        raise RanksError(f"{wrong} elements of a sum by '{group}' are wrong")
    return reports


def seconds_of(answers: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the first rank's start to the last rank's end."""
    return float(max(answer["end_ns"] for answer in answers) - min(answer["start_ns"] for answer in answers)) / 1e9


def prerequisites_met() -> bool:
    """Whether stars can be built here. Prints what is missing if not."""
    try:
        check_prerequisites()
    except StarError as error:
        say(str(error))
        return False
    return True


def run(
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], Sequence[Case]],
    figures: Callable[[Case, Sequence[Case]], Record],
    draw: Callable[[Sequence[Record], argparse.Namespace], object] = lambda records, options: None,
) -> int:
    """The main program of a benchmark, whose exit status it returns.

    A case's record has its settings, its `figures`, which may compare the case with others, and its repetitions.
    `measure` may use the folder `options.logs`, beside the records.
    """
    if not prerequisites_met():
        return 2
    options.logs = options.json.parent / "log"
    options.logs.mkdir(parents=True, exist_ok=True)
    with termination_as_exit():
        cases = measure(options)
    records = [
        case.settings | figures(case, cases) | case.further | {"repetitions": case.repetitions} for case in cases
    ]
    draw(records, options)
    keep(options.json, records)
    return 0


def keep(path: Path, records: Sequence[Record]) -> None:
    """Writes records to a file, and prints them as a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1) + "\n")
    say(table(records))
    say(f"records: {path}")


def table(records: Sequence[Record]) -> str:
    """The records' figures in columns, below the figures that are the same in all records. Lists are left out."""
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    columns = {name: of for name, of in columns.items() if not any(isinstance(each, list | dict) for each in of)}
    alike = {name for name, of in columns.items() if len(records) > 1 and all(each == of[0] for each in of)}
    rows = zip(*([name, *map(_cell, of)] for name, of in columns.items() if name not in alike), strict=True)
    above = ", ".join(f"{name} {_cell(columns[name][0])}" for name in columns if name in alike)
    return "\n".join([above] * bool(above) + list(_aligned(list(rows))))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else str(value)
