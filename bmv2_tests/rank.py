"""One rank of a job on bmv2: joins the process group, and runs the functions of a plan.

    python rank.py RANK SIZE STORE_ADDRESS STORE_PORT PLAN

The plan is a JSON list of [file, function, arguments]; names of PyTorch's types become those types. Each function gets
rank and size before its arguments, as in plugins/torch/tests, and raises if something is wrong. `done FUNCTION` is
printed after each.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import wiresum.torch
from wiresum_lab.ranks.cluster_worker import call

TIMEOUT = timedelta(seconds=60)


def argument(value: Any) -> Any:
    return getattr(torch, value, value) if isinstance(value, str) else value


def main() -> None:
    rank, size, address, port, plan_path = sys.argv[1:]
    torch.set_num_threads(1)
    wiresum.torch.register()
    store = TCPStore(address, int(port), is_master=rank == "0", timeout=TIMEOUT)
    dist.init_process_group("wiresum", store=store, rank=int(rank), world_size=int(size), timeout=TIMEOUT)
    for path, name, arguments in json.loads(Path(plan_path).read_text()):
        call(int(rank), int(size), path, name, tuple(argument(value) for value in arguments))
        print(f"done {name} {arguments}", flush=True)  # noqa: T201
    network = wiresum.torch.stats().network
    print(f"retransmissions {network.retransmissions if network else 0}", flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
