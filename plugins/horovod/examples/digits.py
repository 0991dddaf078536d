"""Trains a model of handwritten digits, in the form of Horovod's own MNIST example but for the import.

    wiresum switch &
    WIRESUM_SWITCH=127.0.0.1:43487 torchrun --nproc-per-node 4 plugins/horovod/examples/digits.py

With `import horovod.torch as hvd` the program runs on Horovod.
"""

import argparse
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import wiresum.horovod.torch as hvd

TEST_IMAGES = 360
Batches: TypeAlias = Iterable[tuple[torch.Tensor, torch.Tensor]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.conv1(images))
        features = functional.max_pool2d(functional.relu(self.conv2(features)), 2)
        hidden = functional.relu(self.fc1(features.flatten(1)))
        return functional.log_softmax(self.fc2(hidden), dim=1)


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """The images for training and for testing, the same at all ranks."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
    targets = torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], targets[train]), TensorDataset(images[test], targets[test])


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Batches) -> None:
    model.train()
    for images, targets in loader:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(images), targets)
        loss.backward()
        optimizer.step()


def accuracy_of(model: nn.Module, loader: Batches) -> torch.Tensor:
    """The accuracy on this rank's test images."""
    model.eval()
    with torch.no_grad():
        hits = [(model(images).argmax(1) == targets) for images, targets in loader]
    return torch.cat(hits).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="Horovod's MNIST example, with scikit-learn's digits")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and rank (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the images (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="SGD momentum (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="of the parameters (default: %(default)s)")
    parser.add_argument("--fp16-allreduce", action="store_true", help="sum gradients as 16-bit floats")
    args = parser.parse_args()

    # Horovod: initialize library.
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    # Horovod: use DistributedSampler to partition the data.
    train_set, test_set = datasets()
    train_sampler: DistributedSampler[Any] = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler: DistributedSampler[Any] = DistributedSampler(
        test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    train_loader: Batches = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_loader: Batches = DataLoader(test_set, batch_size=TEST_IMAGES, sampler=test_sampler)

    model = Net()
    # Horovod: scale the learning rate by the number of ranks.
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum
    )

    # Horovod: broadcast parameters & optimizer state.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    # Horovod: wrap optimizer with DistributedOptimizer.
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
    )

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train_epoch(model, optimizer, train_loader)
        # Horovod: average metric values across ranks.
        accuracy = hvd.allreduce(accuracy_of(model, test_loader), name="avg_accuracy")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy.item():.4f}", flush=True)

    if hvd.rank() == 0 and hasattr(hvd, "stats") and (network := hvd.stats().network) is not None:
        print(f"rank 0 sent {network.packets_sent} packets to the switch", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
