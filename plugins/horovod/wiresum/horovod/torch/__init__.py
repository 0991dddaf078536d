"""`horovod.torch` over Wiresum: `import wiresum.horovod.torch as hvd`. See docs/horovod.md.

    import wiresum.horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Gradients are summed by the switch that WIRESUM_SWITCH names; what it cannot do (float64, minima, all-to-all ...) goes
through Gloo. Ranks are launched by torchrun, mpirun or srun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from wiresum.horovod.torch import elastic, runtime
from wiresum.horovod.torch.compression import Compression
from wiresum.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from wiresum.horovod.torch.handle import Handle, HorovodInternalError
from wiresum.horovod.torch.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from wiresum.horovod.torch.optimizer import DistributedOptimizer
from wiresum.horovod.torch.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from wiresum.horovod.torch.runtime import is_initialized, shutdown
from wiresum.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meets the other ranks and joins the switch; does nothing if that was done. All ranks call it.

    `process_sets` are added as by `add_process_set`. Raises a `ValueError` that says which variables are missing or
    wrong, and what `init_process_group("wiresum")` raises.
    """
    if comm is not None and list(comm) != []:
        raise NotImplementedError(
            "init(comm) is not supported: all processes that were launched are ranks. Use process sets for fewer"
        )
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    ids = runtime.init([process_set.ranks or [] for process_set in sets])
    global_process_set.ranks = list(runtime.current().sets[runtime.GLOBAL])
    for process_set, set_id in zip(sets, ids, strict=False):
        process_set.process_set_id = set_id


def rank() -> int:
    return runtime.current().place.rank


def size() -> int:
    return runtime.current().place.size


def local_rank() -> int:
    """Among the ranks of this host."""
    return runtime.current().place.local_rank


def local_size() -> int:
    return runtime.current().place.local_size


def cross_rank() -> int:
    """Among the ranks that have this local rank on their hosts."""
    return runtime.current().place.cross_rank


def cross_size() -> int:
    return runtime.current().place.cross_size


def is_homogeneous() -> bool:
    """Have all hosts as many ranks?"""
    return runtime.current().place.homogeneous


def stats(process_set: ProcessSet = global_process_set) -> Any:
    """What went through the network and what through Gloo: a `wiresum.torch.GroupStats`. Not in Horovod."""
    from wiresum.torch.backend import stats_of

    return stats_of(runtime.current().coordinator(process_set.process_set_id).group)


def mpi_built() -> bool:
    """What is not here; Horovod has a function for each."""
    return False


mpi_enabled = mpi_threads_supported = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_built


def gloo_built() -> bool:
    """Gloo does what the network cannot."""
    return True


gloo_enabled = gloo_built


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    raise NotImplementedError(
        "there is no timeline: torch.profiler records what a step does, `wiresum top` and hvd.stats() show the network"
    )


def stop_timeline() -> NoReturn:
    raise NotImplementedError("there is no timeline to stop: see start_timeline()")
