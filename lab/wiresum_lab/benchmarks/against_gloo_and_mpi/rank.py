"""One rank of the benchmark, for the systems that PyTorch drives: wiresum and gloo.

    prepare LANE_BITS ELEMENTS REPETITION      tensors are filled
    go                                         gives times, wrong elements and retransmissions of an all-reduce

Times are of CLOCK_MONOTONIC, which namespaces of one machine share. Retransmissions are -1 if the system has no
counter.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.benchmarks.against_gloo_and_mpi import pattern
from wiresum_lab.ranks.rank import TIMEOUT, main


class Rank:
    """The process groups of a system, one for each lane width, and the tensors of the current case."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.groups: dict[int, dist.ProcessGroup | None] = {}
        torch.set_num_threads(1)
        wiresum.torch.register()
        dist.init_process_group(system, timeout=TIMEOUT)
        self.groups[32] = dist.group.WORLD
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.own = pattern.table(self.rank)
        self.expected = sum((pattern.table(rank) for rank in range(1, self.world_size)), pattern.table(0))
        self.tensor = torch.empty(0)
        self.repetition = 0
        self.bits = 32

    def prepare(self, bits: int, elements: int, repetition: int) -> None:
        if bits not in self.groups:
            options = wiresum.torch.Options(bits=bits)
            self.groups[bits] = dist.new_group(backend=self.system, timeout=TIMEOUT, pg_options=options)
        if self.tensor.numel() != elements:
            self.tensor = torch.empty(elements)
        pattern.fill(self.tensor.numpy(), self.own, repetition)
        self.bits, self.repetition = bits, repetition

    def go(self) -> dict[str, int]:
        group = self.groups[self.bits]
        retransmissions = self._retransmissions()
        cpu_ns, start_ns = time.process_time_ns(), time.monotonic_ns()
        dist.all_reduce(self.tensor, group=group)
        end_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns() - cpu_ns
        if retransmissions >= 0:
            retransmissions = self._retransmissions() - retransmissions
        wrong = pattern.wrong_elements(self.tensor.numpy(), self.expected, self.repetition)
        return {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "cpu_ns": cpu_ns,
            "wrong_elements": wrong,
            "retransmissions": retransmissions,
        }

    def _retransmissions(self) -> int:
        """This worker's retransmissions in the current group so far; -1 if the system has no counter."""
        if self.system != "wiresum":
            return -1
        network = wiresum.torch.stats(self.groups[self.bits]).network
        return -1 if network is None else network.retransmissions


if __name__ == "__main__":
    main(Rank)
