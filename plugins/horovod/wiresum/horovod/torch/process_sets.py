"""Sets of ranks that run collectives among themselves: each is a job of its own at the switch."""

from __future__ import annotations

from collections.abc import Iterable

from wiresum.horovod.torch import runtime


class ProcessSet:
    """Ranks, to be given to `init` or `add_process_set`. From then on `process_set_id` is a number."""

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise ValueError("a ProcessSet is made of ranks; MPI communicators mean nothing here")
        members = sorted(ranks)
        if any(not isinstance(rank, int) for rank in members):
            raise ValueError("a ProcessSet is made of ranks, which are integers")
        self.ranks: list[int] | None = members
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """None before it is added."""
        return len(self.ranks) if self.process_set_id is not None and self.ranks is not None else None

    def rank(self) -> int | None:
        """This process's rank in the set; None before it is added. For a process that is not in the set, -1."""
        if self.process_set_id is None or self.ranks is None:
            return None
        mine = runtime.current().place.rank
        return self.ranks.index(mine) if mine in self.ranks else -1

    def included(self) -> bool | None:
        """Is this process in the set?"""
        return runtime.current().place.rank in self.ranks if self.ranks is not None else None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


global_process_set = ProcessSet([])
"""All ranks."""
global_process_set.ranks, global_process_set.process_set_id = None, 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Called by all ranks, also by those that are not in the set. Raises a `ValueError` for a set that there is."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    assert added.ranks is not None, "only the global set has no list before init"
    added.process_set_id = runtime.current().add_set(added.ranks)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Called by all ranks. False if the set was not added, or is the global one."""
    if process_set.process_set_id in (None, 0):
        return False
    set_id, process_set.process_set_id = process_set.process_set_id, None
    assert set_id is not None
    return runtime.current().remove_set(set_id)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    return {set_id: list(ranks) for set_id, ranks in runtime.current().sets.items()}
