"""The interface between compressors and the network, and an implementation for simulations in one process.

`local` are the workers in this process: one in a real job, all of them in a simulation. Every method takes the
contributions of the local workers and returns what each worker receives, so the same compressors serve both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wiresum.agent.agreement import require_agreement
from wiresum.compress import native
from wiresum.compress.arrays import Bytes, Int32Array, Vector

PARCEL_BYTES_MAX = 2**32
"""Upper bound on the parcel of one worker in a gather. Other machines announce the length, and so much memory is
allocated."""


@dataclass
class Traffic:
    """Payload sent and received by one worker (the mean over local workers), in bytes without headers."""

    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    rounds: int = 0

    def add(self, sent_bytes: float, received_bytes: float) -> None:
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes
        self.rounds += 1


class Aggregator(ABC):
    """The collectives that compressors use. All workers call the same methods with the same sizes in the same order."""

    def __init__(self, workers: int, local: Sequence[int]) -> None:
        self.workers = workers
        self.local = tuple(local)
        self.global_ranks: Sequence[int] = ()
        """The workers' ranks in the whole program, by worker, for errors; empty: the same."""
        self.traffic = Traffic()

    def sum(self, contributions: Sequence[Int32Array], bits: int) -> Int32Array:
        """The element-wise sum over all workers, in `bits` bits each; exact if every sum fits (packing.py)."""
        words = self._sum_words([native.pack(values, bits) for values in contributions])
        self.traffic.add(words.nbytes, words.nbytes)
        return native.unpack(words, bits, len(contributions[0]))

    def maximum(self, contributions: Sequence[Vector]) -> Vector:
        """The element-wise maximum over all workers, in float64; NaN where any worker has a NaN."""
        result, received_bytes = self._maximum([values.astype(np.float64) for values in contributions])
        self.traffic.add(result.nbytes, received_bytes)
        return result

    def gather(self, contributions: Sequence[Bytes], *, sizes_equal: bool = True) -> list[Bytes]:
        """The bytes of all workers, by worker. `sizes_equal` False allows different lengths, and takes another round.

        ValueError if a worker announces more than PARCEL_BYTES_MAX bytes.
        """
        if sizes_equal:
            return self._gather_counted(contributions)
        sizes = self._gather_counted([np.array([len(mine)], "<i8").view(np.uint8) for mine in contributions])
        lengths = [int(size.view("<i8")[0]) for size in sizes]
        if not all(0 <= length <= PARCEL_BYTES_MAX for length in lengths):
            raise ValueError(f"workers say that they send {lengths} bytes, and {PARCEL_BYTES_MAX} is the most")
        longest = max(lengths)
        padded = [np.concatenate([mine, np.zeros(longest - len(mine), np.uint8)]) for mine in contributions]
        return [parcel[:length] for parcel, length in zip(self._gather_counted(padded), lengths, strict=True)]

    def prefers_sum(self, words_sum: int, words_each: int) -> bool:
        """True if a sum of `words_sum` words is faster than a gather of `words_each` words of each worker.

        All workers get the same answer. This implementation, for a network that adds, compares the bytes that each link
        carries down.
        """
        return words_sum < self.workers * words_each

    def deliver(self, routes: Sequence[tuple[int, int]], parcels: Mapping[int, Bytes], nbytes: int) -> dict[int, Bytes]:
        """Sends the parcels of local sources, each of `nbytes` bytes. Returns the parcels for local destinations."""
        delivered = self._deliver(routes, parcels, nbytes)
        sent = sum(source in self.local for source, _ in routes) * nbytes
        self.traffic.add(sent / len(self.local), len(delivered) * nbytes / len(self.local))
        return delivered

    def require_agreement(self, what: str, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Calls `wiresum.agent.agreement.require_agreement` among the workers, without counting its traffic."""

        def gather(message: bytes) -> list[bytes]:
            if len(self.local) == self.workers:  # one process describes all of them
                return [message]
            return [bytes(parcel) for parcel in self._gather([np.frombuffer(message, np.uint8)])]

        require_agreement(what, describe, gather, self.global_ranks)

    def _gather_counted(self, contributions: Sequence[Bytes]) -> list[Bytes]:
        gathered = self._gather(contributions)
        self.traffic.add(len(contributions[0]), sum(len(parcel) for parcel in gathered))
        return gathered

    @abstractmethod
    def _sum_words(self, contributions: Sequence[Int32Array]) -> Int32Array:
        """The element-wise sum over all workers, modulo 2^32."""

    @abstractmethod
    def _maximum(self, contributions: Sequence[Vector]) -> tuple[Vector, int]:
        """The element-wise maximum over all workers, and the bytes that each worker received to compute it."""

    @abstractmethod
    def _gather(self, contributions: Sequence[Bytes]) -> list[Bytes]: ...

    @abstractmethod
    def _deliver(
        self, routes: Sequence[tuple[int, int]], parcels: Mapping[int, Bytes], nbytes: int
    ) -> dict[int, Bytes]: ...


class InProcess(Aggregator):
    """An aggregator for a simulation with all workers in this process. It adds words as a switch does: modulo 2^32."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, range(workers))

    def _sum_words(self, contributions: Sequence[Int32Array]) -> Int32Array:
        cells = np.zeros(len(contributions[0]), np.uint32)
        for words in contributions:
            cells += words.view(np.uint32)
        return cells.view(np.int32)

    def _maximum(self, contributions: Sequence[Vector]) -> tuple[Vector, int]:
        result: Vector = np.maximum.reduce(list(contributions))
        return result, result.nbytes

    def _gather(self, contributions: Sequence[Bytes]) -> list[Bytes]:
        return list(contributions)

    def _deliver(
        self, routes: Sequence[tuple[int, int]], parcels: Mapping[int, Bytes], nbytes: int
    ) -> dict[int, Bytes]:
        return {destination: parcels[source] for source, destination in routes}
