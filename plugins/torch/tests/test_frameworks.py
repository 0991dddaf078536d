"""The recipes of docs/frameworks.md, run as they are written there. A recipe is skipped if its framework is not
installed.

    pip install --no-deps lightning ...; pytest plugins/torch/tests/test_frameworks.py
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import environment

RECIPES = Path(__file__).resolve().parents[1] / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RUN_S_MAX = 400.0
"""Seconds: DeepSpeed compiles when it is first used."""

pytestmark = pytest.mark.timeout(RUN_S_MAX + 30)


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed, so its recipe is not run")


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchProcess]:
    with SwitchProcess(tmp_path_factory.mktemp("switch")) as process:
        yield process


def run(switch: SwitchProcess, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        env=environment({"WIRESUM_SWITCH": switch.endpoint}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def check_training(output: str) -> None:
    """The loss falls, and the network did the sums."""
    said = re.findall(r"loss (\S+); (\d+) bytes summed in the network", output)
    losses = [float(loss) for loss, _ in said]
    assert len(losses) >= 3 and losses[-1] < losses[0], output
    assert int(said[-1][1]) > 0, output


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        "fsdp2",
        pytest.param("lightning_ddp", marks=needs("lightning")),
        pytest.param("accelerate_ddp", marks=needs("accelerate")),
        pytest.param("hugging_face_trainer", marks=needs("transformers")),
        pytest.param("deepspeed_cpu", marks=needs("deepspeed")),
        pytest.param("torchtitan_fsdp", marks=needs("torchtitan")),
    ],
)
def test_a_recipe_trains_through_the_switch(switch: SwitchProcess, recipe: str) -> None:
    check_training(run(switch, *TORCHRUN, str(RECIPES / f"{recipe}.py")))


@needs("ray")
def test_ray_trains_through_the_switch(switch: SwitchProcess) -> None:
    check_training(run(switch, str(RECIPES / "ray_train.py")))


@needs("kubernetes_validate")
def test_kubernetes_accepts_the_manifests() -> None:
    import kubernetes_validate
    import yaml

    manifests = list(yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text()))
    assert [manifest["kind"] for manifest in manifests] == ["Service", "Job"]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: Slurm's script is not checked"
)
def test_slurms_script_is_clean() -> None:
    subprocess.run(["shellcheck", str(RECIPES / "slurm.sbatch")], check=True)


@pytest.mark.nightly
def test_pytorchs_variable_for_torchcomms_changes_nothing_without_torchcomms(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("torchcomms") is not None:
        pytest.skip("torchcomms is installed, and PyTorch then asks it for a backend named wiresum, which it has not")
    monkeypatch.setenv("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1")
    check_training(run(switch, *TORCHRUN, str(RECIPES / "fsdp2.py")))
