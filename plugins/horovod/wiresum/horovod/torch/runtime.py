"""The state between `init` and `shutdown`: this process's ranks, and a coordinator for each of its process sets."""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, _DistributedBackendOptions

from wiresum.horovod.torch.coordinator import Coordinator
from wiresum.horovod.torch.handle import Handle
from wiresum.horovod.torch.launch import Launch, RankLayout, find_place, meeting_store
from wiresum.horovod.torch.objects import SECRET_BYTES
from wiresum.horovod.torch.request import Request, RequestType
from wiresum.horovod.torch.settings import Settings
from wiresum.torch.backend import backend_of
from wiresum.torch.creation import create_process_group

GLOBAL = 0
"""The id of the process set of all ranks."""
GROUP_TIMEOUT = timedelta(minutes=30)
"""Time-out of a collective that all ranks have started."""

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class Runtime:
    def __init__(self, place: RankLayout, store: Store, settings: Settings) -> None:
        self.place = place
        self.sets: dict[int, tuple[int, ...]] = {}
        self._store = store
        self._settings = settings
        self._coordinators: dict[int, Coordinator] = {}
        self._create_set(GLOBAL, range(place.size))
        self.members_secret = self._members_secret()
        """A secret that only the ranks know. It serves process sets, too, which may have no job at the switch."""

    def coordinator(self, set_id: int | None) -> Coordinator:
        """The coordinator of a process set. Raises a `ValueError` if the set, or this process's part in it, is
        missing."""
        if set_id not in self.sets:
            raise ValueError("the process set has not been added, or has been removed: use hvd.add_process_set()")
        if set_id not in self._coordinators:
            raise ValueError(f"rank {self.place.rank} is not in the process set of ranks {list(self.sets[set_id])}")
        return self._coordinators[set_id]

    def add_set(self, ranks: Sequence[int]) -> int:
        """Adds a process set and returns its id. All ranks call this method. ValueError if the set exists or its ranks
        are wrong."""
        members = tuple(ranks)
        if members in self.sets.values():
            raise ValueError(f"Attempted to add a duplicate process set: {list(members)}")
        if not members or len(set(members)) < len(members) or members[0] < 0 or members[-1] >= self.place.size:
            raise ValueError(f"a process set has ranks from 0 to {self.place.size - 1}, each once, not {list(members)}")
        set_id = self._agree(RequestType.ADD_PROCESS_SET, members=members)
        self._create_set(set_id, members)
        return set_id

    def remove_set(self, set_id: int) -> bool:
        """Removes a process set. All ranks call this method. False if there is no such set."""
        if set_id not in self.sets or set_id == GLOBAL:
            return False
        self._agree(RequestType.REMOVE_PROCESS_SET, root=set_id)
        del self.sets[set_id]
        if (coordinator := self._coordinators.pop(set_id, None)) is not None:
            coordinator.close()
        return True

    def close(self) -> None:
        for set_id in sorted(self._coordinators, reverse=True):
            self._coordinators[set_id].close()
        self._coordinators, self.sets = {}, {}

    def forget_after_fork(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.forget_after_fork()

    def _agree(self, kind: RequestType, *, members: tuple[int, ...] = (), root: int = -1) -> int:
        everybody = self._coordinators[GLOBAL]
        request = Request(kind, everybody.next_name(), members=members, root=root, named=False)
        number = everybody.submit(Handle(request)).wait()
        assert isinstance(number, int)
        return number

    def _members_secret(self) -> bytes:
        """The secret by which the ranks authenticate the objects that they send each other."""
        if self.place.size == 1:
            return secrets.token_bytes(SECRET_BYTES)
        backend = backend_of(self._coordinators[GLOBAL].group)
        assert backend is not None and backend.network is not None, "the group of all ranks is a job at the switch"
        secret = backend.network.session.members_secret
        assert len(secret) >= SECRET_BYTES, "every grant has one"
        return secret

    def _create_set(self, set_id: int, ranks: Sequence[int]) -> None:
        self.sets[set_id] = tuple(ranks)
        if self.place.rank in ranks:
            group = _make_group(PrefixStore(f"set/{set_id}", self._store), set_id, ranks, self.place.rank)
            self._coordinators[set_id] = Coordinator(group, self._settings, name=str(set_id))


class _Process:
    """The state of this process."""

    runtime: Runtime | None = None
    store: Store | None = None
    """The store in which ranks meet. It outlives `shutdown`: rank 0 serves it, and `init` may be called again."""
    generation = 0
    forked: Runtime | None = None
    """The parent's runtime in a forked child, kept so that it is not destroyed there."""


_process = _Process()


def init(process_sets: Sequence[Sequence[int]] = ()) -> list[int]:
    """Starts the runtime and adds the process sets, whose ids it returns; does nothing the second time."""
    if _process.runtime is not None:
        return []
    settings = Settings.from_environment()
    launch = Launch.from_environment()
    if _process.store is None:
        _process.store = meeting_store(launch)
    _process.generation += 1
    store = PrefixStore(f"init/{_process.generation}", _process.store)
    if launch.rank == 0:
        store.set("fusion", str(settings.fusion_bytes_max))
    settings = replace(settings, fusion_bytes_max=int(store.get("fusion")))
    runtime = Runtime(find_place(launch, store), store, settings)
    _process.runtime = runtime
    return [runtime.add_set(ranks) for ranks in process_sets]


def shutdown() -> None:
    """Leaves, and tells the other ranks; does nothing the second time."""
    runtime, _process.runtime = _process.runtime, None
    if runtime is not None:
        runtime.close()


def is_initialized() -> bool:
    return _process.runtime is not None


def current() -> Runtime:
    if _process.runtime is None:
        raise ValueError(NOT_INITIALIZED)
    return _process.runtime


def _make_group(store: Store, set_id: int, ranks: Sequence[int], rank: int) -> dist.ProcessGroup:
    """Creates a process group that is independent of PyTorch's default group. If the switch is full, the group of a
    process set uses Gloo, and the group of all ranks waits."""
    options = _DistributedBackendOptions()
    options.store = store
    options.group_rank = list(ranks).index(rank)
    options.group_size = len(ranks)
    options.timeout = GROUP_TIMEOUT
    options.group_id = f"horovod{set_id}"
    options.global_ranks_in_group = list(ranks) if set_id != GLOBAL else []
    return create_process_group(options)


def _forget_after_fork() -> None:
    if _process.runtime is not None:
        _process.runtime.forget_after_fork()
        _process.forked, _process.runtime = _process.runtime, None


atexit.register(shutdown)
os.register_at_fork(after_in_child=_forget_after_fork)
