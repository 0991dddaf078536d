"""One rank of the benchmark, for the systems that PyTorch drives: wiresum and gloo.

`allreduce_bench.py` starts it in a worker's namespace and tells it what to do over a Unix socket, which namespaces
share and which takes nothing from the links. One line is one message; `cohort.py` is the other end:

    hello RANK                                        the process group is there
    prepare LANE_BITS ELEMENTS REPETITION  -> ready   tensors are filled
    go            -> done START_NS END_NS CPU_NS WRONG_ELEMENTS RETRANSMISSIONS
    latency ELEMENTS COUNT                 -> latency MEDIAN_NS
    quit

Times are of CLOCK_MONOTONIC, which namespaces of one machine share. -1 retransmissions: the system does not say.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from datetime import timedelta

import torch  # finds wiresum's backend by its entry point, where wiresum is installed
import torch.distributed as dist

from wiresum_lab.benchmarks import allreduce_pattern as pattern

LATENCY_WARM_UP = 50


class Rank:
    """A process group, or one for each lane width, and the tensors of the current case."""

    def __init__(self, system: str, timeout_s: float) -> None:
        self.system = system
        self.timeout = timedelta(seconds=timeout_s)
        self.groups: dict[int, dist.ProcessGroup | None] = {}
        torch.set_num_threads(1)
        dist.init_process_group(system, timeout=self.timeout)
        self.groups[32] = dist.group.WORLD
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.own = pattern.table(self.rank)
        self.expected = sum((pattern.table(rank) for rank in range(1, self.world_size)), pattern.table(0))
        self.tensor = torch.empty(0)
        self.repetition = 0
        self.lane_bits = 32

    def prepare(self, lane_bits: int, elements: int, repetition: int) -> None:
        if lane_bits not in self.groups:
            from wiresum.torch import Options

            options = Options(bits=lane_bits)
            self.groups[lane_bits] = dist.new_group(backend=self.system, timeout=self.timeout, pg_options=options)
        if self.tensor.numel() != elements:
            self.tensor = torch.empty(elements)
        pattern.fill(self.tensor.numpy(), self.own, repetition)
        self.lane_bits, self.repetition = lane_bits, repetition

    def go(self) -> str:
        group = self.groups[self.lane_bits]
        retransmissions = self._retransmissions()
        cpu_ns, start_ns = time.process_time_ns(), time.monotonic_ns()
        dist.all_reduce(self.tensor, group=group)
        end_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns() - cpu_ns
        if retransmissions >= 0:
            retransmissions = self._retransmissions() - retransmissions
        wrong = pattern.wrong_elements(self.tensor.numpy(), self.expected, self.repetition)
        return f"done {start_ns} {end_ns} {cpu_ns} {wrong} {retransmissions}"

    def latency(self, elements: int, count: int) -> str:
        tensor = torch.ones(elements)
        times_ns = []
        for i in range(LATENCY_WARM_UP + count):
            tensor.fill_(1.0)
            start_ns = time.monotonic_ns()
            dist.all_reduce(tensor)
            if i >= LATENCY_WARM_UP:
                times_ns.append(time.monotonic_ns() - start_ns)
        if not bool((tensor == float(self.world_size)).all()):
            raise RuntimeError(f"a small all-reduce over {self.system} gave a wrong sum")
        return f"latency {round(statistics.median(times_ns))}"

    def close(self) -> None:
        dist.destroy_process_group()

    def _retransmissions(self) -> int:
        """Of this worker, in the current group, so far."""
        if self.system != "wiresum":
            return -1
        from wiresum.torch import stats

        network = stats(self.groups[self.lane_bits]).network
        return -1 if network is None else network.retransmissions


def serve(rank: Rank, control: socket.socket) -> None:
    """Answers commands until `quit`, or until the benchmark is gone."""
    stream = control.makefile("rw", encoding="utf-8", newline="\n")

    def answer(text: str) -> None:
        stream.write(text + "\n")
        stream.flush()

    answer(f"hello {rank.rank}")
    for line in stream:
        match line.split():
            case ["prepare", lane_bits, elements, repetition]:
                rank.prepare(int(lane_bits), int(elements), int(repetition))
                answer("ready")
            case ["go"]:
                answer(rank.go())
            case ["latency", elements, count]:
                answer(rank.latency(int(elements), int(count)))
            case ["quit"]:
                return
            case _:
                raise ValueError(f"the benchmark sent a command that a rank does not know: {line!r}")


def main(arguments: list[str]) -> None:
    if len(arguments) != 3:
        sys.exit("usage: allreduce_rank.py SYSTEM CONTROL_SOCKET TIMEOUT_S (allreduce_bench.py starts it)")
    system, path, timeout_s = arguments
    if system == "wiresum":
        import wiresum.torch  # noqa: F401  (registers the backend in a source tree that was never installed)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.connect(path)
        rank = Rank(system, float(timeout_s))
        serve(rank, control)
        rank.close()


if __name__ == "__main__":
    main(sys.argv[1:])
