"""Methods of PyTorch's ProcessGroup that have another name in some releases."""

from __future__ import annotations

import torch.distributed as dist

_BEFORE_2_13 = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def installed_name(method: str) -> str:
    """The method's name in the installed PyTorch, by its name in the newest."""
    return method if hasattr(dist.ProcessGroup, method) else _BEFORE_2_13[method]
