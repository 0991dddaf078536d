"""Compares all-reduces over Wiresum, Gloo and Open MPI on shaped links, and checks every sum: `make bench NAMES=dense`.

Theory of operation. For each number of workers a star of namespaces is built (`star.py`), on which every system is
started once (`systems.py`). Repetitions are interleaved, A B C A B C, so that other load on the machine hits all
systems alike; a system that is not being measured waits without taking processor time. Every rank fills its tensor
before a repetition, which all ranks start at once; the clock runs from the first rank's start to the last rank's end.
Every sum is checked, element by element, outside the measured time.

Between experiments on one star the links are reshaped and the processes live on. Unshaped links get a new star, since
TCP decides about segmentation offload when it connects.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, SYSTEMS_BY_DEFAULT, System, repeat
from wiresum_lab.benchmarks.bounds import FLOAT_BITS, network_mbit, ring_mbit
from wiresum_lab.benchmarks.program import Case, Record, say, take_turns
from wiresum_lab.namespaces import probe
from wiresum_lab.namespaces.links import MTU_BYTES, Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import Ranks, Site

EXPERIMENTS = ("rate", "loss", "unshaped")
SLOW_MBIT = 100.0
SLOW_BYTES, FAST_BYTES, UNSHAPED_BYTES = 8_000_000, 32_000_000, 25_000_000
"""Bytes of the tensor by rate of the links. A ring takes about a second at 100 Mbit/s; at higher rates the cores
decide."""
UNSHAPED_WORKERS_MAX = 4
"""The most workers on unshaped links. With more, the benchmark would measure how processes share the cores."""
UNSHAPED_REPETITIONS_FACTOR = 4
"""How many times more repetitions unshaped links get: short repetitions vary more than long ones, and cost little."""
WARM_UPS = 1
PROBE_S = 0.3
EPILOG = """\
Experiments (--only):
  rate      every system at every number of workers and rate: goodput, and how near it comes to what the link can carry
  loss      the most workers at the slowest rate, with a fraction of all packets lost on every link, in both directions
  unshaped  up to 4 workers over links that are only as slow as this machine, with packets of every --mtu

Needs root (network namespaces, tc), iproute2 and ethtool; Open MPI is measured if mpirun and mpicc are there.
docs/benchmark.md has commands, and explains the columns.
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = program.Options("dense", __doc__, workers=[2, 4, 8], link_mbit=[SLOW_MBIT, 1000.0])
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add("--only", list(EXPERIMENTS), "experiments, see below", choices=EXPERIMENTS)
    parser.add("--systems", list(SYSTEMS_BY_DEFAULT), "what to compare", choices=SYSTEMS)
    parser.add("--loss", 0.01, "the fraction of packets lost")
    parser.add("--mtu", [MTU_BYTES, 9000], "bytes of packets, on unshaped links")
    parser.add("--bits", [32, 16, 8], "Wiresum's bits for a float", choices=(32, 16, 8))
    parser.add("--bytes", 0, "bytes of the tensor; 0: 8 MB at 100 Mbit/s, 32 MB above, 25 MB unshaped")
    parser.add("--repetitions", 5, "repetitions of each case; four times as many on unshaped links")
    return parser.parse_args(arguments)


def stars(options: argparse.Namespace) -> Iterator[tuple[int, list[Link]]]:
    """The number of workers of each star, and the shapes that its links take in turn."""
    for workers in options.workers:
        links = [Link(rate) for rate in options.link_mbit] if "rate" in options.only else []
        if "loss" in options.only and workers == max(options.workers):
            links.append(Link(min(options.link_mbit), loss=options.loss))
        if links:
            yield workers, links
    if "unshaped" in options.only:
        few = [workers for workers in options.workers if workers <= UNSHAPED_WORKERS_MAX]
        yield from ((workers, [Link(mtu=mtu)]) for workers in few or options.workers for mtu in options.mtu)


def cases_of(options: argparse.Namespace, systems: Sequence[System], workers: int, link: Link) -> list[Case]:
    """The cases of a link, one for each system and number of bits, in the order in which they take turns. Only the
    first experiment has all numbers of bits. Open MPI is left out where packets are lost, since it says nothing that
    Gloo does not."""
    is_rate = link.rate_mbit is not None and not link.loss
    size = UNSHAPED_BYTES if link.rate_mbit is None else SLOW_BYTES if link.rate_mbit <= SLOW_MBIT else FAST_BYTES
    alike = {"workers": workers, "link_mbit": link.rate_mbit, "loss": link.loss, "mtu": link.mtu}
    return [
        Case({"system": system.name, "bits": bits, "bytes": options.bytes or size} | alike)
        for system in systems
        if not (link.loss and system.name.startswith("openmpi"))
        for bits in (system.bits if len(system.bits) == 1 else options.bits if is_rate else [max(options.bits)])
    ]


def measure(options: argparse.Namespace) -> list[Case]:
    systems = installed(options.systems)
    measured: list[Case] = []
    for workers, links in stars(options):
        with Star(workers, links[0]) as star, ExitStack() as cleanup:
            site = Site.of_star(star)
            ranks = {each.name: cleanup.enter_context(each.start(site, options.logs)) for each in systems}
            for link in links:
                if link.rate_mbit is not None:
                    reshape(star, link)
                cases = cases_of(options, systems, workers, link)
                repetitions = options.repetitions * (1 if link.rate_mbit else UNSHAPED_REPETITIONS_FACTOR)
                take_turns_of(ranks, cases, repetitions)
                measured += cases
    return measured


def take_turns_of(ranks: dict[str, Ranks], cases: Sequence[Case], repetitions: int) -> None:
    draw = 0

    def prepare(number: int) -> None:
        nonlocal draw
        draw = number

    def go(case: Case) -> Record:
        return repeat(ranks[case["system"]], case["bits"], case["bytes"] // 4, draw)

    take_turns(cases, repetitions, WARM_UPS, prepare, go)


def installed(names: Sequence[str]) -> list[System]:
    found = []
    for system in (SYSTEMS[name] for name in names):
        if reason := system.missing():
            say(f"{system.name} is left out: {reason}")
        else:
            found.append(system)
    return found


def reshape(star: Star, link: Link) -> None:
    star.reshape(link)
    if link.impaired:
        means = "netem" if star.netem else "filters at the receiving ends, since this kernel has no netem"
        say(f"links: {link}, by {means}")
    elif link.rate_mbit is not None:
        count = int(link.rate_mbit * 1e6 * PROBE_S / 8 / probe.DATAGRAM_BYTES)
        found = probe.measure(star.workers[0], star.workers[-1], count=count)
        say(f"links: {link}; a train of {count} full frames went through at {found.frame_mbit:.1f} Mbit/s")


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """The columns of a case, which docs/benchmark.md explains."""
    size, link_mbit, mtu = case["bytes"], case["link_mbit"], case["mtu"]
    goodput_mbit, bound_mbit = case.goodput_mbit(), network_mbit(size, link_mbit, case["bits"], mtu)
    is_ring = case["system"] in ("gloo", "openmpi")
    own_mbit = ring_mbit(size, link_mbit, case["workers"], mtu) if is_ring else bound_mbit
    again = case.all("retransmissions")
    # A peer sends floats as they are, at any number of Wiresum's bits.
    peers = {peer: case.times(measured, system=peer, bits=FLOAT_BITS) for peer in ("gloo", "openmpi")}
    return {
        "seconds": case.seconds,
        "goodput_mbit": goodput_mbit,
        "of_bound": bound_mbit and goodput_mbit / bound_mbit,
        "of_own_bound": own_mbit and goodput_mbit / own_mbit,
        **{f"over_{peer}": times for peer, times in peers.items()},
        "worker_cpu_s_per_gb": case.median("worker_cpu_s") / (size / 1e9),
        "switch_cpu_s_per_gb": None if is_ring else case.median("switch_cpu_s") / (size / 1e9),
        "sent_again": None if None in again else sum(again),
    }


def main(arguments: Sequence[str]) -> int:
    return program.run(parse(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
