"""`horovod.torch` over Wiresum: `import wiresum.horovod.torch as hvd`. See docs/horovod.md.

    import wiresum.horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

The switch that WIRESUM_SWITCH names sums gradients; Gloo runs what a switch cannot do (all-to-all and long minima, for
instance). torchrun, mpirun or srun launches the ranks.
"""
# ruff: noqa: I001 (`import X as X` re-exports a name; sorting would give each a statement of its own)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from wiresum.horovod.torch import elastic as elastic, runtime
from wiresum.horovod.torch.compression import Compression as Compression
from wiresum.horovod.torch.functions import (
    allgather_object as allgather_object,
    broadcast_object as broadcast_object,
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)
from wiresum.horovod.torch.handle import (
    Handle as Handle,
    HorovodInternalError as HorovodInternalError,
)
from wiresum.horovod.torch.mpi_ops import (
    Adasum as Adasum,
    Average as Average,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
    allgather as allgather,
    allgather_async as allgather_async,
    allreduce as allreduce,
    allreduce_ as allreduce_,
    allreduce_async as allreduce_async,
    allreduce_async_ as allreduce_async_,
    alltoall as alltoall,
    alltoall_async as alltoall_async,
    barrier as barrier,
    broadcast as broadcast,
    broadcast_ as broadcast_,
    broadcast_async as broadcast_async,
    broadcast_async_ as broadcast_async_,
    grouped_allgather as grouped_allgather,
    grouped_allgather_async as grouped_allgather_async,
    grouped_allreduce as grouped_allreduce,
    grouped_allreduce_ as grouped_allreduce_,
    grouped_allreduce_async as grouped_allreduce_async,
    grouped_allreduce_async_ as grouped_allreduce_async_,
    grouped_reducescatter as grouped_reducescatter,
    grouped_reducescatter_async as grouped_reducescatter_async,
    join as join,
    poll as poll,
    reducescatter as reducescatter,
    reducescatter_async as reducescatter_async,
    sparse_allreduce_async as sparse_allreduce_async,
    synchronize as synchronize,
)
from wiresum.horovod.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from wiresum.horovod.torch.process_sets import (
    ProcessSet as ProcessSet,
    add_process_set as add_process_set,
    get_process_set_ids_and_ranks as get_process_set_ids_and_ranks,
    global_process_set as global_process_set,
    remove_process_set as remove_process_set,
)
from wiresum.horovod.torch.runtime import (
    is_initialized as is_initialized,
    shutdown as shutdown,
)
from wiresum.horovod.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meets the other ranks and joins the switch; does nothing the second time. All ranks call it.

    `process_sets` are added as by `add_process_set`. Raises a `ValueError` that names missing or wrong environment
    variables, and the errors of `init_process_group("wiresum")`.
    """
    if comm is not None and list(comm) != []:
        raise NotImplementedError(
            "init(comm) is not supported: all launched processes are ranks. Use process sets for fewer"
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
    """This process's rank among the ranks of its host."""
    return runtime.current().place.local_rank


def local_size() -> int:
    return runtime.current().place.local_size


def cross_rank() -> int:
    """This process's rank among the ranks with the same local rank on all hosts."""
    return runtime.current().place.cross_rank


def cross_size() -> int:
    return runtime.current().place.cross_size


def is_homogeneous() -> bool:
    """True if all hosts have the same number of ranks."""
    return runtime.current().place.homogeneous


def stats(process_set: ProcessSet = global_process_set) -> Any:
    """Counters of network and Gloo, a `wiresum.torch.GroupStats`. Horovod has no such function."""
    from wiresum.torch.backend import stats_of

    return stats_of(runtime.current().coordinator(process_set.process_set_id).group)


def mpi_built() -> bool:
    """False: Horovod has a function for each library that it may be built with, and only Gloo is in use here."""
    return False


mpi_enabled = mpi_threads_supported = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_built


def gloo_built() -> bool:
    """True: Gloo runs the collectives that the network cannot."""
    return True


gloo_enabled = gloo_built


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    raise NotImplementedError(
        "there is no timeline: torch.profiler records what a step does, `wiresum top` and hvd.stats() show the network"
    )


def stop_timeline() -> NoReturn:
    raise NotImplementedError("there is no timeline to stop: see start_timeline()")
