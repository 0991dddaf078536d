"""Hosts like those in the documentation: each with its address, name, /etc, /opt and users, on one network.

    with Hosts(folder, {"switch": "10.0.0.1", "worker": "10.0.0.11"}) as hosts:
        subprocess.run(hosts["switch"].command("wiresum", "--version"))

A host is a network namespace, with a mount and a UTS namespace for each command that is started there. /etc, /opt,
/usr/local/bin, /var/lib and /var/log are the host's own folders; the others are the machine's. Wiresum is installed at
/opt/wiresum: a virtual environment with the packages of this interpreter's.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, STAR_DEVICE, Host, Star, StarError

INSTALLED = "/opt/wiresum"
PATH = f"{INSTALLED}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("pip", "torchrun", "wiresum")
COPIED, EMPTY = ("etc", "usr/local/bin"), ("opt/wiresum", "var/lib", "var/log", "home")
NOBODY = 65534

# A host cannot reach the machine's own settings, or its systemd.
ENTER = """
set -e
hostname "$1"
for each in etc opt usr/local/bin var/lib var/log; do mount --bind "$2/$each" "/$each"; done
mount --bind "$3" /opt/wiresum
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
if [ -d /run/systemd ]; then mount -t tmpfs none /run/systemd; fi
shift 3
exec "$@"
"""

# This program replaces an SSH server on each host.
SSH = """#!/bin/sh
# ssh root@ADDRESS COMMAND...
host=$1
shift
case $host in
%s
*) echo "ssh: no host $host" >&2; exit 255 ;;
esac
"""

SCP = """#!/bin/sh
# scp -r FOLDER ADDRESS:
case $3 in
%s
*) echo "scp: no host $3" >&2; exit 255 ;;
esac
"""

# This program replaces systemd: it shows a unit, or runs the unit's program as its user. The last word is the unit.
SYSTEMCTL = r"""#!/bin/sh
for unit; do :; done
file=/etc/systemd/system/$unit.service
case $1 in cat) exec cat "$file" ;; enable) ;; *) exit 1 ;; esac
install -d -o wiresum -g wiresum /var/lib/wiresum /var/log/wiresum
options=$(sed -n s/^WIRESUM_SWITCH_OPTIONS=//p /etc/wiresum/switch.env 2>&1)
exec setpriv --reuid wiresum --regid wiresum --clear-groups \
  $(sed -n "s|\$WIRESUM_SWITCH_OPTIONS|$options|; s/^ExecStart=//p" "$file")
"""


@dataclass(frozen=True)
class Machine:
    name: str
    address: str
    folder: Path
    """The folder with the host's /etc and other own folders."""
    _namespace: Host
    _environment: Path

    def command(self, *words: str) -> list[str]:
        """A command that runs on this host, with the environment of the process that starts it."""
        inside = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", ENTER, "sh"]
        return self._namespace.command([*inside, self.name, str(self.folder), str(self._environment), *words])

    @property
    def home(self) -> Path:
        return self.folder / "home"


class Hosts:
    """Hosts that reach each other, and nothing else."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        """Makes the hosts. Raises `StarError` where hosts cannot be made."""
        if missing := [tool for tool in ("hostname", "unshare", "useradd") if shutil.which(tool) is None]:
            raise StarError(f"hosts cannot be made: {', '.join(missing)} is not on PATH")
        with contextlib.ExitStack() as cleanup:
            star = cleanup.enter_context(contextlib.closing(Star(len(addresses))))
            environment = Path(tempfile.mkdtemp(prefix="wiresum-hosts-"))
            cleanup.callback(shutil.rmtree, environment)
            _install(environment)
            self._hosts = {
                name: Machine(name, address, folder / name, namespace, environment)
                for (name, address), namespace in zip(addresses.items(), star.workers, strict=True)
            }
            for host, namespace in zip(self._hosts.values(), star.workers, strict=True):
                self._make(host, namespace)
            self._cleanup = cleanup.pop_all()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Machine:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._hosts.values())

    def close(self) -> None:
        """Removes the hosts, and ends programs that still run there."""
        self._cleanup.close()

    def _make(self, host: Machine, namespace: Host) -> None:
        for each in EMPTY:
            (host.folder / each).mkdir(parents=True)
        for each in COPIED:
            shutil.copytree(f"/{each}", host.folder / each, symlinks=True)
        names = [f"{other.address} {other.name}" for other in self._hosts.values()]
        (host.folder / "etc" / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        entered = {other.address: shlex.join(other.command("sh", "-c")) for other in self._hosts.values()}
        cases = [f'root@{address}) exec {command} "$*" ;;' for address, command in entered.items()]
        homes = {other.address: shlex.quote(str(other.home)) for other in self._hosts.values()}
        copies = [f'{address}:) exec cp -r "$2" {home} ;;' for address, home in homes.items()]
        programs = {"ssh": SSH % "\n".join(cases), "scp": SCP % "\n".join(copies), "systemctl": SYSTEMCTL}
        for name, text in programs.items():
            program = host.folder / "usr/local/bin" / name
            program.write_text(text)
            program.chmod(0o755)
        # The star's own addresses are removed: a host in the documentation has a single address.
        lines = [
            f"address flush dev {STAR_DEVICE}",
            f"address add {host.address}/24 broadcast + dev {STAR_DEVICE}",
            f"link delete dev {MANAGEMENT_DEVICE}",
        ]
        subprocess.run(["ip", "-n", namespace.namespace, "-batch", "-"], input="\n".join(lines), text=True, check=True)


def _install(environment: Path) -> None:
    """Makes the virtual environment for /opt/wiresum, with this interpreter's packages. StarError unless other users
    can run it."""
    environment.chmod(0o755)
    for base in (sys.executable, "/usr/bin/python3"):
        subprocess.run([base, "-m", "venv", "--without-pip", "--clear", str(environment)], check=True)
        packages = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        if not packages.is_dir():  # another release of Python
            continue
        (packages / "here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        trial = [str(environment / "bin/python"), "-c", "import wiresum.switch"]
        options: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(trial, check=True, capture_output=True, **options)
            break
    else:
        raise StarError("hosts cannot be made: services need a Python, and an installation, that all users can read")
    for script in metadata.entry_points(group="console_scripts"):
        if script.name in PROGRAMS:
            path = environment / "bin" / script.name
            path.write_text(
                f"#!{INSTALLED}/bin/python\nimport sys\nfrom {script.module} import {script.attr}\n"
                f"sys.exit({script.attr}())\n"
            )
            path.chmod(0o755)
