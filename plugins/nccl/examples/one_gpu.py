"""Sums over PyTorch's NCCL backend with several ranks on one GPU, each of which NCCL takes for a node.

The program checks every sum, and says whether the switch has made the sums (docs/nccl.md). It was written without a
GPU, and has not run on one.

wiresum switch &
python plugins/nccl/examples/one_gpu.py --ranks 4
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
ELEMENTS = (1_000, 1_000_000, 16_000_000)
REPETITIONS = 5
THROUGH_THE_SWITCH = {"COLLNET_CHAIN", "COLLNET_DIRECT"}


def algorithms(log: str) -> Counter[str]:
    """How many all-reduces NCCL gave to each of its algorithms; rank 0 logs them."""
    return Counter(re.findall(r"AllReduce: \d+ Bytes -> Algo (\w+)", log))


def verdict(log: str) -> str:
    """The reason why the switch has not made the sums; empty if the switch has made them."""
    if failed := re.search(r"NCCL WARN (.*)", log):
        return failed.group(1)
    if "via COLLNET/Wiresum" not in log:
        return "no channel of NCCL goes through the plug-in: is NCCL older than 2.28?"
    others = {name: count for name, count in algorithms(log).items() if name not in THROUGH_THE_SWITCH}
    return f"NCCL has chosen other algorithms: {others}" if others or not algorithms(log) else ""


def sum_as_one_rank() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        for elements in ELEMENTS:
            # The numbers are so small that every type has the exact sum.
            pattern = torch.arange(elements, device="cuda").remainder(7)
            expected = pattern.mul(ranks).add(ranks * (ranks - 1) // 2).to(dtype)
            times = []
            for _ in range(REPETITIONS):
                tensor = pattern.add(rank).to(dtype)
                torch.cuda.synchronize()
                began = time.perf_counter()
                dist.all_reduce(tensor)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
                if not torch.equal(tensor, expected):
                    raise SystemExit(f"rank {rank}: a wrong sum of {elements} elements of {dtype}")
            if rank == 0:
                print(f"{dtype}, {elements} elements: right, {1000 * min(times):.2f} ms", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="how many processes share the GPU (default: 2)")
    ranks = parser.parse_args().ranks
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU here")
    if "RANK" in os.environ:
        sum_as_one_rank()
        return
    wiresum = shutil.which("wiresum") or str(Path(sys.executable).with_name("wiresum"))
    library = subprocess.run([wiresum, "paths", "nccl"], check=True, capture_output=True, text=True).stdout.strip()
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        for_all = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(ranks),
            "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "NCCL_NET_PLUGIN": "wiresum",
            "NCCL_COLLNET_ENABLE": "1",
            "NCCL_ALGO": "allreduce:collnetchain",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING",
        }
        free.close()
        processes = []
        for rank in range(ranks):
            of_rank = {"RANK": str(rank), "NCCL_HOSTID": f"node-{rank}", "NCCL_DEBUG_FILE": f"{folder}/{rank}"}
            processes.append(subprocess.Popen([sys.executable, __file__], env=os.environ | for_all | of_rank))
        codes = [process.wait() for process in processes]
        log = "".join(path.read_text(errors="replace") for path in sorted(Path(folder).iterdir()))
    print(f"all-reduces by algorithm: {dict(algorithms(log))}")
    if why := verdict(log) or ("" if not any(codes) else f"the ranks ended with {codes}"):
        raise SystemExit(f"the switch has not made the sums: {why}")
    print("the switch has made the sums")


if __name__ == "__main__":
    main()
