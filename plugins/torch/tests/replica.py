"""A worker of test_torchft.py: in each step it adds 4 to the power of its number, so that a sum tells who took part.

The worker's number is its name. It stops after --until steps.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.distributed as dist
import torchft
from torch._C._distributed_c10d import HashStore

from wiresum.torch.torchft import ProcessGroupWiresum

LENGTH = 10_000
WORKERS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", type=int, required=True)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--native", action="store_true", help="PyTorch's group, which is reconfigured")
    options = parser.parse_args()
    total = torch.zeros(1, dtype=torch.float64)
    if options.native:
        # A store that others cannot reach.
        dist.init_process_group("wiresum", store=HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    group = dist.group.WORLD if options.native else ProcessGroupWiresum()
    assert group is not None
    manager = torchft.Manager(
        pg=group,
        min_replica_size=2,
        load_state_dict=total.copy_,
        state_dict=total.clone,
        replica_id=f"{options.name}_",
        init_sync=False,  # otherwise a worker alone in the first step would add something, and count as all
    )
    size = 0
    while manager.current_step() < options.until:
        manager.start_quorum()
        manager.wait_quorum()
        # The pause takes most of a step, so that a kill mostly comes before this worker has added its part. With a
        # worker missing, steps take so long that the worker returns before the last.
        time.sleep(0.02 if size == WORKERS else 0.2)
        tensor = torch.full((LENGTH,), 4.0**options.name)
        manager.allreduce(tensor).wait()
        size = manager.num_participants()
        is_committed = manager.should_commit()
        if is_committed:
            total += tensor[0] * size
        values = ", ".join(f"{value * size:g}" for value in tensor.unique().tolist())
        verdict = "committed" if is_committed else "repeated"
        step = manager.current_step()
        sys.stdout.write(f"{time.monotonic():.3f} step {step} of {size} workers {verdict}: {values}\n")
        sys.stdout.flush()
    sys.stdout.write(f"total {total.item():g}\n")
    manager.shutdown(wait=False)
    group.shutdown()


if __name__ == "__main__":
    main()
