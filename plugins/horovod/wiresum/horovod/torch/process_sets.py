"""Sets of ranks that run collectives among themselves. Each set is a job of its own at the switch."""

from __future__ import annotations

from collections.abc import Iterable

from wiresum.horovod.torch import runtime


class ProcessSet:
    """A set of ranks for `init` or `add_process_set`, which set `process_set_id`."""

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise ValueError("a ProcessSet takes ranks, not an MPI communicator")
        members = sorted(ranks)
        if any(not isinstance(rank, int) for rank in members):
            raise ValueError("a ProcessSet takes ranks, which are integers")
        self.ranks: list[int] | None = members
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """The number of ranks in the set; None before the set is added."""
        return len(self.ranks) if self.process_set_id is not None and self.ranks is not None else None

    def rank(self) -> int | None:
        """This process's rank in the set; None before the set is added, -1 if the process is not in the set."""
        if self.process_set_id is None or self.ranks is None:
            return None
        mine = runtime.current().place.rank
        return self.ranks.index(mine) if mine in self.ranks else -1

    def included(self) -> bool | None:
        """True if this process is in the set; None for the global set before `init`."""
        return runtime.current().place.rank in self.ranks if self.ranks is not None else None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


global_process_set = ProcessSet([])
"""The process set of all ranks."""
global_process_set.ranks, global_process_set.process_set_id = None, 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Adds a process set. All ranks call this function, members or not. Raises a `ValueError` for a set that exists."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    assert added.ranks is not None, "only the global set has no list before init"
    added.process_set_id = runtime.current().add_set(added.ranks)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. All ranks call this function. False if the set was not added, or is the global one."""
    set_id = process_set.process_set_id
    if set_id is None or set_id == runtime.GLOBAL:
        return False
    process_set.process_set_id = None
    return runtime.current().remove_set(set_id)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    return {set_id: list(ranks) for set_id, ranks in runtime.current().sets.items()}
