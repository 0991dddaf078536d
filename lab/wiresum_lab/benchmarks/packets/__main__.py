"""Measures the cost of a packet, by layer and by transport; needs root and two cores: make bench NAMES=packets.

A switch of one job is pinned to one core, and eight workers' state machines, in one thread, to another
(`packet_bench.cpp`). Over each transport the workers all-reduce for a while; then one worker's round trips are timed,
while both ends poll. During the all-reduces, a switch over sockets sleeps when it has nothing to do, since a core that
polls sockets keeps the kernel from delivering packets to it. The kernel's share is part of the cost, so the busy time
of the two cores is measured, whatever kept them busy: nothing else should run on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.program import Options, Record, keep, say, table

SWITCH_ADDRESS, WORKER_ADDRESS = "10.213.0.1", "10.213.0.2"
WORKERS = 8
POLL_US = 1_000_000
START_TIMEOUT_S = 30.0
RUN_TIMEOUT_S = 120.0
PLAIN = "UDP, without offloads"


class UnavailableError(Exception):
    """A transport is not available on this machine; the text has the reason."""


@dataclass(frozen=True)
class Way:
    """A pair of transports, and the link under them."""

    name: str
    ends: tuple[str, str]
    """Transport at the switch, and transport at the workers."""
    on_veth: bool


@dataclass(frozen=True)
class Result:
    """The figures of one way. Workers count datagrams, in both directions."""

    way: str
    transport: str
    datagrams: int
    seconds: float
    core_seconds: float
    goodput_gbit: float
    """Gbit/s of fp32 at each worker."""
    repeats: int
    round_trip_us: float

    @property
    def rate(self) -> float:
        """Datagrams for each second that a core was busy, at either end."""
        return self.datagrams / self.core_seconds


def ways(memif: Path) -> list[Way]:
    eal = "dpdk:--no-pci --no-huge -m 512"
    memif_of = f"{eal} --vdev=net_memif0,socket={memif},socket-abstract=no,role="
    packet_of = f"{eal} --vdev=net_af_packet0,iface="
    return [
        Way(PLAIN, ("udp:plain", "udp:plain"), on_veth=True),
        Way("UDP, with offloads", ("udp", "udp"), on_veth=True),
        Way("AF_XDP", ("xdp:wsp-s", "xdp:wsp-w"), on_veth=True),
        Way("DPDK, net_af_packet", (f"{packet_of}wsp-s", f"{packet_of}wsp-w"), on_veth=True),
        Way("DPDK, net_memif", (f"{memif_of}server", f"{memif_of}client"), on_veth=False),
    ]


class Namespaces:
    """A context manager for two network namespaces with a veth between them."""

    def __init__(self, *, has_addresses: bool) -> None:
        self.switch, self.worker = f"wsp{os.getpid()}s", f"wsp{os.getpid()}w"
        self._has_addresses = has_addresses

    def __enter__(self) -> Namespaces:
        try:
            for name in (self.switch, self.worker):
                _ip("netns", "add", name)
            _ip("-n", self.switch, "link", "add", "wsp-s", "type", "veth", "peer", "wsp-w", "netns", self.worker)
            ends = ((self.switch, "wsp-s", SWITCH_ADDRESS), (self.worker, "wsp-w", WORKER_ADDRESS))
            for name, device, address in ends:
                if self._has_addresses:
                    _ip("-n", name, "address", "add", f"{address}/24", "dev", device)
                _ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.switch, self.worker):
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def running_switch(command: Sequence[str]) -> Iterator[int]:
    """Runs a switch until the block ends, and gives its port. Raises `UnavailableError`."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = process.stdout.readline().split()
            if said[:1] != ["ready"]:
                raise UnavailableError(process.stderr.read().strip())
            yield int(said[1])
        finally:
            process.stdin.close()
            try:
                process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def measure(bench: Path, way: Way, seconds: float, cores: Sequence[int]) -> Result:
    """Measures one way. Raises `UnavailableError` if its transport is not available."""
    with contextlib.ExitStack() as cleanup:
        prefixes: tuple[list[str], list[str]] = ([], [])
        if way.on_veth:
            spaces = cleanup.enter_context(Namespaces(has_addresses=not way.ends[0].startswith("dpdk")))
            prefixes = (["ip", "netns", "exec", spaces.switch], ["ip", "netns", "exec", spaces.worker])
        stream = _run(bench, way, prefixes, WORKERS, seconds, cores)
        trip = _run(bench, way, prefixes, 1, 0.1, cores)
    return Result(
        way.name,
        stream["transport"],
        stream["datagrams"],
        stream["seconds"],
        stream["core_seconds"],
        stream["goodput_gbit"],
        stream["repeats"],
        trip["round_trip_ns"] * 1e-3,
    )


def _run(
    bench: Path, way: Way, prefixes: tuple[list[str], list[str]], workers: int, seconds: float, cores: Sequence[int]
) -> dict[str, Any]:
    job = ["--workers", str(workers)]
    switch = [*prefixes[0], "taskset", "-c", str(cores[0]), str(bench), "switch", "--transport", way.ends[0]]
    switch += job
    spin_us = 0 if way.ends[0].startswith("udp") and workers > 1 else POLL_US
    switch += ["--address", SWITCH_ADDRESS, "--workers-at", WORKER_ADDRESS, "--spin-us", str(spin_us)]
    with running_switch(switch) as port:
        at = ["--address", WORKER_ADDRESS, "--switch-at", SWITCH_ADDRESS, "--switch-port", str(port)]
        return _run_workers(bench, way, prefixes[1], [*job, *at], seconds, cores)


def _run_workers(
    bench: Path, way: Way, prefix: list[str], options: list[str], seconds: float, cores: Sequence[int]
) -> dict[str, Any]:
    command = [*prefix, "taskset", "-c", str(cores[1]), str(bench), "workers", "--transport", way.ends[1], *options]
    command += ["--seconds", str(seconds), "--cores", ",".join(map(str, cores))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError("the workers did not come to an end") from None
    if done.returncode != 0:
        raise UnavailableError(done.stderr.strip())
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def layers_of(bench: Path, core: int) -> dict[str, float]:
    """Nanoseconds of a packet in each layer."""
    done = subprocess.run(
        ["taskset", "-c", str(core), str(bench), "layers"], capture_output=True, text=True, check=True
    )
    costs: dict[str, float] = json.loads(done.stdout)
    return costs


def records_of(results: Sequence[Result]) -> list[Record]:
    plain = next((result for result in results if result.way == PLAIN), None)
    return [
        asdict(result)
        | {
            "a_second": result.datagrams / result.seconds,
            "a_core_second": result.rate,
            "over_plain": plain and result.rate / plain.rate,
            "sent_again": result.repeats / max(1, result.datagrams),
        }
        for result in results
    ]


def built(repository: Path) -> Path:
    """Builds this repository's `packet_bench`, and returns its path."""
    for command in (["cmake", "--preset", "bench"], ["cmake", "--build", "--preset", "bench"]):
        targets = ["--target", "packet_bench"] if "--build" in command else []
        subprocess.run([*command, *targets], cwd=repository, check=True, stdout=subprocess.DEVNULL)
    return repository / "build/bench/lab/wiresum_lab/benchmarks/packets/packet_bench"


def main(arguments: Sequence[str]) -> int:
    parser = Options("packets", __doc__, workers=None, link_mbit=None)
    parser.add_argument("--bench", type=Path, help="packet_bench; without it, it is built in build/bench")
    parser.add("--seconds", 3.0, "duration of each stream")
    parser.add("--repetitions", 3, "repetitions, in turns; medians count")
    parser.add("--cores", [0, 1], "cores of switch and workers", nargs=2)
    parser.add("--only", "", "transports whose names have this in them, like DPDK")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        parser.error("this makes network namespaces: run it as root")
    if len(os.sched_getaffinity(0)) < len(options.cores):
        parser.error("this needs two cores: one for the switch, one for the workers")
    options.bench = options.bench or built(REPOSITORY)
    costs = layers_of(options.bench, options.cores[1])
    say(table([{"layer": layer, "ns, median": cost} for layer, cost in costs.items()]))
    measured: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = [way for way in ways(Path(folder) / "memif.sock") if options.only.lower() in way.name.lower()]
        for repetition in range(options.repetitions):
            for way in chosen:
                if repetition != 0 and way.name not in measured:
                    continue
                try:
                    result = measure(options.bench, way, options.seconds, options.cores)
                    measured.setdefault(way.name, []).append(result)
                except UnavailableError as error:
                    measured.pop(way.name, None)
                    say(f"left out: {way.name}: {error}")
    # The figures of a way are those of its run with the median rate.
    results = [sorted(runs, key=lambda result: result.rate)[len(runs) // 2] for runs in measured.values()]
    if not results:
        return 1
    keep(options.json, records_of(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
