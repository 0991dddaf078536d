"""Training with torchft's Manager over the switch: a worker is killed, the others go on, and it comes back."""

from __future__ import annotations

import builtins
import copy
import importlib
import importlib.util
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import AllreduceOptions, TCPStore

from wiresum.torch import Options
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks.cluster import Cluster
from wiresum_lab.ranks.cluster_worker import implementation
from wiresum_lab.ranks.replicas import Replicas

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "torchft_ddp.py"
EVERY = 4
"""Steps between two sums of torchft's LocalSGD and DiLoCo."""
HEARTBEAT = ("--heartbeat_timeout_ms", "1500")
"""A time-out with which the lighthouse does not need 5 s to give a worker up."""

needs_torchft = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="torchft is not installed, so training with it is not tested"
)

needs_reconfigure = pytest.mark.skipif(
    not hasattr(torch.distributed.ProcessGroup, "reconfigure"),
    reason=f"PyTorch {torch.__version__} has no reconfigure, so torchft is not tested with it",
)


def loses_one_and_gets_it_back(replicas: Replicas, names: list[str]) -> None:
    """Kills a worker, and ends when all have ended."""
    for name in names:
        replicas.start(name)
    stays, goes = names[0], names[1]
    wait_until(lambda: replicas.first_committed(stays, 3, 0.0), "all three take part", 1.5 * PATIENCE_S)
    killed_at = time.monotonic()
    replicas.programs[goes].kill()
    wait_until(lambda: replicas.first_committed(stays, 2, killed_at), "the others go on", 1.5 * PATIENCE_S)
    back_at = time.monotonic()
    replicas.start(goes)
    wait_until(lambda: replicas.first_committed(goes, 3, back_at), "it takes part again", 1.5 * PATIENCE_S)
    for name in names:
        program = replicas.programs[name]
        wait_until(lambda: program.exit_code is not None, f"{name} ends", 1.5 * PATIENCE_S)  # noqa: B023
        assert program.exit_code == 0, program.tail()


@needs_torchft
@pytest.mark.nightly
@pytest.mark.timeout(7 * PATIENCE_S)
@pytest.mark.usefixtures("compiled")
def test_the_example_ends_with_the_same_weights_everywhere(switch: SwitchProcess, tmp_path: Path) -> None:
    program = [str(EXAMPLE), "--until", "800", "--pause", "0.1"]  # longer than a worker takes to start
    with Replicas(program, tmp_path, switch.endpoint, lighthouse=HEARTBEAT) as replicas:
        loses_one_and_gets_it_back(replicas, ["a", "b", "c"])
        weights = [replicas.programs[name].said().splitlines()[-1] for name in "abc"]
        assert weights[0].startswith("weights ") and len(set(weights)) == 1, weights


@needs_torchft
@pytest.mark.slow
@pytest.mark.timeout(7 * PATIENCE_S)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("more", [[], pytest.param(["--native"], marks=needs_reconfigure)], ids=["wrapped", "native"])
def test_each_committed_sum_is_that_of_those_who_took_part(
    switch: SwitchProcess, tmp_path: Path, more: list[str]
) -> None:
    program = [str(HERE / "replica.py"), "--until", "800", *more]
    with Replicas(program, tmp_path, switch.endpoint, lighthouse=HEARTBEAT) as replicas:
        loses_one_and_gets_it_back(replicas, ["0", "1", "2"])
        committed: dict[int, set[tuple[int, str]]] = {}
        for name in "012":
            for step in replicas.steps(name):
                if step.verdict == "committed":
                    committed.setdefault(step.number, set()).add((step.workers, step.result))
        totals = {replicas.programs[name].said().splitlines()[-1] for name in "012"}
    assert sorted(committed) == list(range(1, 801))
    sums = []
    for number, results in committed.items():
        ((workers, result),) = results  # the results are equal at all workers
        digits = [int(float(result)) // 4**k % 4 for k in range(3)]
        assert set(digits) <= {0, 1} and sum(digits) == workers, (number, result)
        sums.append(float(result))
    assert {21.0, 17.0} <= set(sums), "with all three, and without the one that was killed"
    assert totals == {f"total {sum(sums):g}"}


def is_configured_twice(rank: int, size: int, port: int) -> None:
    from torchft.process_group import reconfigure_with_store

    from wiresum.torch.torchft import ProcessGroupWiresum

    group: Any = ProcessGroupWiresum(timedelta(seconds=20), Options(bits=16))
    jobs = set()
    for prefix in ("first", "second"):
        reconfigure_with_store(group, f"127.0.0.1:{port}/{prefix}", rank, size)
        assert group.size() == size
        tensor = torch.full((5000,), rank + 1.0)
        group.allreduce([tensor], AllreduceOptions()).wait()
        assert tensor.tolist() == [3.0] * 5000
        backend = implementation(group.parent)
        assert backend.network is not None and backend.network._bits == 16
        assert backend.timeout == timedelta(seconds=20)
        jobs.add(backend.network.session.job_name)
    assert len(jobs) == 2 and all(re.search(r"\.quorum\d+\.0$", job) for job in jobs), jobs
    group.set_timeout(timedelta(seconds=30))
    assert backend.timeout == timedelta(seconds=30)
    group.shutdown()
    assert backend._closed


@needs_torchft
@pytest.mark.usefixtures("compiled")
def test_each_configuration_is_a_job_with_the_groups_options(make_cluster: Callable[..., Cluster]) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    make_cluster(2, grouped=False).run(is_configured_twice, store.port)


def trains_apart(rank: int, size: int, lighthouse: str, kind: str) -> bytes:
    """Trains with torchft's LocalSGD or DiLoCo, and compares with the mean of the same trainings in this process."""
    import torchft
    from torchft.local_sgd import DiLoCo, LocalSGD

    from wiresum.torch.torchft import ProcessGroupWiresum

    def made() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = torch.nn.Linear(40, 30)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def trained(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, worker: int, step: int) -> None:
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * worker + step))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()  # torchft's hook sums after each EVERY-th

    group: Any = ProcessGroupWiresum(timedelta(seconds=PATIENCE_S))
    model, inner = made()
    # Each replica has a store of its own: its manager's address is in there.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=group,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=size,
        use_async_quorum=False,
        init_sync=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"{rank}_",
    )
    rate = 0.5 if kind == "DiLoCo" else 1.0
    if kind == "DiLoCo":
        outer = torch.optim.SGD(model.parameters(), lr=rate)
        context = DiLoCo(manager, [model], inner, outer, sync_every=EVERY)
    else:
        context = LocalSGD(manager, model, inner, sync_every=EVERY)
    alone = [made() for _ in range(size)]
    with context:
        for step in range(3 * EVERY):
            if step % EVERY == 0:
                before = copy.deepcopy(alone[0][0].state_dict())
            trained(model, inner, rank, step)
            for worker, one in enumerate(alone):
                trained(*one, worker, step)
            if (step + 1) % EVERY == 0:
                for name, value in before.items():
                    mean = torch.stack([one.state_dict()[name] for one, _ in alone]).mean(0)
                    for one, _ in alone:
                        one.state_dict()[name].copy_(value + rate * (mean - value))
            torch.testing.assert_close(model.state_dict(), alone[rank][0].state_dict())
    assert manager.current_step() == 3 and manager.num_participants() == size
    assert implementation(group.parent).network.collectives["all_reduce"] == 3 * len(before)
    manager.shutdown(wait=False)
    group.shutdown()
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


@needs_torchft
@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo"])
def test_torchfts_local_sgd_and_diloco_sum_over_the_switch(make_cluster: Callable[..., Cluster], kind: str) -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2)
    try:
        one, other = make_cluster(2, grouped=False).run(trains_apart, lighthouse.address(), kind)
    finally:
        lighthouse.shutdown()
    assert one == other


def test_without_torchft_the_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("torchft"):
            raise ImportError(f"No module named {name!r}")
        return imported(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "wiresum.torch.torchft", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"needs torchft .* pip install torchft-nightly"):
        importlib.import_module("wiresum.torch.torchft")
