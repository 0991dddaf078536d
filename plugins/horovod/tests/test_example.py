"""The Horovod example runs through the switch as a user would run it, and reaches the accuracy of DDP over Gloo."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster, environment

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/digits.py"
RANKS, EPOCHS, BATCH = 2, 4, 32
TRAINING_S_MAX = 100
STEP_BYTES = 4 * 38_282
"""Of the example's gradients."""


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchProcess]:
    with SwitchProcess(tmp_path_factory.mktemp("switch")) as process:
        yield process


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("horovod_digits", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_over_gloo(rank: int, size: int) -> float:
    """The same training, with DistributedDataParallel."""
    digits = example()
    torch.manual_seed(42)
    train_set, test_set = digits.datasets()
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(digits.Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * size, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        digits.train_epoch(model, optimizer, loader)
    tests = DistributedSampler(test_set, shuffle=False)
    share = digits.accuracy_of(model, DataLoader(test_set, batch_size=len(test_set), sampler=tests))
    dist.all_reduce(share)
    return share.item() / size


@pytest.mark.slow
def test_the_example_trains_through_the_switch_to_the_accuracy_of_gloo(switch: SwitchProcess, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    run = subprocess.run(
        [*command, str(EXAMPLE), "--epochs", str(EPOCHS), "--batch-size", str(BATCH)],
        check=False,
        env=environment({"WIRESUM_SWITCH": switch.endpoint}),
        capture_output=True,
        text=True,
        timeout=TRAINING_S_MAX,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    accuracies = [float(text) for text in re.findall(r"accuracy (\S+)", run.stdout)]
    packets = int(re.findall(r"sent (\d+) packets", run.stdout)[0])
    with Cluster(None, RANKS, tmp_path, backend="gloo") as cluster:
        (over_gloo, _) = cluster.run(train_over_gloo)
    assert len(accuracies) == EPOCHS
    assert over_gloo > 0.9
    assert accuracies[-1] == pytest.approx(over_gloo, abs=0.01)
    steps = EPOCHS * -(-1437 // (RANKS * BATCH))
    assert packets >= steps * STEP_BYTES // 9000  # at least as many packets as the longest possible ones would make
