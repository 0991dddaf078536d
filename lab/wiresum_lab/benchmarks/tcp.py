"""Measures a job beside TCP on one link: `make bench NAMES=tcp ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) the workers sum one tensor again and again, over Wiresum or
over Gloo. Further hosts, each on a link of its own, send TCP to worker 0 as fast as the kernel lets them. These
connections and the job's RESULTs share one queue, of the switch's port to worker 0. A full queue drops packets of
either.

The switch routes all connections. If it bridged them, a packet would belong to its sender's socket until it is
received, and the kernel holds back a socket with more than about a millisecond of packets in its own host's queues: the
sockets would never fill the switch's queue.

A job is fair to TCP if its share of the link is that of one more connection. Job and connections are measured over the
same seconds, once the connections have found their rates; the time between two sums counts, since TCP takes the link
then.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence

from wiresum.join.constants import AGGREGATORS_MAX
from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.program import BLOCK, Case, Record, say, sum_once
from wiresum_lab.benchmarks.switches import cases
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import STAR_DEVICE, Star
from wiresum_lab.namespaces.tcp_flow import mbit_per_s
from wiresum_lab.processes import Program
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site

WIRESUM = "wiresum"
FLOW = "wiresum_lab.namespaces.tcp_flow"


def started(star: Star, options: argparse.Namespace) -> Ranks:
    def start(ranks: Ranks) -> None:
        control = ranks.start_switch(star.switch, "--multicast", "239.192.0.0")
        ranks.start_torch(
            cases.RANK,
            STAR_DEVICE,
            cases.choice(WIRESUM, switch=control, slots=options.slots),
            variables=lambda worker: worker.variables(control),
        )

    return Ranks("tcp", Site.of_star(star), options.logs, start)


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    with (
        Star(options.workers, Link(options.link_mbit), aggregators=max(options.flows)) as star,
        started(star, options) as ranks,
    ):
        route(star)
        ranks.command("prepare", options.bytes // 4, BLOCK, 0.0, 0)
        names = ("workers", "link_mbit", "bytes", "slots", "congestion_control")
        alike = {name: getattr(options, name) for name in names}
        for flows in options.flows:
            for group in (WIRESUM, GLOO):
                measured.append(Case({"group": group, "flows": flows} | alike))
                measured[-1].repetitions.append(beside(star, ranks, group, flows, options))
                say(f"{group} beside {flows} connections: {measured[-1].median('job_mbit'):.1f} Mbit/s")
    return measured


def route(star: Star) -> None:
    """Makes the switch route packets from hosts to workers."""
    star.switch.run(["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])
    for interface in ("all", STAR_DEVICE):  # otherwise the switch tells hosts the direct way
        star.switch.run(["sysctl", "-q", "-w", f"net.ipv4.conf.{interface}.send_redirects=0"])
    for host in star.leaves:
        for worker in star.workers:
            if worker is not host:
                way = [f"{worker.address}/32", "via", star.switch.address, "dev", STAR_DEVICE]
                host.run(["ip", "route", "add", *way])


def beside(star: Star, ranks: Ranks, group: str, flows: int, options: argparse.Namespace) -> Record:
    """Sums for some seconds beside `flows` connections, and measures both."""
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
    return {"job_mbit": job_mbit, "tcp_mbit": tcp_mbit, "sent_again": retransmissions}


def sums_for(ranks: Ranks, group: str, seconds: float) -> tuple[int, int]:
    """Sums for some seconds. Returns the number of sums and the workers' retransmissions."""
    sums = again = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        _, reports = sum_once(ranks, group)
        again += sum(report["retransmissions"] for report in reports)
        sums += 1
    return sums, again


def figures(case: Case, _: Sequence[Case]) -> Record:
    """The columns of a case. `to_one_flow` is the job's goodput divided by that of a connection."""
    (found,) = case.repetitions
    one_mbit = found["tcp_mbit"] / case["flows"] if case["flows"] else None
    return found | {"one_flow_mbit": one_mbit, "to_one_flow": one_mbit and found["job_mbit"] / one_mbit}


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("tcp", __doc__, workers=2)
    parser.add("--bytes", 8_000_000, "bytes of the tensor")
    parser.add("--slots", 512, "slots that the job asks for")
    parser.add("--flows", [0, 1, 4], "numbers of connections", choices=range(AGGREGATORS_MAX + 1), metavar="N")
    parser.add("--congestion-control", "cubic", "the kernel's name for the connections' congestion control")
    parser.add("--seconds", 20.0, "duration of each case")
    parser.add("--settle-seconds", 10.0, "time before each case, for the rates to settle")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
