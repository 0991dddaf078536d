"""One worker of the demo: trains a small convolutional network on handwritten digits with DistributedDataParallel.

The demo starts a process for each worker, as torchrun would. Only the name given to `init_process_group` is specific to
wiresum: the same processes train over Gloo, and the demo compares the two.

Each worker writes a line of JSON for each step to its own file, and a last line with a digest of its parameters. The
demo compares these digests, so that no collective of the backend under test decides whether all bits are the same.
"""

import argparse
import hashlib
import importlib.util
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

TEST_IMAGES = 360
COLLECTIVE_TIMEOUT = timedelta(seconds=60)


class DigitNet(nn.Module):
    """Two convolutions and two dense layers for 8 x 8 images. A network of width 32 has 151,306 parameters: 605 kB of
    gradients a step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * width * 4 * 4, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels, (1797, 64) of 0 to 16, and labels, (1797,), of scikit-learn's handwritten digits. The function reads
    scikit-learn's file, since the import of `sklearn.datasets.load_digits` would take each worker more than a
    second."""
    scikit_learn = importlib.util.find_spec("sklearn")
    assert scikit_learn is not None and scikit_learn.origin is not None, "wiresum[demo] has it"
    table = np.loadtxt(Path(scikit_learn.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return torch.tensor(table[:, :-1]), torch.tensor(table[:, -1], dtype=torch.int64)


class Digits:
    """scikit-learn's handwritten digits, split into training and test images by the seed."""

    def __init__(self, seed: int, rank: int, world_size: int) -> None:
        pixels, labels = read_digits()
        images = pixels.float().reshape(-1, 1, 8, 8) / 16.0
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        images, targets = images[order], labels[order]
        self._train = images[TEST_IMAGES:], targets[TEST_IMAGES:]
        self._test = images[rank:TEST_IMAGES:world_size], targets[rank:TEST_IMAGES:world_size]
        self._seed, self._rank, self._world_size = seed, rank, world_size

    def steps(self, batch: int) -> int:
        return len(self._train[0]) // (batch * self._world_size)

    def epoch(self, epoch: int, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This worker's images and labels for each step of an epoch. All workers draw the same order; images that do
        not fill a step are left out."""
        images, targets = self._train
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self._seed + 1 + epoch))
        for step in range(self.steps(batch)):
            start = (step * self._world_size + self._rank) * batch
            mine = order[start : start + batch]
            yield images[mine], targets[mine]

    def test_part(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._test


class GradientClock:
    """A DDP communication hook that all-reduces as DDP does, and measures the goodput of gradients."""

    def __init__(self) -> None:
        self.bytes = 0  # in all steps
        self._bytes_of_step = 0
        self._started_at: float | None = None
        self._ended_at = 0.0

    def hook(
        self,
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if self._started_at is None:
            self._started_at = time.perf_counter()
        self._bytes_of_step += bucket.buffer().nbytes

        def arrived(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self._ended_at = time.perf_counter()
            return future.value()

        return allreduce_hook(group, bucket).then(arrived)

    def take_goodput_mbit(self) -> float:
        """Returns the bits of the step's gradients, divided by the time from the start of its first bucket to the
        arrival of its last one. Starts a new measurement."""
        assert self._started_at is not None, "a backward pass was taken"
        goodput_mbit = self._bytes_of_step * 8 / 1e6 / (self._ended_at - self._started_at)
        self.bytes += self._bytes_of_step
        self._bytes_of_step, self._started_at = 0, None
        return goodput_mbit


def retransmissions(backend: str) -> int:
    """This worker's retransmissions so far; 0 for Gloo, since the kernel makes them."""
    if backend != "wiresum":
        return 0
    import wiresum.torch

    network = wiresum.torch.stats().network
    return network.retransmissions if network else 0


def accuracy(model: nn.Module, digits: Digits) -> float:
    """The fraction of test images that the workers together classify correctly, by an exact int32 sum over the
    network."""
    images, targets = digits.test_part()
    with torch.no_grad():
        correct = (model(images).argmax(1) == targets).sum()
    counts = torch.tensor([int(correct), len(targets)], dtype=torch.int32)
    dist.all_reduce(counts)
    return int(counts[0]) / int(counts[1])


def digest(model: nn.Module) -> str:
    """A digest of the parameters: two workers have the same digest if every bit of their parameters is the same."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def mean_over_workers(loss: torch.Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def record(log: TextIO, event: str, **values: Any) -> None:
    """Writes and flushes one line: the demo reads the file while it grows."""
    log.write(json.dumps({"event": event, **values}) + "\n")
    log.flush()


def train(options: argparse.Namespace, backend: str, log: TextIO) -> None:
    digits = Digits(options.seed, dist.get_rank(), dist.get_world_size())
    steps = digits.steps(options.batch) * options.epochs
    torch.manual_seed(options.seed)
    net = DigitNet(options.width)
    model, clock = DistributedDataParallel(net), GradientClock()
    model.register_comm_hook(dist.group.WORLD, clock.hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.rate, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=options.rate, total_steps=steps)

    started_at, step = time.perf_counter(), 0
    for epoch in range(options.epochs):
        for images, targets in digits.epoch(epoch, options.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            values = {"loss": mean_over_workers(loss), "goodput_mbit": clock.take_goodput_mbit()}
            record(log, "step", step=step, steps=steps, retransmissions=retransmissions(backend), **values)
        record(log, "epoch", step=step, accuracy=accuracy(net, digits))
    record(log, "end", seconds=time.perf_counter() - started_at, bytes=clock.bytes, digest=digest(net))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="folder for RUN/rank-K.jsonl")
    parser.add_argument(
        "--run",
        nargs=2,
        action="append",
        required=True,
        metavar=("RUN", "BACKEND"),
        help="a training: its name, and that for init_process_group; several: one after the other",
    )
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images a step and worker (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of split, order and parameters (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    for run, backend in options.run:
        own = dist.PrefixStore(run, store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
        try:
            folder = options.output / run
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"rank-{rank}.jsonl").open("w") as log:
                train(options, backend, log)
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
