"""Wiresum, Gloo and Open MPI, side by side: `make bench NAMES=dense ARGS=--help`.

Theory of operation. For each number of workers a star of namespaces is built (`star.py`), and on it every system is
started once (`systems.py`). Repetitions are interleaved, A B C A B C, so that whatever else the machine does hits all
alike; a system that is not being measured waits without taking processor time. Before each repetition every rank has
its tensor ready, and all are told to go at once; the clock runs from the first rank's start to the last rank's end.
Every sum is checked, element by element, outside the measured time.

Between experiments on one star the links are reshaped and the processes live on. Unshaped links get a new star, since
TCP decides about segmentation offload when it connects.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from wiresum_lab.benchmarks.against_gloo_and_mpi import chart, numeric, report
from wiresum_lab.benchmarks.against_gloo_and_mpi.options import LATENCY_COUNT, Options, parse_options
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case, Measurement
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, System, latency_s, repeat
from wiresum_lab.benchmarks.program import prerequisites_met
from wiresum_lab.namespaces import probe
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star, termination_as_exit
from wiresum_lab.ranks.ranks import Ranks, RanksError, Site

REPETITION_TIMEOUT_S = 60.0
# A TCP ring crawls when packets are lost: it may take this many times what it takes without.
LOSS_TIMEOUT_S = 30.0
LATENCY_TIMEOUT_S = 60.0
PROBE_S = 0.3
REPORT_COLUMNS = 140


class Benchmark:
    """One run: measures case by case, and keeps what it has measured."""

    def __init__(self, options: Options, logs: Path, console: Console) -> None:
        self.options = options
        self.logs = logs
        self.console = console
        self.measurements: list[Measurement] = []
        self.systems: dict[str, System] = self._installed_systems()
        self.options = replace(options, systems=tuple(self.systems))
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self.progress.add_task("starting", total=self._repetitions_planned())

    def run(self) -> None:
        with self.progress:
            wanted = self.options.experiments
            if "latency" in wanted:
                self._run_latency()
            if "rate" in wanted or "loss" in wanted:
                for workers in self.options.workers:
                    for names in self._systems_by_star():
                        self._run_shaped(workers, names)
            if "unshaped" in wanted:
                for workers in self.options.unshaped_workers:
                    for mtu in self.options.unshaped_mtus:
                        for names in self._systems_by_star():
                            self._run_unshaped(workers, mtu, names)

    def _systems_by_star(self) -> list[set[str]]:
        """The systems that take turns on one star, and each that needs a star of its own."""
        together = {name for name, system in self.systems.items() if not system.is_alone}
        return [
            systems for systems in (together, *({name} for name in self.systems if name not in together)) if systems
        ]

    def _run_shaped(self, workers: int, names: set[str]) -> None:
        slowest_mbit = min(self.options.links_mbit)
        losses = self._losses(workers)
        if "rate" not in self.options.experiments and not losses:
            return
        with Star(workers, Link(slowest_mbit)) as star, self._started(Site.of_star(star), names) as started:
            # The loss experiment compares with the same case without loss, so that one is always measured.
            links = self.options.links_mbit if "rate" in self.options.experiments else (slowest_mbit,)
            for link_mbit in links:
                self._reshape(star, Link(link_mbit))
                self._take_turns(started, self.options.cases("rate", workers, link_mbit), REPETITION_TIMEOUT_S)
            for loss in losses:
                self._reshape(star, Link(slowest_mbit, loss=loss))
                self._take_turns(started, self.options.cases("loss", workers, slowest_mbit, loss=loss), LOSS_TIMEOUT_S)

    def _run_unshaped(self, workers: int, mtu: int, names: set[str]) -> None:
        with Star(workers, Link(mtu=mtu)) as star, self._started(Site.of_star(star), names) as started:
            self._take_turns(started, self.options.cases("unshaped", workers, None, mtu=mtu), REPETITION_TIMEOUT_S)

    def _run_latency(self) -> None:
        names = {case.system for case in self.options.cases("latency", 2, None)}
        for workers in self.options.unshaped_workers:
            with Star(1) as star, self._started(Site.of_loopback(star.workers[0], workers), names) as started:
                self._take_turns(started, self.options.cases("latency", workers, None), LATENCY_TIMEOUT_S)

    def _take_turns(self, started: dict[str, Ranks], cases: Sequence[Case], timeout_s: float) -> None:
        """Measures the cases, one repetition of each at a time. A system that fails is left out from then on."""
        measurements = [Measurement(case) for case in cases if case.system in started]
        repetitions = max((self.options.repetitions_of(case.experiment) for case in cases), default=0)
        for repetition in range(1 + repetitions):
            for measurement in measurements:
                if measurement.case.system in started:
                    self.progress.update(self._task, description=describe(measurement.case))
                    self._repeat(started, measurement, repetition, timeout_s)
                self.progress.advance(self._task)
        for measurement in measurements:
            self.measurements.append(measurement)
            self.progress.console.print(report.line(measurement), markup=False)

    def _repeat(self, started: dict[str, Ranks], measurement: Measurement, repetition: int, timeout_s: float) -> None:
        case = measurement.case
        ranks = started[case.system]
        is_warm_up = repetition == 0
        try:
            if case.experiment == "latency":
                latency = latency_s(ranks, case.elements, LATENCY_COUNT, timeout_s)
                measurement.latencies_s += [] if is_warm_up else [latency]
            else:
                result = repeat(ranks, case.bits, case.elements, repetition, timeout_s)
                measurement.repetitions += [] if is_warm_up else [result]
        except RanksError as error:
            measurement.error = str(error)
            self.progress.console.print(str(error), style="red", markup=False)
            started.pop(case.system).abandon()

    def _reshape(self, star: Star, link: Link) -> None:
        star.reshape(link)
        if link.impaired:
            means = "netem" if star.netem else "filters at the receiving ends, since this kernel has no netem"
            self.progress.console.print(f"links: {link}, by {means}")
        if link.rate_mbit is not None and not link.impaired:
            count = int(link.rate_mbit * 1e6 * PROBE_S / 8 / probe.DATAGRAM_BYTES)
            found = probe.measure(star.workers[0], star.workers[-1], count=count)
            self.progress.console.print(
                f"links: {link}; a train of {count} full frames went through at {found.frame_mbit:.1f} Mbit/s"
            )

    @contextlib.contextmanager
    def _started(self, site: Site, names: set[str]) -> Iterator[dict[str, Ranks]]:
        """These systems on this site. One that cannot start is reported and left out."""
        started: dict[str, Ranks] = {}
        try:
            for name, system in self.systems.items():
                if name not in names:
                    continue
                self.progress.update(self._task, description=f"starting {len(site.workers)} ranks of {system.title}")
                try:
                    started[name] = system.start(site, self.logs)
                except RanksError as error:
                    self.progress.console.print(str(error), style="red", markup=False)
            yield started
        except BaseException:
            for ranks in started.values():
                ranks.abandon()
            raise
        for ranks in started.values():
            ranks.close()

    def _installed_systems(self) -> dict[str, System]:
        systems = {name: SYSTEMS[name] for name in self.options.systems}
        for name, system in list(systems.items()):
            if reason := system.missing():
                self.console.print(f"{system.title} is left out: {reason}", style="yellow", markup=False)
                del systems[name]
        return systems

    def _losses(self, workers: int) -> tuple[float, ...]:
        is_largest = workers == max(self.options.workers)
        return self.options.losses if is_largest and "loss" in self.options.experiments else ()

    def _repetitions_planned(self) -> int:
        """For the progress bar."""
        options, cases = self.options, 0
        for workers in options.workers:
            losses = self._losses(workers)
            if "rate" in options.experiments:
                cases += sum(len(options.cases("rate", workers, link)) for link in options.links_mbit)
            elif losses:
                cases += len(options.cases("rate", workers, min(options.links_mbit)))
            cases += sum(len(options.cases("loss", workers, min(options.links_mbit), loss=loss)) for loss in losses)
        if "latency" in options.experiments:
            cases += sum(len(options.cases("latency", workers, None)) for workers in options.unshaped_workers)
        repetitions = cases * (1 + options.repetitions)
        if "unshaped" in options.experiments:
            unshaped = sum(len(options.cases("unshaped", workers, None)) for workers in options.unshaped_workers)
            repetitions += unshaped * len(options.unshaped_mtus) * (1 + options.repetitions_of("unshaped"))
        return repetitions


def describe(case: Case) -> str:
    bits = f", {case.bits} bits" if case.system == "wiresum" else ""
    return f"{SYSTEMS[case.system].title}, N = {case.workers}, {report.link_of(asdict(case))}{bits}"


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    console = make_console()
    if not prerequisites_met(console):
        return 2
    logs = options.json.parent / "log"
    logs.mkdir(parents=True, exist_ok=True)
    with termination_as_exit():
        benchmark = Benchmark(options, logs.resolve(), console)
        if not benchmark.systems:
            console.print("[red]no system is left to measure")
            return 2
        try:
            benchmark.run()
        except KeyboardInterrupt:
            console.print("[yellow]interrupted: what follows is what was measured until now")
        finally:
            write_results(options, benchmark.measurements, console)
    return 0


def make_console() -> Console:
    """As wide as the tables where the output is a file: only a terminal has a width of its own."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=REPORT_COLUMNS)


def measure_conversions(console: Console) -> list[numeric.Conversion]:
    try:
        with console.status("building and running numeric_bench"):
            return numeric.measure()
    except numeric.NumericBenchError as error:
        console.print(f"the conversions were not measured: {error}", style="red", markup=False)
        return []


def write_results(options: Options, measurements: Sequence[Measurement], console: Console) -> None:
    records = [measurement.record() for measurement in measurements]
    scratch = options.json.with_suffix(".tmp")
    scratch.write_text(json.dumps(records, indent=1) + "\n")
    scratch.replace(options.json)
    picture = options.json.with_suffix(".png")
    conversions = measure_conversions(console) if "numeric" in options.experiments else []
    report.print_tables(records, conversions, console)
    chart.draw(records, picture)
    report.print_targets(records, conversions, console)
    console.print(f"\nRecords: {options.json}   Picture: {picture}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
