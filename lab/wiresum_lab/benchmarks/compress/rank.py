"""One rank of the benchmark of compressed training: a process that trains the same network in several ways.

    prepare FILE WAYS HIDDEN STEPS RATE MOMENTUM    reads the data, and makes a network for every way
    train WAY STEPS                                 gives times, processor time, and bytes over the star's device
    accuracy WAY                                    percent of the test and of the validation images, at rank 0

All ways start from the same parameters, see the same images in the same order, and step with the same rates.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiresum.compress as wc
import wiresum.torch
from wiresum_lab.ranks import rank
from wiresum_lab.ranks.rank import main
from wiresum_lab.ranks.ranks import GLOO

IMAGES = 16
"""Images in a worker's batch."""
WARM_UP_STEPS = 10
RATIO = 0.01

SLOTS = 256
"""Slots of each group, as many as the default group has."""

WIRESUM, DENSE_16, DENSE_8 = "wiresum", "wiresum-16", "wiresum-8"
INT_DIANA, G_TOP_K = "int-diana", "gtopk"
DENSE = {DENSE_16: wiresum.torch.Options(bits=16, slots=SLOTS), DENSE_8: wiresum.torch.Options(bits=8, slots=SLOTS)}
"""Options of groups that sum with fewer bits, without compression: the backend's own formats."""
METHODS: dict[str, tuple[wc.Compressor, str]] = {
    INT_DIANA: (wc.IntDIANA(bits=8), "layer"),
    "int-diana-estimate": (wc.IntDIANA(bits=8, scale="estimate"), "layer"),
    "qsgd": (wc.QSGD(), "layer"),
    "powersgd": (wc.PowerSGD(2), "layer"),
    "topk": (wc.TopK(RATIO), "model"),
    G_TOP_K: (wc.GTopK(RATIO, bits=16), "model"),
    "natural": (wc.Natural(), "layer"),
    "randk": (wc.RandK(0.1, memory="diana"), "layer"),
}
WAYS = (GLOO, WIRESUM, *DENSE, *METHODS)


@dataclass(frozen=True)
class Images:
    images: torch.Tensor
    labels: torch.Tensor
    validation_images: torch.Tensor
    validation_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @classmethod
    def read(cls, path: str) -> Images:
        with np.load(path) as arrays:
            return cls(*(torch.from_numpy(arrays[name]) for name in cls.__dataclass_fields__))

    def batch(self, step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A worker's part of the batch of a step."""
        drawn = torch.randint(len(self.images), (size, IMAGES), generator=torch.Generator().manual_seed(step))
        return self.images[drawn[rank]], self.labels[drawn[rank]]


def network(pixels: int, hidden: int) -> nn.Module:
    """A network of three hidden layers: with 1024 units each on 64 pixels it has 2.2 million parameters."""
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Linear(pixels, hidden), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


@dataclass(frozen=True)
class Settings:
    """Hyperparameters, the same for all ways."""

    hidden: int
    steps: int
    rate: float
    momentum: float


class Training:
    """A network, its optimizer and, if the way has one, its compression."""

    def __init__(self, way: str, group: dist.ProcessGroup, images: Images, settings: Settings) -> None:
        self._images = images
        self._model = DistributedDataParallel(
            network(images.images.shape[1], settings.hidden), process_group=group, gradient_as_bucket_view=True
        )
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=settings.rate, momentum=settings.momentum, fused=True
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer,
            lambda step: min(1, (step + 1) / WARM_UP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / settings.steps)),
        )
        self._step = 0
        if way in METHODS:
            method, granularity = METHODS[way]
            wc.attach(self._model, self._optimizer, method, granularity=granularity)  # type: ignore[arg-type]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            images, labels = self._images.batch(self._step, dist.get_rank(), dist.get_world_size())
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(images), labels).backward()
            self._optimizer.step()
            self._schedule.step()
            self._step += 1

    def accuracy(self) -> dict[str, float]:
        return {
            "test": self._accuracy(self._images.test_images, self._images.test_labels),
            "validation": self._accuracy(self._images.validation_images, self._images.validation_labels),
        }

    def _accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """The percentage of images that are classified correctly."""
        with torch.no_grad():
            chosen = self._model.module(images).argmax(1)
        return float((chosen == labels).float().mean()) * 100


class Rank(rank.Rank):
    def __init__(self, device: str) -> None:
        super().__init__(device, **DENSE)

    def prepare(self, path: str, ways: str, hidden: int, steps: int, rate: float, momentum: float) -> None:
        """Makes a training for each of `ways`, which are separated by commas."""
        world = dist.group.WORLD
        assert world is not None
        images, settings = Images.read(path), Settings(hidden, steps, rate, momentum)
        self._trainings = {way: Training(way, self.groups.get(way, world), images, settings) for way in ways.split(",")}

    def train(self, way: str, steps: int) -> dict[str, Any]:
        before, cpu_s = self._bytes(), time.process_time()
        start_ns = time.monotonic_ns()
        self._trainings[way].train(steps)
        end_ns = time.monotonic_ns()
        sent, received = (after - earlier for after, earlier in zip(self._bytes(), before, strict=True))
        return {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "cpu_seconds": time.process_time() - cpu_s,
            "bytes_sent": sent,
            "bytes_received": received,
        }

    def accuracy(self, way: str) -> dict[str, Any]:
        return self._trainings[way].accuracy() if self.rank == 0 else {}


if __name__ == "__main__":
    main(Rank)
