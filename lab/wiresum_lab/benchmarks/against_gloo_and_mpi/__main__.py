"""Wiresum, Gloo and Open MPI, side by side: the same tensors over links as slow as asked, and every sum is checked.

Theory of operation. For each number of workers a star of namespaces is built (`star.py`), and on it every system is
started once (`systems.py`). Repetitions are interleaved, A B C A B C, so that whatever else the machine does hits all
alike; a system that is not being measured waits without taking processor time. Before each repetition every rank has
its tensor ready, and all are told to go at once; the clock runs from the first rank's start to the last rank's end.
Every sum is checked, element by element, outside the measured time.

Between experiments on one star the links are reshaped and the processes live on. Unshaped links get a new star, since
TCP decides about segmentation offload when it connects.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case, Measurement
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, SYSTEMS_BY_DEFAULT, System, repeat
from wiresum_lab.namespaces import probe
from wiresum_lab.namespaces.links import MTU_BYTES, Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.ranks import Ranks, RanksError, Site

EXPERIMENTS = ("rate", "loss", "unshaped")
SLOW_MBIT = 100.0
SLOW_BYTES, FAST_BYTES, UNSHAPED_BYTES = 8_000_000, 32_000_000, 25_000_000
"""About a second of a ring at 100 Mbit/s; at higher rates as long as the cores allow."""
UNSHAPED_WORKERS_MAX = 4
"""More would measure how processes share the cores."""
UNSHAPED_REPETITIONS_FACTOR = 4
"""Chance moves short repetitions more than long ones, and more of them cost little."""
PROBE_S = 0.3
PEERS = ("gloo", "openmpi")
EPILOG = """\
Experiments (--only):
  rate      every system at every number of workers and rate: goodput, and how near it comes to what the link can carry
  loss      the most workers at the slowest rate, with a fraction of all packets lost on every link, in both directions
  unshaped  up to 4 workers over links that are only as slow as this machine, with packets of every --mtu

Needs root (network namespaces, tc), iproute2 and ethtool; Open MPI is measured if mpirun and mpicc are there.
docs/benchmark.md has commands, and explains the columns.
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench NAMES=dense ARGS='...'",
        description=__doc__.partition("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, default = parser.add_argument, " (default: %(default)s)"
    add("--only", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS, help="experiments, see below (default: all)")
    add("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS_BY_DEFAULT, help=f"what to compare{default}")
    add("--workers", nargs="+", type=int, default=(2, 4, 8), help=f"numbers of workers{default}")
    add("--link-mbit", nargs="+", type=float, default=(SLOW_MBIT, 1000.0), help=f"rates of every link{default}")
    add("--loss", type=float, default=0.01, help=f"the fraction of packets lost{default}")
    add("--mtu", nargs="+", type=int, default=(MTU_BYTES, 9000), help=f"bytes of packets, on unshaped links{default}")
    add("--bits", nargs="+", type=int, choices=(32, 16, 8), default=(32, 16, 8), help="Wiresum's bits for a float")
    add("--bytes", type=int, help="of the tensor (default: 8 MB at 100 Mbit/s, 32 MB above, 25 MB unshaped)")
    add("--repetitions", type=int, default=5, help=f"of each case; four times as many on unshaped links{default}")
    add("--json", type=Path, default=Path("build/bench/allreduce.json"), help=f"where the records go{default}")
    return parser.parse_args(arguments)


def stars(options: argparse.Namespace) -> Iterator[tuple[int, list[Link]]]:
    """Each star's number of workers, and the shapes that its links take one after the other."""
    for workers in options.workers:
        links = [Link(rate) for rate in options.link_mbit] if "rate" in options.only else []
        if "loss" in options.only and workers == max(options.workers):
            links.append(Link(min(options.link_mbit), loss=options.loss))
        if links:
            yield workers, links
    if "unshaped" in options.only:
        few = [workers for workers in options.workers if workers <= UNSHAPED_WORKERS_MAX]
        yield from ((workers, [Link(mtu=mtu)]) for workers in few or options.workers for mtu in options.mtu)


def cases(options: argparse.Namespace, systems: Sequence[System], workers: int, link: Link) -> list[Case]:
    """One for each system and number of bits, in the order in which they take turns. Only the first experiment has all
    numbers of bits; and where packets are lost, Open MPI says nothing that Gloo does not."""
    is_rate = link.rate_mbit is not None and not link.loss
    size = UNSHAPED_BYTES if link.rate_mbit is None else SLOW_BYTES if link.rate_mbit <= SLOW_MBIT else FAST_BYTES
    return [
        Case(system.name, workers, link.rate_mbit, options.bytes or size, bits, link.loss, link.mtu)
        for system in systems
        if not (link.loss and system.name.startswith("openmpi"))
        for bits in (32,) * (len(system.bits) == 1) or (options.bits if is_rate else (max(options.bits),))
    ]


def measure(options: argparse.Namespace, console: Console) -> list[Measurement]:
    systems = installed(options.systems, console)
    together = [system for system in systems if not system.is_alone]
    groups = [group for group in (together, *([system] for system in systems if system.is_alone)) if group]
    measured: list[Measurement] = []
    for workers, links in stars(options):
        for group in groups:
            with Star(workers, links[0]) as star, started(Site.of_star(star), group, options.logs, console) as ranks:
                for link in links:
                    if link.rate_mbit is not None:
                        reshape(star, link, console)
                    repetitions = options.repetitions * (1 if link.rate_mbit else UNSHAPED_REPETITIONS_FACTOR)
                    measured += take_turns(ranks, cases(options, group, workers, link), repetitions, console)
    return measured


def installed(names: Sequence[str], console: Console) -> list[System]:
    found = []
    for system in (SYSTEMS[name] for name in names):
        if reason := system.missing():
            console.print(f"{system.title} is left out: {reason}", style="yellow", markup=False)
        else:
            found.append(system)
    return found


@contextlib.contextmanager
def started(site: Site, systems: Sequence[System], logs: Path, console: Console) -> Iterator[dict[str, Ranks]]:
    """These systems on this site. One that cannot start is reported and left out."""
    found: dict[str, Ranks] = {}
    try:
        for system in systems:
            try:
                found[system.name] = system.start(site, logs.resolve())
            except RanksError as error:
                console.print(str(error), style="red", markup=False)
        yield found
    except BaseException:
        for ranks in found.values():
            ranks.abandon()
        raise
    for ranks in found.values():
        ranks.close()


def reshape(star: Star, link: Link, console: Console) -> None:
    star.reshape(link)
    if link.impaired:
        means = "netem" if star.netem else "filters at the receiving ends, since this kernel has no netem"
        console.print(f"links: {link}, by {means}")
    elif link.rate_mbit is not None:
        count = int(link.rate_mbit * 1e6 * PROBE_S / 8 / probe.DATAGRAM_BYTES)
        found = probe.measure(star.workers[0], star.workers[-1], count=count)
        console.print(f"links: {link}; a train of {count} full frames went through at {found.frame_mbit:.1f} Mbit/s")


def take_turns(ranks: dict[str, Ranks], cases: Sequence[Case], repetitions: int, console: Console) -> list[Measurement]:
    """Measures the cases, one repetition of each at a time, of which the first warms up. A system that fails is left
    out from then on."""
    measurements = [Measurement(case) for case in cases if case.system in ranks]
    for repetition in range(1 + repetitions):
        for measurement in measurements:
            case = measurement.case
            if case.system not in ranks:
                continue
            try:
                found = repeat(ranks[case.system], case.bits, case.elements, repetition, PATIENCE_S)
                measurement.repetitions += [found] if repetition else []
            except RanksError as error:
                measurement.error = str(error)
                console.print(str(error), style="red", markup=False)
                ranks.pop(case.system).abandon()
    for measurement in measurements:
        case, goodput = measurement.case, measurement.goodput_mbit
        said = "failed" if goodput is None else f"{goodput:.1f} Mbit/s{'' if measurement.correct else ', WRONG SUM'}"
        console.print(f"{link_of(case)}, N={case.workers}: {SYSTEMS[case.system].title}, {case.bits} bits: {said}")
    return measurements


def table(measurements: Sequence[Measurement], _: argparse.Namespace) -> Table:
    columns = ("system", "link", "N", "bits", "Mbit/s", "of bound", "of own", "x Gloo", "x Open MPI", "CPU worker")
    found = program.table_of("All-reduces", (*columns, "CPU switch", "retrans."))
    for measurement in measurements:
        case, record = measurement.case, measurement.record()
        goodput, peers = rate(measurement), [peer_of(measurement, peer, measurements) for peer in PEERS]
        quotients = [goodput / peer if goodput and peer else None for peer in peers]
        found.add_row(
            *(SYSTEMS[case.system].title, link_of(case), str(case.workers), str(case.bits)),
            cell(record["goodput_mbit"], ".1f") if measurement.correct or not measurement.seconds else "WRONG SUM",
            *(cell(record[name], ".3f") for name in ("bound_ratio", "own_bound_ratio")),
            *(cell(quotient, ".2f") for quotient in quotients),
            *(cell(record[f"cpu_seconds_per_gb_{part}"], ".2f") for part in ("worker", "switch")),
            cell(record["retransmissions"], "d"),
        )
    return found


def peer_of(measurement: Measurement, peer: str, measurements: Sequence[Measurement]) -> float | None:
    """The rate of a peer with the same tensor on the same links: it sends floats as they are, whatever our bits."""
    if not measurement.case.is_aggregated:
        return None
    same = measurement.case.of_system(peer)
    return next((rate(each) for each in measurements if each.case == same), None)


def rate(measurement: Measurement) -> float | None:
    """A wrong sum has none."""
    return measurement.goodput_mbit if measurement.correct else None


def link_of(case: Case) -> str:
    if case.link_mbit is None:
        return f"unshaped, MTU {case.mtu}"
    return f"{case.link_mbit:g} Mbit/s" + (f", {case.loss:.1%} loss" if case.loss else "")


def cell(value: float | int | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(arguments: Sequence[str]) -> int:
    return program.run(parse(arguments), measure, record=Measurement.record, table=table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
