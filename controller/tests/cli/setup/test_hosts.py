"""`wiresum setup` prepares three hosts with the commands of the guide.

Each host is a mount namespace with its own /etc, users and services; all share a network namespace. The services are
started with the commands that setup prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PATIENCE_S = 60.0
WIRESUM = [sys.executable, "-m", "wiresum.cli"]

# Keeps setup away from the machine's own sysctl settings and systemd.
ENTER = """
set -e
for each in etc usr/local/bin var/lib var/log; do mount --bind "$1/$each" "/$each"; done
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
if [ -d /run/systemd ]; then mount -t tmpfs none /run/systemd; fi
shift
exec "$@"
"""


class Hosts:
    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.folder, self._cleanup = folder, cleanup
        self._namespace = f"wiresum-{uuid.uuid4().hex[:8]}"
        if os.geteuid() != 0 or None in (shutil.which("ip"), shutil.which("useradd"), shutil.which("setpriv")):
            pytest.skip("needs root, `ip`, `useradd` and `setpriv`, to make hosts")
        if subprocess.run(["ip", "netns", "add", self._namespace], capture_output=True, check=False).returncode:
            pytest.skip("needs network namespaces, to make hosts")
        cleanup.callback(subprocess.run, ["ip", "netns", "delete", self._namespace], check=True)
        for line in ("link set lo up", *(f"address add 10.77.0.{last}/32 dev lo" for last in (1, 5))):
            subprocess.run(["ip", "-n", self._namespace, *line.split()], check=True)
        self.wiresum = self._for_everybody()

    def _for_everybody(self) -> list[str]:
        """Installs the command so that users other than root can run it."""
        home = Path(tempfile.mkdtemp(prefix="wiresum-test-"))
        self._cleanup.callback(shutil.rmtree, home)
        home.chmod(0o755)
        python = home / "bin/python"
        for base in (sys.executable, "/usr/bin/python3"):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                subprocess.run([base, "-m", "venv", "--without-pip", "--clear", str(home)], check=True)
                packages = home / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
                (packages / "here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
                trial = [python, "-c", "import wiresum.switch"]
                subprocess.run(trial, check=True, user=65534, group=65534, extra_groups=[], capture_output=True)
                (home / "bin/wiresum").write_text(f"#!{python}\nfrom wiresum.cli.main import main\nmain()\n")
                (home / "bin/wiresum").chmod(0o755)
                return [str(home / "bin/wiresum")]
        pytest.skip("needs an installation, and a Python of this version, that other users can read")

    def make(self, name: str) -> None:
        here = self.folder / name
        (here / "usr/local").mkdir(parents=True)
        for each in ("var/lib", "var/log"):
            (here / each).mkdir(parents=True)
        for each in ("etc", "usr/local/bin"):
            shutil.copytree(f"/{each}", here / each, symlinks=True)

    def command(self, name: str, *words: str) -> list[str]:
        inside = ["ip", "netns", "exec", self._namespace, "unshare", "--mount", "--propagation", "private"]
        return [*inside, "sh", "-c", ENTER, "sh", str(self.folder / name), *words]

    def setup(self, name: str, *arguments: str, tls: Path, code: int = 0) -> str:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as made:
            made.add(tls, ".")
        finished = subprocess.run(
            self.command(name, *self.wiresum, "setup", *arguments, "--tls", "-"),
            input=archive.getvalue(), capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        output = (finished.stdout + finished.stderr).decode()
        assert finished.returncode == code, output
        return output

    def start(self, name: str, said: str) -> str:
        """Starts the service with the ExecStart line of the unit that setup wrote; returns its first line of output."""
        (line,) = re.findall(r"^ +(setpriv .+)$", said, re.MULTILINE)
        running = subprocess.Popen(
            self.command(name, *shlex.split(line)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._cleanup.callback(running.communicate)
        self._cleanup.callback(running.terminate)
        assert running.stdout is not None
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(running.stdout, selectors.EVENT_READ)
                assert selector.select(PATIENCE_S), "the service has not reported that it is ready"
            first = running.stdout.readline()
            assert first, "the service has ended"
            if "ready: " in first:
                return first


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as cleanup:
        yield Hosts(tmp_path, cleanup)


def test_one_command_each_sets_up_a_working_switch_controller_and_worker(hosts: Hosts, tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    make = [*WIRESUM, "ca", "init", str(pki), "--address", "10.77.0.1", "--address", "10.77.0.5"]
    subprocess.run(make, check=True, capture_output=True)
    for name in ("switch", "controller", "worker"):
        hosts.make(name)

    said = hosts.setup("switch", "switch", "--address", "10.77.0.1", "--p4runtime", tls=pki / "switch")
    assert "wiresum can use /etc/wiresum/switch" in said
    assert "there is no systemd here" in said
    assert "P4Runtime 10.77.0.1:9559" in hosts.start("switch", said)

    arguments = ["controller", "--address", "10.77.0.5", "--switch", "soft1=10.77.0.1"]
    said = hosts.setup("controller", *arguments, tls=pki / "controller")
    assert "/etc/wiresum/cluster.toml is in order" in said
    assert "its switches answer" in said
    assert "control 10.77.0.5:43487" in hosts.start("controller", said)

    said = hosts.setup("worker", "worker", "--switch", "10.77.0.5", tls=pki / "worker")
    assert "2 workers summed 8 MiB through the switch, every bit right" in " ".join(said.split())

    # The doctor also reports a later mistake: the certificate of another cluster.
    other = tmp_path / "other"
    subprocess.run([*WIRESUM, "ca", "init", str(other)], check=True, capture_output=True)
    said = hosts.setup("worker", "worker", "--switch", "10.77.0.5", tls=other / "worker", code=1)
    assert "TLS with 10.77.0.5:43487 fails" in " ".join(said.split())
