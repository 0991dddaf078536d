"""Aggregators over process groups of `torch.distributed`: any backend's, and Wiresum's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Bytes, Int32Array, Vector


class GroupAggregator(Aggregator):
    """An aggregator over a process group whose backend has int32 sums, maxima and all-gathers of CPU tensors.

    RuntimeError if there is no process group, or if it has no backend for CPU tensors.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group if group is not None else dist.group.WORLD
        if self._group is None:
            raise RuntimeError("there is no process group: call torch.distributed.init_process_group first")
        if torch.device("cpu") not in self._group._device_types:
            raise RuntimeError(
                "compressed gradients travel as CPU tensors, for which this process group has no backend: name one in "
                "torch.distributed.init_process_group, as in 'wiresum' or 'cpu:gloo,cuda:nccl'"
            )
        super().__init__(dist.get_world_size(self._group), [dist.get_rank(self._group)])
        self.global_ranks = dist.get_process_group_ranks(self._group)

    def prefers_sum(self, words_sum: int, words_each: int) -> bool:
        """True if a sum is faster than a gather, as in the base class, but for a ring: a sum passes each link twice, a
        gather once."""
        return 2 * words_sum < self.workers * words_each

    def _sum_words(self, contributions: Sequence[Int32Array]) -> Int32Array:
        words = torch.from_numpy(contributions[0].copy())
        dist.all_reduce(words, group=self._group)
        result: Int32Array = words.numpy()
        return result

    def _maximum(self, contributions: Sequence[Vector]) -> tuple[Vector, int]:
        values = torch.from_numpy(contributions[0].copy())
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group)
        result: Vector = values.numpy()
        return result, result.nbytes

    def _gather(self, contributions: Sequence[Bytes]) -> list[Bytes]:
        mine = torch.from_numpy(contributions[0].copy())
        gathered = torch.empty(self.workers * mine.numel(), dtype=torch.uint8, device="cpu")
        dist.all_gather_into_tensor(gathered, mine, group=self._group)
        return list(gathered.numpy().reshape(self.workers, -1))

    def _deliver(
        self, routes: Sequence[tuple[int, int]], parcels: Mapping[int, Bytes], nbytes: int
    ) -> dict[int, Bytes]:
        (me,) = self.local
        works, arriving = [], {}
        for source, destination in routes:
            if source == me:
                parcel = torch.from_numpy(parcels[me].copy())
                works.append(dist.isend(parcel, group=self._group, group_dst=destination))
            if destination == me:
                arriving[me] = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
                works.append(dist.irecv(arriving[me], group=self._group, group_src=source))
        for work in works:
            if work is not None:
                work.wait()
        return {destination: parcel.numpy() for destination, parcel in arriving.items()}


class SwitchAggregator(GroupAggregator):
    """An aggregator over a group of the wiresum backend, in which the switch adds the integers.

    A switch has no maximum. Maxima of compressors have few values, so each worker gathers the values of all workers
    through the switch, in one round trip.
    """

    prefers_sum = Aggregator.prefers_sum

    def _maximum(self, contributions: Sequence[Vector]) -> tuple[Vector, int]:
        parcels = self._gather([contributions[0].view(np.uint8)])
        result: Vector = np.maximum.reduce([parcel.view(np.float64) for parcel in parcels])
        return result, sum(parcel.nbytes for parcel in parcels)


def aggregator_of(group: dist.ProcessGroup | None = None) -> GroupAggregator:
    """The aggregator for `group`; None means the default group."""
    return SwitchAggregator(group) if dist.get_backend(group) == "wiresum" else GroupAggregator(group)
