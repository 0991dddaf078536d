"""This process's rank, by its launcher's environment variables, and the store through which the ranks meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

MEETING_TIMEOUT = timedelta(minutes=5)
"""How long the store waits for all ranks."""


class _Launcher(NamedTuple):
    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # SLURM_STEP_NUM_TASKS is only set by srun: a batch script has SLURM_NTASKS, too, and is one process.
    _Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)
"""Environment variables of each launcher; the first launcher whose rank and size are set counts."""


@dataclass(frozen=True)
class Launch:
    """Rank and size by the launcher; local rank and size are -1 if the launcher does not set them."""

    launcher: str
    rank: int
    size: int
    local_rank: int = -1
    local_size: int = -1

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Launch:
        """Reads the launcher's variables; without a launcher, this is the only process. Raises a `ValueError` that
        names wrong variables."""
        for launcher in _LAUNCHERS:
            if environ.get(launcher.rank, "") and environ.get(launcher.size, ""):
                launch = cls(
                    launcher.name,
                    *(_number(environ, name) for name in (launcher.rank, launcher.size)),
                    *(_number(environ, name, -1) for name in (launcher.local_rank, launcher.local_size)),
                )
                if not 0 <= launch.rank < launch.size:
                    raise ValueError(
                        f"{launcher.rank} is {launch.rank} and {launcher.size} is {launch.size}: ranks count from 0"
                    )
                return launch
        return cls("no launcher", 0, 1)


@dataclass(frozen=True)
class RankLayout:
    """This process's position among all ranks, among the ranks of its host (`local`), and among the ranks with the same
    local rank on all hosts (`cross`)."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    """True if all hosts have the same number of ranks."""


def meeting_store(launch: Launch, environ: Mapping[str, str] = os.environ) -> Store:
    """The store of PyTorch's default process group, if that exists; else the store at MASTER_ADDR and MASTER_PORT.

    ValueError if these variables are missing, or if rank and size differ from those of torch.distributed.
    """
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (launch.rank, launch.size):
            raise ValueError(
                f"this process is rank {dist.get_rank()} of {dist.get_world_size()} for torch.distributed, and rank "
                f"{launch.rank} of {launch.size} for {launch.launcher}: they must agree"
            )
        store: Store = dist.distributed_c10d._get_default_store()
        return PrefixStore("wiresum.horovod", store)
    if launch.size == 1:
        return HashStore()
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]:
        raise ValueError(
            f"{launch.launcher} made this process rank {launch.rank} of {launch.size}, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Set MASTER_ADDR to rank 0's host and MASTER_PORT to a "
            "port that is free there, the same at all ranks (mpirun -x MASTER_ADDR=... -x MASTER_PORT=..., or export "
            "them before srun); or start the ranks with torchrun, which sets them"
        )
    meeting = rendezvous("env://", launch.rank, launch.size, timeout=MEETING_TIMEOUT)
    store, _, _ = next(iter(meeting))
    return PrefixStore("wiresum.horovod", store)


def find_place(launch: Launch, store: Store) -> RankLayout:
    """Finds out which ranks are on which host. All ranks call this function."""
    store.set(f"host/{launch.rank}", f"{launch.local_rank} {launch.local_size} {socket.gethostname()}")
    said = [store.get(f"host/{rank}").decode().split(" ", 2) for rank in range(launch.size)]
    hosts = [host for _, _, host in said]
    local_ranks = [
        int(local_rank) if int(local_rank) >= 0 else hosts[:rank].count(host)
        for rank, (local_rank, _, host) in enumerate(said)
    ]
    local_sizes = [int(size) if int(size) > 0 else hosts.count(host) for _, size, host in said]
    # Local ranks decide, not hosts: a launcher may treat two containers on one host as two nodes.
    cross = [rank for rank in range(launch.size) if local_ranks[rank] == local_ranks[launch.rank]]
    return RankLayout(
        rank=launch.rank,
        size=launch.size,
        local_rank=local_ranks[launch.rank],
        local_size=local_sizes[launch.rank],
        cross_rank=cross.index(launch.rank),
        cross_size=len(cross),
        homogeneous=len(set(local_sizes)) == 1,
    )


def _number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}: it must be a whole number") from None
