"""Trains with DDP, and goes on without a worker that is lost (docs/torch.md).

A store that no worker has, and then the workers, each with RANK and WORLD_SIZE:

python -c 'import torch.distributed as d, time; s = d.TCPStore("0.0.0.0", 29500, is_master=True); time.sleep(1e7)'
WIRESUM_SWITCH=... RANK=... WORLD_SIZE=4 python lost_worker.py --store HOST:29500

Without --store the workers are torchrun's, and rank 0 cannot be lost.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.agent.errors import WorkerLostError

BATCH = 24
"""Samples in a step, of all workers together."""
PATIENCE_S = 20.0
"""How long survivors wait for each other, in seconds. A worker that does not come in time counts as lost, too."""
MAKING_S = 60.0
"""How long making a group, and each of its collectives, may take, in seconds."""


def who_goes_on(store: Store, attempt: int, me: int, members: Sequence[int], lost: Sequence[int]) -> list[int]:
    """The members of the next attempt, by their first ranks: the same list at all of them, since the first member that
    has seen enough decides. Nobody waits for the `lost`."""
    store = PrefixStore(f"after {attempt}", store)
    store.set(f"{me}", "")
    expected = [f"{member}" for member in members if member not in lost]
    until = time.monotonic() + PATIENCE_S
    while not store.check(expected) and time.monotonic() < until:
        time.sleep(0.1)
    there = [member for member in members if store.check([f"{member}"])]
    return list(json.loads(store.compare_set("go on", "", json.dumps(there))))


def agree(module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> int:
    """Gives all workers the state of the most advanced one, and returns its step: some workers may have finished the
    step in which a worker was lost, and others not."""
    steps = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([step]))
    most = int(torch.cat(steps).argmax())
    # Objects are sent, since an optimizer that has not made its first step has fewer tensors than others.
    state = [module.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, src=most)
    module.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return int(steps[most])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """Takes a step, whose samples are dealt among as many workers as there are."""
    random = torch.Generator().manual_seed(step)
    samples = torch.randn(BATCH, 16, generator=random)[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(samples), samples.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    return loss.item()


def train(store: Store, me: int, size: int, module: nn.Module, optimizer: torch.optim.Optimizer, until: int) -> None:
    """Trains until a step. Workers may be lost at any moment, also several at once, or while others begin again. The
    others' current calls then fail, and they make a new group of the workers that are there, with a part of the store
    of its own."""
    step, members = 0, list(range(size))
    for attempt in itertools.count():
        try:
            dist.init_process_group(
                "wiresum", store=PrefixStore(f"attempt {attempt}", store), rank=members.index(me),
                world_size=len(members), timeout=timedelta(seconds=MAKING_S),
            )  # fmt: skip
            step = agree(module, optimizer, step)
            # A new group needs a new DDP.
            model = DistributedDataParallel(module)
            while step < until:
                loss = train_step(model, optimizer, step)
                step += 1
                if dist.get_rank() == 0:
                    print(f"step {step}, {len(members)} workers: loss {loss:.4f}", flush=True)
            return
        except dist.DistBackendError as error:  # other than DistNetworkError: no worker goes on without a store
            cause = error.__cause__
            lost = [members[cause.rank]] if isinstance(cause, WorkerLostError) else []
            if dist.is_initialized():
                dist.destroy_process_group()
            before, members = members, who_goes_on(store, attempt, me, members, lost)
            if members == before:  # the failure had another reason than a lost worker
                raise
            if me not in members:
                sys.exit(f"rank {me}: the others took this worker for lost, and go on without it ({error})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", type=int, default=300, metavar="STEP")
    parser.add_argument("--store", metavar="HOST:PORT")
    options = parser.parse_args()
    if options.store:
        host, port = options.store.split(":")
        store: Store = TCPStore(host, int(port))
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    else:
        store, rank, size = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    try:
        train(store, rank, size, module, optimizer, options.until)
    except dist.DistNetworkError as error:
        if error.__cause__ is not None:  # the switch does not answer, as the error says
            raise
        sys.exit(f"rank {rank}: the store does not answer; it ends with the process that has it ({error})")
    print(f"weights {wiresum.torch.fingerprint(module, optimizer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
