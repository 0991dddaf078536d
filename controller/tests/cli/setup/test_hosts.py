"""`wiresum setup` prepares three hosts with the commands of the guide.

Each host has its own /etc, users and services. The services are started with the commands that setup prints.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from wiresum_lab.namespaces.hosts import Hosts
from wiresum_lab.namespaces.star import StarError
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program

ADDRESSES = {"switch": "10.77.0.1", "controller": "10.77.0.5", "worker": "10.77.0.11"}
WIRESUM = [sys.executable, "-m", "wiresum.cli"]
INSTALLED = "/opt/wiresum/bin/wiresum"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    try:
        made = Hosts(tmp_path, ADDRESSES)
    except StarError as error:
        pytest.skip(str(error))
    with made:
        yield made


def setup(hosts: Hosts, name: str, *arguments: str, tls: Path, code: int = 0) -> str:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        made.add(tls, ".")
    finished = subprocess.run(
        hosts[name].command(INSTALLED, "setup", *arguments, "--tls", "-"),
        input=archive.getvalue(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    output = (finished.stdout + finished.stderr).decode()
    assert finished.returncode == code, output
    return output


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts what setup says that would start the service; returns what that says when it is ready."""
    with ExitStack() as cleanup:

        def started(name: str, said: str, says: str = "ready: ") -> str:
            (line,) = re.findall(r"^ +(setpriv .+)$", said, re.MULTILINE)
            program = cleanup.enter_context(
                Program(hosts[name].command(*line.split()), tmp_path / f"{name} {says}.log")
            )
            return program.await_text(f".*{says}.*")[0]

        yield started


@pytest.mark.nightly
def test_one_command_each_sets_up_a_working_switch_controller_and_worker(
    hosts: Hosts, start: Callable[..., str], tmp_path: Path
) -> None:
    pki = tmp_path / "pki"
    make = [*WIRESUM, "ca", "init", str(pki), "--address", "10.77.0.1", "--address", "10.77.0.5"]
    subprocess.run(make, check=True, capture_output=True)

    said = setup(hosts, "switch", "switch", "--address", "10.77.0.1", "--p4runtime", tls=pki / "switch")
    assert "wiresum can use /etc/wiresum/switch" in said
    assert "there is no systemd here" in said
    assert "P4Runtime 10.77.0.1:9559" in start("switch", said)

    arguments = ["controller", "--address", "10.77.0.5", "--switch", "soft1=10.77.0.1"]
    said = setup(hosts, "controller", *arguments, tls=pki / "controller")
    assert "/etc/wiresum/cluster.toml is in order" in said
    assert "its switches answer" in said
    assert "control 10.77.0.5:43487" in start("controller", said)

    arguments = ["standby", "--address", "10.77.0.5", "--port", "43486"]
    said = setup(hosts, "controller", *arguments, tls=pki / "controller")
    assert "/etc/wiresum/standby.toml is in order" in said
    start("controller", said, "standing by: soft1")

    said = setup(hosts, "worker", "worker", "--switch", "10.77.0.5", tls=pki / "worker")
    assert "2 workers summed 8 MiB through the switch, every bit right" in " ".join(said.split())

    # And what is wrong later is said: each switch that is not there, and the certificate of another cluster.
    arguments = ["controller", "--address", "10.77.0.5", "--replace", "--switch", "soft1=10.77.0.1"]
    absent = ["--switch", "soft2=10.77.0.5", "--switch", "soft3=10.77.0.11"]
    said = setup(hosts, "controller", *arguments, *absent, tls=pki / "controller")
    assert re.findall(r"warning +(soft\d) at", said) == ["soft2", "soft3"]
    other = tmp_path / "other"
    subprocess.run([*WIRESUM, "ca", "init", str(other)], check=True, capture_output=True)
    said = setup(hosts, "worker", "worker", "--switch", "10.77.0.5", tls=other / "worker", code=1)
    assert "TLS with 10.77.0.5:43487 fails" in " ".join(said.split())
