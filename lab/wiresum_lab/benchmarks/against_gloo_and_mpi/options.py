"""The benchmark's command line, and the list of cases that it stands for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from wiresum.join.constants import SWITCH_WORKERS_MAX
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case, Experiment
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, SYSTEMS_BY_DEFAULT
from wiresum_lab.namespaces.links import MTU_BYTES, MTU_BYTES_MAX, MTU_BYTES_MIN

EXPERIMENTS = ("rate", "loss", "unshaped", "latency", "numeric")
WORKERS_DEFAULT = (2, 4, 8)
UNSHAPED_WORKERS_DEFAULT = (2, 4)
LINKS_MBIT = {"100mbit": 100.0, "1gbit": 1000.0}
LATENCY_BYTES = 1024
LATENCY_COUNT = 300
UNSHAPED_BYTES = 25_000_000
# Ethernet's packets, and the jumbo frames of clusters that allow them.
UNSHAPED_MTUS_DEFAULT = (MTU_BYTES, 9000)
# Chance moves short repetitions more than long ones, and more of them cost little.
UNSHAPED_REPETITIONS_FACTOR = 4
# About a second of a ring at 100 Mbit/s; at 1 Gbit/s as long as the cores allow.
BYTES_AT_MBIT = {100.0: 8_000_000, 1000.0: 32_000_000}
QUICK_DIVISOR = 4

EPILOG = """\
Experiments (--only):
  rate      every system at every --workers and --link: goodput, and how near it comes to what the link can carry.
  loss      the largest --workers at the slowest link, and --loss of all packets lost on every link in both directions.
  unshaped  25 MB over links that are only as slow as this machine, with packets of every --mtu.
  latency   1 kB over the loopback interface: the median time of one all-reduce.
  numeric   the conversion between floats and lanes against memcpy, on one core.

Examples:
  make bench NAMES=dense                                         everything, about six minutes
  make bench NAMES=dense ARGS=--quick                            smaller tensors and three repetitions
  make bench NAMES=dense ARGS='--workers 8 --link 100mbit'       a part: one row of the grid, and the loss experiment
  make bench NAMES=dense ARGS='--systems wiresum --link none'    Wiresum alone, over unshaped links
  make bench NAMES=dense ARGS='--systems openmpi,openmpi-wiresum --workers 8 --link 100mbit --only rate'
                                                           MPI_Allreduce, with and without the component of docs/mpi.md
  make bench NAMES=dense ARGS='--systems wiresum,wiresum-xdp,wiresum-dpdk,gloo --workers 4,8 --only rate'
                                                           each transport beside Gloo: rate, and CPU at a worker
  make bench NAMES=dense ARGS='--link none --mtu 9000'           unshaped links that carry jumbo frames
  make bench NAMES=dense ARGS='--only loss --loss 0.001,0.01'    two rates of loss

Needs root (network namespaces, tc), iproute2 and ethtool; Open MPI is measured if mpirun and mpicc are there.
Results: a table, build/bench/allreduce.json, build/bench/allreduce.png. docs/benchmark.md explains the columns.
"""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    systems: tuple[str, ...]
    workers: tuple[int, ...]
    links_mbit: tuple[float, ...]
    unshaped_workers: tuple[int, ...]
    unshaped_mtus: tuple[int, ...]
    bits: tuple[int, ...]
    losses: tuple[float, ...]
    bytes: int | None
    repetitions: int
    quick: bool
    experiments: tuple[str, ...]
    json: Path

    def bytes_at(self, link_mbit: float) -> int:
        if self.bytes is not None:
            return self.bytes
        return BYTES_AT_MBIT[link_mbit] // (QUICK_DIVISOR if self.quick else 1)

    def repetitions_of(self, experiment: Experiment) -> int:
        return self.repetitions * (UNSHAPED_REPETITIONS_FACTOR if experiment == "unshaped" else 1)

    def cases(
        self,
        experiment: Experiment,
        workers: int,
        link_mbit: float | None,
        *,
        loss: float = 0.0,
        mtu: int = MTU_BYTES,
    ) -> list[Case]:
        """One case for each system and number of bits, in the order in which they take turns."""
        if experiment == "latency":
            size = LATENCY_BYTES
        elif link_mbit is None:
            size = self.bytes or UNSHAPED_BYTES
        else:
            size = self.bytes_at(link_mbit)
        widths = self.bits if experiment == "rate" else (max(self.bits),)
        return [
            Case(experiment, name, workers, link_mbit, size, bits, loss, mtu=mtu)
            for name in self._systems_of(experiment)
            for bits in (widths if len(SYSTEMS[name].bits) > 1 else (32,))
        ]

    def _systems_of(self, experiment: Experiment) -> tuple[str, ...]:
        """Open MPI is left out where it says nothing that Gloo does not: its loopback would be shared memory."""
        leave_out = {"openmpi", "openmpi-wiresum"} if experiment in ("loss", "latency") else set()
        if experiment == "latency":
            leave_out |= {"wiresum-xdp", "wiresum-dpdk"}  # which do not go over loopback
        return tuple(name for name in self.systems if name not in leave_out)


def parse_options(arguments: Sequence[str]) -> Options:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    links = parsed.link or [*LINKS_MBIT, "none"]
    shaped = tuple(LINKS_MBIT[name] for name in links if name != "none")
    narrowed = parsed.link is not None or parsed.workers is not None
    if parsed.only:
        experiments = tuple(parsed.only)
    else:
        wanted = [("rate", bool(shaped)), ("loss", bool(shaped) and min(shaped) == min(LINKS_MBIT.values()))]
        wanted += [("unshaped", "none" in links and (parsed.link is not None or parsed.workers is None))]
        wanted += [("latency", not narrowed), ("numeric", not narrowed)]
        experiments = tuple(name for name, is_wanted in wanted if is_wanted)
    if parsed.mtu and "unshaped" not in experiments:
        parser.error("--mtu is for unshaped links, and this part of the benchmark has none: add --link none")
    return Options(
        systems=tuple(parsed.systems or SYSTEMS_BY_DEFAULT),
        workers=tuple(parsed.workers or WORKERS_DEFAULT),
        links_mbit=shaped or tuple(LINKS_MBIT.values()),
        unshaped_workers=tuple(parsed.workers or UNSHAPED_WORKERS_DEFAULT),
        unshaped_mtus=tuple(parsed.mtu or UNSHAPED_MTUS_DEFAULT),
        bits=tuple(parsed.bits or (32, 16, 8)),
        losses=tuple(loss for loss in parsed.loss if loss > 0),
        bytes=parsed.bytes,
        repetitions=parsed.repetitions or (3 if parsed.quick else 5),
        quick=parsed.quick,
        experiments=experiments,
        json=parsed.json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench NAMES=dense ARGS='...'",
        description="Sums the same tensors with Wiresum, Gloo and Open MPI, side by side, on a star of network "
        "namespaces whose links are as slow as asked, and checks every sum.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    systems_help = f"of {', '.join(SYSTEMS)} (default: {','.join(SYSTEMS_BY_DEFAULT)})"
    add("--systems", type=_list_of(_one_of(SYSTEMS)), metavar="A,B", help=systems_help)
    add("--workers", type=_list_of(_workers), metavar="N,N", help="numbers of workers (default: 2,4,8)")
    link_names = [*LINKS_MBIT, "none"]
    add("--link", type=_list_of(_one_of(link_names)), metavar="L,L", help="100mbit, 1gbit, none (default: all)")
    add("--mtu", type=_list_of(_mtu), metavar="B,B", help="bytes of packets, on unshaped links (default: 1500,9000)")
    add("--bits", type=_list_of(_bits), metavar="B,B", help="Wiresum's bits for a float, of 32, 16, 8 (all)")
    add(
        "--loss",
        type=_list_of(_fraction),
        default=(0.01,),
        metavar="P,P",
        help="fractions of packets lost (default: 0.01)",
    )
    add("--only", type=_list_of(_one_of(EXPERIMENTS)), metavar="E,E", help="experiments, see below")
    add("--bytes", type=_bytes, metavar="N", help="size of the tensor (default: 8 MB at 100mbit, 32 MB at 1gbit)")
    count_help = "for each case, after one that warms up; unshaped four times as many (default: 5)"
    add("--repetitions", type=_positive, metavar="N", help=count_help)
    add("--quick", action="store_true", help="a quarter of the bytes, three repetitions: for a first look")
    add("--json", type=Path, default=Path("build/bench/allreduce.json"), metavar="PATH", help="where to write records")
    return parser


def _list_of(item: Callable[[str], object]) -> Callable[[str], tuple[object, ...]]:
    """Parses `a,b,c`, keeping the order and dropping what is repeated."""

    def parse(text: str) -> tuple[object, ...]:
        return tuple(dict.fromkeys(item(word.strip()) for word in text.split(",")))

    return parse


def _one_of(names: Collection[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


def _workers(text: str) -> int:
    return _whole(text, 2, SWITCH_WORKERS_MAX, "a number of workers")


def _mtu(text: str) -> int:
    return _whole(text, MTU_BYTES_MIN, MTU_BYTES_MAX, "an MTU")


def _bits(text: str) -> int:
    if text not in ("32", "16", "8"):
        raise argparse.ArgumentTypeError(f"a float has 32, 16 or 8 bits, not {text}")
    return int(text)


def _fraction(text: str) -> float:
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction of packets: write 0.01 or 1%")
    return fraction


def _bytes(text: str) -> int:
    # A repetition must not outlast its limit, and a float has four bytes.
    return _whole(text, 4, 1_000_000_000, "a number of bytes") // 4 * 4


def _positive(text: str) -> int:
    return _whole(text, 1, 1000, "a number of repetitions")


def _whole(text: str, low: int, high: int, what: str) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low} to {high}")
    return int(text)
