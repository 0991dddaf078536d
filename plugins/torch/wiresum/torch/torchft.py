"""A process group for torchft's `Manager`: training goes on while workers are lost and join (docs/torch.md).

torchft is not installed with Wiresum: `pip install torchft-nightly`. Its lighthouse decides who takes part in the next
step, and each time they change the manager has the group configured anew: that ends the job at the switch and makes
another one, named after the quorum. From PyTorch 2.14 on a group of this backend can be reconfigured itself
(contact.py), and needs nothing of this module.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store, _DistributedBackendOptions

from wiresum.torch.creation import create_process_group
from wiresum.torch.options import Options

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError(
        f"wiresum.torch.torchft needs torchft ({error}): pip install torchft-nightly, since with torchft 0.2.0 a lost "
        "worker ends DDP"
    ) from error


class ProcessGroupWiresum(ProcessGroupWrapper):  # type: ignore[misc]  # its types are not known
    """The process group for `Manager(pg=...)`. `timeout` bounds each collective, and how long members wait for each
    other when they change. `options` are as `pg_options` of `init_process_group`.

    Sums raise their errors when they are waited for, so `errored` has none to add: a worker that is lost after a step's
    sums makes no difference to the step.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: Options | None = None) -> None:
        super().__init__(timeout)
        self._pg: dist.ProcessGroup | None
        self._options = options

    def getBackendName(self) -> str:  # noqa: N802
        return "torchft-wiresum"

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leaves the job. `abort`, which is also a part of configuring, ends it for all members."""
        if self._pg is not None:
            self._pg.shutdown()
            self._pg = None

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        options: Any = _DistributedBackendOptions()
        options.store = store
        options.group_rank = rank
        options.group_size = world_size
        options.timeout = self._timeout
        quorum = self._quorum_id if hasattr(self, "_quorum_id") else self._uuid  # torchft 0.2, or later
        options.group_id = f"quorum{quorum}.{self._group_rank or 0}"
        options.global_ranks_in_group = list(range(world_size))
        # Without a lease the sums would go through Gloo for as long as this quorum lasts, so it waits for one.
        return create_process_group(options, self._options, may_queue=True)
