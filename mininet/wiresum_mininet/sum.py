"""One worker of a sum: every worker has a tensor of its rank + 1, and all must get the total.

mininet> sum                  64 elements: one packet of each worker
mininet> sum 1000 --times 5   more of them, five times
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import wiresum.torch

TIMEOUT = timedelta(seconds=10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="sum", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("elements", type=int, nargs="?", default=64, help="of the tensor, int32 (default: %(default)s)")
    parser.add_argument("--times", type=int, default=1, help="how often (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two (default: %(default)s)")
    options = parser.parse_args()
    dist.init_process_group("wiresum", timeout=TIMEOUT)
    rank, workers = dist.get_rank(), dist.get_world_size()
    if options.times > 1:
        print(f"{workers} workers have joined", flush=True)
    expected, wrong = workers * (workers + 1) // 2, 0
    for _ in range(options.times):
        tensor = torch.full((options.elements,), rank + 1, dtype=torch.int32)
        try:
            dist.all_reduce(tensor)
        except dist.DistError as error:
            raise SystemExit(f"rank {rank}: {error}") from None
        wrong += int((tensor != expected).sum())
        time.sleep(options.pause)
    network = wiresum.torch.stats().network
    again = torch.tensor([network.retransmissions if network else 0], dtype=torch.int32)
    dist.all_reduce(again)
    terms = " + ".join(str(term) for term in range(1, workers + 1))
    verdict = f"{wrong} elements are wrong" if wrong else "right everywhere"
    many = "once" if options.times == 1 else f"{options.times} times"
    line = f"{terms} = {expected} in {options.elements} elements, {many}: {verdict}; packets sent again: {int(again)}"
    # Written at once: under torchrun, print() would write the end of the line separately.
    sys.stdout.write(line + "\n")
    dist.destroy_process_group()
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
