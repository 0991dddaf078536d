"""The workers of `restart.py`. They train a small network over wiresum for as long as the benchmark wants, and then
once more, undisturbed, for as many steps. Both trainings must end with the same bits.

Started by the benchmark. One process for each rank, forked when PyTorch, which takes seconds, has been imported. Writes
to the folder: `steps` (rank 0: how many are done, again and again), and at the end `RANK.json`.
"""

import hashlib
import json
import multiprocessing
import sys
import time
from datetime import timedelta
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore

from wiresum.torch import register

STEPS_MAX = 1_000_000
STEP_S_LEAST = 0.01
"""Least time of a step in the disturbed training, which only has to last."""
LEARNING_RATE, MOMENTUM = 0.05, 0.9
COLLECTIVE_TIMEOUT = timedelta(seconds=120)


def train(rank: int, folder: Path, steps: int | None) -> tuple[int, str]:
    """For `steps`, or until the file `stop` is there. Returns the steps, and a digest of the parameters.

    Gradients are averaged and parameters updated by hand: DistributedDataParallel and torch.optim load PyTorch's
    compiler, which takes longer than the shortest of these trainings.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    velocity = torch.zeros_like(parameters)
    data = torch.Generator().manual_seed(1000 + rank)
    done = 0
    while done < (STEPS_MAX if steps is None else steps):
        started_at = time.monotonic()
        images, labels = torch.randn(16, 64, generator=data), torch.randint(10, (16,), generator=data)
        loss = nn.functional.cross_entropy(model(images), labels)
        gradient = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
        dist.all_reduce(gradient, dist.ReduceOp.AVG)
        velocity.mul_(MOMENTUM).add_(gradient)
        parameters.sub_(velocity, alpha=LEARNING_RATE)
        nn.utils.vector_to_parameters(parameters, model.parameters())
        done += 1
        if steps is None:
            if rank == 0:
                write(folder / "steps", str(done))
            if all_agree_to_stop(rank, folder):
                break
            time.sleep(max(0.0, started_at + STEP_S_LEAST - time.monotonic()))
    return done, hashlib.sha256(parameters.numpy().tobytes()).hexdigest()


def all_agree_to_stop(rank: int, folder: Path) -> bool:
    """Rank 0 decides, so that all stop after the same step."""
    stop = torch.tensor([int(rank == 0 and (folder / "stop").exists())], dtype=torch.int32)
    dist.all_reduce(stop)
    return bool(stop.item())


def write(path: Path, text: str) -> None:
    """Readers never see half a file."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.replace(path)


def work(rank: int, world_size: int, port: int, folder: Path) -> None:
    store = TCPStore("127.0.0.1", port, world_size, is_master=rank == 0, timeout=COLLECTIVE_TIMEOUT)
    found = []
    steps = None
    for name in ("disturbed", "undisturbed"):
        dist.init_process_group(
            "wiresum",
            store=PrefixStore(name, store),
            rank=rank,
            world_size=world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        steps, digest = train(rank, folder, steps)
        found.append({"steps": steps, "digest": digest})
        dist.destroy_process_group()
    write(folder / f"{rank}.json", json.dumps(found))


@click.command(help=__doc__)
@click.option("--world-size", type=int, required=True)
@click.option("--port", type=int, required=True, help="Of PyTorch's store.")
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(world_size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    register()  # PyTorch does it itself where Wiresum is installed
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(rank, world_size, port, folder)) for rank in range(world_size)]
    for process in ranks:
        process.start()
    # One that fails ends the job for the others too.
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
