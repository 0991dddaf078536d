"""One worker of test_faults.py: all-reduces and broadcasts over bad links, with every element checked."""

from __future__ import annotations

import json
import sys

import numpy as np
import numpy.typing as npt

from wiresum.agent import AgentConfig, Dtype, Operation, Region, Session
from wiresum_lab.patience import PATIENCE_S

ROUNDS = 12
# From less than a packet to several rounds of every slot.
SIZES = (1, 359, 5_000, 400_000)


def contribution(rank: int, number: int, size: int) -> npt.NDArray[np.int32]:
    """The contribution of a rank, which every worker can compute. Any 32-bit value may occur, so sums wrap around."""
    generator = np.random.default_rng([rank, number, size])
    return generator.integers(-(2**31), 2**31, size, dtype=np.int32)


class Worker:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.wrong = 0
        self._pending: list[tuple[Operation, npt.NDArray[np.int32], npt.NDArray[np.int32]]] = []

    def sum(self, number: int, size: int) -> None:
        values = contribution(self.session.rank, number, size)
        everybody = [contribution(rank, number, size) for rank in range(self.session.world_size)]
        address = values.ctypes.data
        self._submit([Region(address, address, size)], Dtype.I32, values, np.add.reduce(everybody, dtype=np.int32))

    def copy(self, number: int, size: int) -> None:
        """A broadcast; each worker in turn is the root."""
        root = number % self.session.world_size
        values = contribution(root, -number % 1000, size)
        if self.session.rank == root:
            self._submit([Region(values.ctypes.data, None, values.nbytes)], Dtype.RAW, values, values.copy())
        else:
            received = np.zeros_like(values)
            self._submit([Region(None, received.ctypes.data, values.nbytes)], Dtype.RAW, received, values)

    def settle(self) -> None:
        for operation, result, expected in self._pending:
            operation.wait(PATIENCE_S)
            self.wrong += int(np.count_nonzero(result != expected))
        self._pending.clear()

    def _submit(
        self, regions: list[Region], dtype: Dtype, result: npt.NDArray[np.int32], expected: npt.NDArray[np.int32]
    ) -> None:
        self._pending.append((self.session.submit(regions, dtype=dtype, notify=False), result, expected))


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    session = Session.join(AgentConfig.from_environment(), job_name="faults", rank=rank, world_size=size)
    worker = Worker(session)
    for number in range(1, ROUNDS + 1):
        for elements in SIZES:
            worker.sum(number, elements)
            worker.copy(number, elements)
        worker.settle()
    session.submit([], dtype=Dtype.I32, notify=False).wait(PATIENCE_S)
    stats = session.stats()
    report = {"wrong": worker.wrong, "retransmissions": stats.retransmissions, "results": stats.results}
    print(json.dumps(report | {"transport": stats.transport, "sharing": stats.sharing}))
    session.close()


if __name__ == "__main__":
    main()
