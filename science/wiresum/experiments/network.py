"""Small networks on scikit-learn's digits, and their training over workers simulated in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from wiresum.compress import Compressor, Engine, InProcess, Piece, Segment
from wiresum.compress.arrays import Vector

TEST_IMAGES = 360
HIDDEN = 64


def network(seed: int) -> nn.Module:
    """A network with two hidden layers: 8,970 parameters in six tensors."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def convolutional_network(seed: int) -> nn.Module:
    """A network with two convolutions and two linear layers: 38,282 parameters in eight tensors."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 10),
    )


@dataclass(frozen=True)
class Digits:
    images: torch.Tensor
    labels: torch.Tensor
    validation_images: torch.Tensor
    """Images for the choice of learning rates, which are neither trained on nor tested."""
    validation_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @classmethod
    def load(cls, seed: int, *, validation: int = 0) -> Digits:
        """Loads the images, in an order by the seed. `validation` is the number of training images to use for
        validation."""
        from sklearn.datasets import load_digits  # more than a second, and only here

        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
        images, targets = torch.tensor(pixels, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
        sizes = [TEST_IMAGES, validation, len(images) - TEST_IMAGES - validation]
        tests, validations, others = zip(images.split(sizes), targets.split(sizes), strict=True)
        return cls(*others, *validations, *tests)

    def accuracy(self, model: nn.Module) -> float:
        """The accuracy in percent of the test images."""
        return _percentage(model, self.test_images, self.test_labels)

    def training_loss(self, model: nn.Module) -> float:
        """The mean loss over all training images."""
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(self.images), self.labels))

    def validation_accuracy(self, model: nn.Module) -> float:
        return _percentage(model, self.validation_images, self.validation_labels)


def _percentage(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean()) * 100


@dataclass
class Training:
    accuracy: float
    """Accuracy in percent of the test images."""
    validation_accuracy: float
    """Accuracy in percent of the validation images; NaN if there are none."""
    losses: list[float]
    sent_bytes: float
    dense_bytes: float
    engine: Engine


def pieces_of(model: nn.Module) -> list[Piece]:
    return [Piece(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


def segments_of(model: nn.Module, granularity: str) -> list[Segment]:
    pieces = pieces_of(model)
    return [Segment(tuple(pieces))] if granularity == "model" else [Segment((piece,)) for piece in pieces]


def gradient(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, list[Vector]]:
    """The loss, and its gradient by parameter."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return float(loss.detach()), [_gradient_of(parameter).reshape(-1).copy() for parameter in model.parameters()]


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[tuple[float, list[Vector]]]:
    """The results of `gradient` for each worker, of images (workers, batch, pixels) and labels (workers, batch).

    In a network of linear layers with ReLUs between them, all workers' images go through each layer at once. That
    takes less time, and the products of matrices are those of autograd, so that the values are the same.
    """
    modules = list(model.children())
    layers = [module for module in modules[::2] if isinstance(module, nn.Linear)]
    if 2 * len(layers) != len(modules) + 1 or not all(isinstance(module, nn.ReLU) for module in modules[1::2]):
        return [gradient(model, *one) for one in zip(images, labels, strict=True)]
    with torch.no_grad():
        inputs = [images.flatten(0, 1)]
        for layer in layers[:-1]:
            inputs.append(layer(inputs[-1]).relu_())
        logits = layers[-1](inputs[-1]).reshape(*labels.shape, -1)
    outputs = [mine.requires_grad_() for mine in logits]
    losses = [nn.functional.cross_entropy(*one) for one in zip(outputs, labels, strict=True)]
    back = torch.stack(torch.autograd.grad(losses, outputs))
    found: list[torch.Tensor] = []
    with torch.no_grad():
        for layer, values in zip(reversed(layers), reversed(inputs), strict=True):
            found[:0] = [back.transpose(1, 2) @ values.reshape(*labels.shape, -1), back.sum(1)]
            if values is not inputs[0]:
                before = (back.flatten(0, 1) @ layer.weight).masked_fill_(values <= 0, 0)
                back = before.reshape(*labels.shape, -1)
    of_workers = zip(*(tensor.flatten(1).numpy() for tensor in found), strict=True)
    return [(float(loss.detach()), list(mine)) for loss, mine in zip(losses, of_workers, strict=True)]


def gradients_of_workers(
    digits: Digits, model: nn.Module, *, seed: int, workers: int, batch: int
) -> list[list[Vector]]:
    """Gradients by worker and parameter, of `batch` random images at each worker."""
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(seed))
    parts = order[: workers * batch].reshape(workers, batch)
    return [gradient(model, digits.images[part], digits.labels[part])[1] for part in parts]


def values_of(model: nn.Module, segments: Sequence[Segment]) -> dict[str, Vector]:
    """The values of the model's parameters, by the segments' names."""
    values = {name: parameter.detach().numpy().reshape(-1) for name, parameter in model.named_parameters()}
    return {segment.name: np.concatenate([values[piece.name] for piece in segment.pieces]) for segment in segments}


def arranged(gradients: Sequence[Vector], granularity: str) -> list[Vector]:
    """The gradients by segment."""
    return [np.concatenate(gradients)] if granularity == "model" else list(gradients)


def train(
    method: Compressor,
    *,
    workers: int,
    epochs: int,
    rate: float = 0.4,
    momentum: float = 0.0,
    optimizer_of: Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer] | None = None,
    batch: int = 8,
    granularity: str = "model",
    aggregator: InProcess | None = None,
    seed: int = 1,
    make: Callable[[int], nn.Module] = network,
    validation: int = 0,
    observe: Callable[[int, nn.Module, Engine], None] = lambda step, model, engine: None,
) -> Training:
    """Trains with simulated workers, of `batch` images each, at a learning rate that falls to zero. The optimizer is
    SGD unless `optimizer_of` makes another. `observe` is called after each step; the first step is 1."""
    digits, model = Digits.load(seed, validation=validation), make(seed)
    engine = Engine(method, aggregator or InProcess(workers), seed=seed)
    segments = segments_of(model, granularity)
    make_optimizer = optimizer_of or (lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=momentum))
    optimizer = make_optimizer(model.parameters(), rate)
    steps = len(digits.images) // (batch * workers)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    losses: list[float] = []
    for epoch in range(epochs):
        order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        for step in range(steps):
            shares = order[step * batch * workers :][: batch * workers].reshape(workers, batch)
            results = gradients(model, digits.images[shares], digits.labels[shares])
            losses.append(float(np.mean([loss for loss, _ in results])))
            vectors = [arranged(one, granularity) for _, one in results]
            parameters = values_of(model, segments) if method.uses_parameters else {}
            means = engine.average(segments, vectors, parameters)
            engine.advance()
            _set_gradient(model, np.concatenate(means))
            optimizer.step()
            schedule.step()
            observe(len(losses), model, engine)
    dense_bytes = 4.0 * sum(segment.size for segment in segments) * len(losses)
    return Training(
        digits.accuracy(model),
        digits.validation_accuracy(model),
        losses,
        engine.aggregator.traffic.sent_bytes,
        dense_bytes,
        engine,
    )


def train_with_seeds(method: Compressor, seeds: int, **options: Any) -> list[Training]:
    """One training for each seed, from 1, each with other test images."""
    return [train(method, seed=seed, **options) for seed in range(1, seeds + 1)]


def accuracies_of(trainings: Mapping[str, Sequence[Training]]) -> dict[str, Vector]:
    """The accuracies, by method and seed."""
    return {name: np.array([one.accuracy for one in of_seeds]) for name, of_seeds in trainings.items()}


def _gradient_of(parameter: nn.Parameter) -> Vector:
    assert parameter.grad is not None, "backward() was called"
    result: Vector = parameter.grad.numpy()
    return result


def _set_gradient(model: nn.Module, flat: Vector) -> None:
    at = 0
    for parameter in model.parameters():
        parameter.grad = torch.from_numpy(flat[at : at + parameter.numel()].copy()).reshape(parameter.shape)
        at += parameter.numel()
