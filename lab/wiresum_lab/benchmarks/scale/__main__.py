"""Shows how sums scale, by the shipped code in a simulated network, in virtual time: make bench NAMES=scale.

    make build-dev bench NAMES=scale                  all tables but the last, on as many cores as there are
    make bench NAMES=scale ARGS='loss stragglers'     two of them
    make bench NAMES=scale ARGS=--quick               a tenth of the bytes: for a first look
    make bench NAMES=scale ARGS='--draw docs'         with the pictures of docs/scale.md
    make bench NAMES=scale ARGS='case workers=1024 racks=16,2 megabytes=100'    one sum of your own
    make bench NAMES=scale ARGS=calibrate             the same sums on a star of network namespaces (root), side by side

Workers, switches and their constants are the shipped ones; hosts, links and time are simulated, so the results do not
depend on this machine, and the same seed gives the same run. Computation at a host takes no time. Every element of
every sum is checked. docs/scale.md explains the simulation and the columns.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from wiresum.join.constants import JOB_WORKERS_MAX
from wiresum_lab.benchmarks.program import say, table
from wiresum_lab.benchmarks.scale import calibration
from wiresum_lab.benchmarks.scale.case import Case, Outcome, simulate
from wiresum_lab.benchmarks.scale.studies import BY_DEFAULT, COLUMNS, STUDIES, Row, Study

QUICK_DIVISOR = 10
DRAWN = {"scale": "scale-workers.png", "loss": "scale-loss.png"}
"""The file of the chart, by study."""

Records = dict[str, list[tuple[Row, list[Outcome]]]]
"""The rows of each study, with the outcomes of their cases."""


def quicker(study: Study) -> Study:
    return replace(
        study,
        rows=tuple(
            replace(row, case=replace(row.case, megabytes=row.case.megabytes / QUICK_DIVISOR), seeds=1)
            for row in study.rows
        ),
    )


def smaller(study: Study, workers_max: int) -> Study:
    return replace(study, rows=tuple(row for row in study.rows if row.case.workers <= workers_max))


def run_all(cases: Sequence[Case], processes: int) -> dict[Case, Outcome]:
    """Simulates the cases, the longest first, each in a process of its own: thousands of workers take gigabytes."""
    outcomes: dict[Case, Outcome] = {}
    longest_first = sorted(set(cases), key=lambda case: case.workers * case.megabytes * case.tensors, reverse=True)
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for outcome in pool.imap_unordered(simulate, longest_first):
            outcomes[outcome.case] = outcome
            say(f"{len(outcomes):>4} of {len(longest_first)}  {time.monotonic() - began:5.0f} s  {describe(outcome)}")
    return outcomes


def describe(outcome: Outcome) -> str:
    case = outcome.case
    return (
        f"{case.workers:,} workers, {case.gbit:g} Gbit/s, loss {case.loss:g}, {case.megabytes:g} MB: "
        f"{outcome.seconds * 1e3:.3f} ms, {case.bound_s / outcome.seconds:.3f} of the bound; "
        f"simulated in {outcome.real_s:.1f} s, {outcome.memory_mb / 1e3:.2f} GB"
    )


def print_study(study: Study, rows: Sequence[tuple[Row, list[Outcome]]]) -> None:
    first: dict[str, list[Outcome]] = {}
    found = []
    for row, outcomes in rows:
        first.setdefault(row.labels[-1], outcomes)
        cells = {name: COLUMNS[name](row, outcomes, first[row.labels[-1]]) for name in study.columns}
        found.append(dict(zip(study.labels, row.labels, strict=True)) | cells)
    say(f"\n{study.title}\n{table(found)}")


def measure(studies: dict[str, Study], options: argparse.Namespace) -> Records:
    cases = [case for study in studies.values() for row in study.rows for case in row.cases]
    outcomes = run_all(cases, options.processes)
    return {
        name: [(row, [outcomes[case] for case in row.cases]) for row in study.rows] for name, study in studies.items()
    }


def records_of(records: Records) -> Iterator[dict[str, Any]]:
    for name, rows in records.items():
        for row, outcomes in rows:
            for outcome in outcomes:
                yield {"study": name, "labels": row.labels, "bound_s": outcome.case.bound_s, **asdict(outcome)}


def run_case(settings: Sequence[str]) -> None:
    """Each setting is NAME=VALUE, with the name of a field of `Case` and a value as in Python."""
    pairs = (setting.partition("=") for setting in settings)
    outcome = simulate(Case(**{name: ast.literal_eval(value) for name, _, value in pairs}))
    say(describe(outcome))
    for name, value in asdict(outcome).items():
        if name != "case":
            say(f"  {name:<16} {value}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    description, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="make bench NAMES=scale ARGS='...'",
        description=description,
        epilog=examples + "\ntables:\n" + "\n".join(f"  {name:<11} {each.title}" for name, each in STUDIES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = (*STUDIES, "case", "calibrate")
    add = parser.add_argument
    add("what", nargs="*", metavar="WHAT", help="tables (default: all), `calibrate`, or `case` with fields of `Case`")
    add("--quick", action="store_true", help="a tenth of the bytes, one seed")
    add("--workers-max", type=int, default=JOB_WORKERS_MAX, help="leave out larger jobs: 4,096 take 2 GB of memory")
    add("--processes", type=int, default=os.cpu_count(), help="simulations at a time (default: %(default)s)")
    add("--draw", type=Path, metavar="FOLDER", help="draw the charts into this folder")
    add("--json", type=Path, default=Path("build/bench/scale.json"), help="where the records go (default: %(default)s)")
    options = parser.parse_args(arguments)
    unknown = [word for word in options.what if word not in what]
    if unknown and options.what[0] != "case":
        parser.error(f"no {unknown[0]}: there are {', '.join(what)}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.what[:1] == ["case"]:
        run_case(options.what[1:])
        return 0
    if options.what == ["calibrate"]:
        return calibration.run()
    studies = {name: smaller(STUDIES[name], options.workers_max) for name in options.what or BY_DEFAULT}
    if options.quick:
        studies = {name: quicker(study) for name, study in studies.items()}
    records = measure(studies, options)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(list(records_of(records)), indent=1) + "\n")
    for name, study in studies.items():
        print_study(study, records[name])
    if options.draw is not None:
        from wiresum_lab.benchmarks.scale import chart  # which imports matplotlib

        options.draw.mkdir(parents=True, exist_ok=True)

        for name in DRAWN.keys() & studies.keys():
            chart.draw(name, records[name], options.draw / DRAWN[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
