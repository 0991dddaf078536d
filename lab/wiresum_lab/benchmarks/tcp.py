"""A job beside TCP on one link: `make bench NAMES=tcp ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) the workers sum one tensor again and again, over Wiresum or
over Gloo. Further hosts, each on a link of its own, send TCP to worker 0 as fast as the kernel lets them. So they meet
the job in one queue: that of the switch's port to worker 0, which has the RESULTs and all these connections. What it
has no room for is dropped, whosesoever it is.

The switch routes all connections. Bridged, a packet would belong to its sender's socket until it is received, and the
kernel holds a socket back that has more than about a millisecond of packets in its own host's queues: here that would
be the switch's queue, which such connections never fill.

A job is fair to TCP if it has what one more connection would have. Both are measured over the same seconds, once the
connections have found their rates; the time between two sums counts, since TCP takes the link then.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum.join.constants import AGGREGATORS_MAX
from wiresum_lab.benchmarks.program import BLOCK, parser_of, run, sum_once, table_of
from wiresum_lab.benchmarks.switches.cases import RANK, choice
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import STAR_DEVICE, Star
from wiresum_lab.namespaces.tcp_flow import mbit_per_s
from wiresum_lab.processes import Program
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site

WIRESUM = "wiresum"
FLOW = "wiresum_lab.namespaces.tcp_flow"


@dataclass
class Case:
    """The job's goodput, and that of all connections together."""

    group: str
    flows: int
    job_mbit: float
    tcp_mbit: float
    retransmissions: int

    @property
    def to_one_flow(self) -> float | None:
        """The job's goodput over a connection's."""
        return self.job_mbit / (self.tcp_mbit / self.flows) if self.flows else None

    def record(self) -> dict[str, Any]:
        return vars(self) | {"to_one_flow": self.to_one_flow}


def started(star: Star, options: argparse.Namespace) -> Ranks:
    def start(ranks: Ranks) -> None:
        control = ranks.start_switch(star.switch, "--multicast", "239.192.0.0")
        variables = {"WIRESUM_SLOTS": str(options.slots)}
        ranks.start_torch(
            RANK,
            STAR_DEVICE,
            choice(WIRESUM, switch=control),
            variables=lambda worker: worker.variables(control) | variables,
        )

    return Ranks("tcp", Site.of_star(star), options.logs, start)


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    with (
        Star(options.workers, Link(options.link_mbit), aggregators=max(options.flows)) as star,
        started(star, options) as ranks,
    ):
        route(star)
        ranks.command("prepare", options.bytes // 4, BLOCK, 0.0, 0)
        for flows in options.flows:
            for group in (WIRESUM, GLOO):
                cases.append(beside(star, ranks, group, flows, options))
                console.print(f"{group} beside {flows} connections: {cases[-1].job_mbit:.1f} Mbit/s")
    return cases


def route(star: Star) -> None:
    """What hosts send to workers is routed by the switch."""
    star.switch.run(["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])
    for interface in ("all", STAR_DEVICE):  # else it tells the hosts of the way without it
        star.switch.run(["sysctl", "-q", "-w", f"net.ipv4.conf.{interface}.send_redirects=0"])
    for host in star.leaves:
        for worker in star.workers:
            if worker is not host:
                way = [f"{worker.address}/32", "via", star.switch.address, "dev", STAR_DEVICE]
                host.run(["ip", "route", "add", *way])


def beside(star: Star, ranks: Ranks, group: str, flows: int, options: argparse.Namespace) -> Case:
    """Sums for some seconds beside so many connections."""
    target = star.workers[0]
    command = [sys.executable, "-m", FLOW]
    with contextlib.ExitStack() as running:
        sink = running.enter_context(
            Program([*command, "sink", target.address], options.logs / "tcp-sink.log", at=target.popen)
        )
        sink.await_text(r"\d")
        for index, host in enumerate(star.aggregators[:flows]):
            source = [*command, "source", target.address, options.congestion_control]
            running.enter_context(Program(source, options.logs / f"tcp-source{index}.log", at=host.popen))
        sums_for(ranks, group, options.settle_seconds)
        begin_s = time.monotonic()
        sums, retransmissions = sums_for(ranks, group, options.seconds)
        end_s = time.monotonic()
        job_mbit = sums * options.bytes * 8 / (end_s - begin_s) / 1e6
        tcp_mbit = mbit_per_s(sink.said(), begin_s, end_s)
    return Case(group, flows, job_mbit, tcp_mbit, retransmissions)


def sums_for(ranks: Ranks, group: str, seconds: float) -> tuple[int, int]:
    """Returns how many sums it were, and what the workers have sent again for them."""
    sums = again = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        _, reports = sum_once(ranks, group)
        again += sum(report["retransmissions"] for report in reports)
        sums += 1
    return sums, again


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"{options.workers} workers and connections of {options.congestion_control} on links of "
        f"{options.link_mbit:g} Mbit/s; {options.bytes / 1e6:g} MB fp32, {options.slots} slots",
        ("", "connections", "job, Mbit/s", "one connection", "job to one connection", "sent again"),
    )
    for case in cases:
        table.add_row(
            case.group,
            str(case.flows),
            f"{case.job_mbit:.1f}",
            f"{case.tcp_mbit / case.flows:.1f}" if case.flows else "-",
            f"{case.to_one_flow:.2f}" if case.flows else "-",
            str(case.retransmissions) if case.group == WIRESUM else "-",
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/tcp.json", workers=2)
    parser.add_argument("--bytes", type=int, default=8_000_000, help="bytes of the tensor (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=512, help="that the job asks for (default: %(default)s)")
    parser.add_argument("--flows", type=int, nargs="+", default=[0, 1, 4], help="numbers of connections")
    parser.add_argument(
        "--congestion-control", default="cubic", help="of the connections, the kernel's word (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case (default: %(default)s)")
    parser.add_argument(
        "--settle-seconds", type=float, default=10.0, help="before that, for the rates to settle (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if not all(0 <= count <= AGGREGATORS_MAX for count in options.flows):
        parser.error(f"there can be 0 to {AGGREGATORS_MAX} connections")
    return options


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=Case.record, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
