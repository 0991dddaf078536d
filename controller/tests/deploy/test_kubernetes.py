"""The kustomize base, checked without kustomize or a cluster: its files are read as these would read them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join.constants import CONTROL_PORT, SWITCH_PORT, THREADS_MAX
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: the manifests are not read")

BASE = Path(__file__).parents[2] / "deploy" / "kubernetes"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / name).read_text()))


@pytest.fixture
def resources() -> dict[str, dict[str, Any]]:
    (kustomization,) = documents("kustomization.yaml")
    return {document["kind"]: document for name in kustomization["resources"] for document in documents(name)}


def container(resources: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (found,) = resources["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_the_base_lists_all_its_files_and_its_image(resources: dict[str, dict[str, Any]]) -> None:
    (kustomization,) = documents("kustomization.yaml")
    assert set(kustomization["resources"]) == {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert kustomization["kind"] == "Kustomization"
    assert [image["name"] for image in kustomization["images"]] == [container(resources)["image"]]


def test_service_and_policy_select_the_switch_and_open_its_ports(resources: dict[str, dict[str, Any]]) -> None:
    labels = resources["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        resources["Deployment"]["spec"]["selector"]["matchLabels"],
        resources["Service"]["spec"]["selector"],
        resources["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    joins, scrapes = resources["NetworkPolicy"]["spec"]["ingress"]
    control, data = joins["ports"]
    assert control == {"protocol": "TCP", "port": CONTROL_PORT}
    assert data == {"protocol": "UDP", "port": SWITCH_PORT, "endPort": SWITCH_PORT + THREADS_MAX - 1}
    opened = {port["port"] for port in (control, *scrapes["ports"])}
    assert opened == {port["port"] for port in resources["Service"]["spec"]["ports"]}
    assert opened == {port["containerPort"] for port in container(resources)["ports"]}


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    authority = Authority.create(tmp_path / "ca", "test")
    claims = Claims(frozenset({"controller"}))
    authority.issue(Holder("switch", claims, ("127.0.0.1",), ("localhost", "wiresum-switch")), tmp_path / "pki", 1)
    return tmp_path / "pki"


@pytest.fixture
def switch(resources: dict[str, dict[str, Any]], pki: Path, tmp_path: Path) -> Iterator[str]:
    """Runs the container's command with other ports; gives the address."""
    at = {"0.0.0.0:43487": "127.0.0.1:0", "0.0.0.0:9487": "127.0.0.1:0", "/pki": str(pki)}
    words = [at.get(word, word) for word in container(resources)["args"]]
    command = [str(Path(sys.executable).with_name("wiresum")), *words, "--port", "0"]
    with Program(command, tmp_path / "switch.log") as process:
        yield process.await_text(r"ready: control (\S+),")[1]


def test_each_probe_succeeds_for_a_running_switch_and_fails_for_a_dead_one(
    resources: dict[str, dict[str, Any]], switch: str, pki: Path
) -> None:
    environment = {variable["name"]: variable["value"] for variable in container(resources)["env"]}
    environment = {name: str(pki) if value == "/pki" else value for name, value in environment.items()}
    for probe in PROBES:
        program, *words = container(resources)[probe]["exec"]["command"]
        command = [str(Path(sys.executable).with_name(program)), *words]
        for target, healthy in ((switch, True), ("127.0.0.1:1", False)):
            done = subprocess.run(
                command,
                env=os.environ | environment | {"WIRESUM_SWITCH": target},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert (done.returncode == 0) == healthy, done


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="kubernetes_validate is not installed: the manifests are not held against Kubernetes' schema",
)
def test_kubernetes_accepts_the_manifests(resources: dict[str, dict[str, Any]]) -> None:
    import kubernetes_validate

    assert set(resources) == {"Service", "Deployment", "NetworkPolicy"}
    for document in resources.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
