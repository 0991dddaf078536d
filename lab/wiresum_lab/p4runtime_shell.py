"""Opens p4runtime-shell on a running switch, to read its tables while a controller drives it.

    python -m wiresum_lab.p4runtime_shell --p4runtime 127.0.0.1:9559 --device 0 [--tls DIR]

The shell needs versions of protobuf and IPython that nothing else here can use, so it gets a virtual environment of its
own, in build/p4runtime-shell, which is made on first use. The shell takes the program's P4Info from the switch. It bids
an election id below every controller's, so that it can read and not write; where no controller is connected, bmv2 lets
it write, too.

    table_entry["admit"].read(print)           every entry of a table
    multicast_group_entry(256).read()          where floods go
    counter_entry["packets"].read(print)       rows of 8: docs/tables.md
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from wiresum_lab import REPOSITORY

ENVIRONMENT = REPOSITORY / "build" / "p4runtime-shell"
PACKAGE = "p4runtime-shell==0.0.6"
INSTALL_S_MAX = 300.0
ELECTION_ID = "0,0"
"""Upper and lower 64 bits of the shell's election id; a controller's is at least 1."""


class ShellError(RuntimeError):
    """The shell is not available; the text has the reason."""


def python_of(environment: Path = ENVIRONMENT) -> Path:
    """The interpreter of the shell's environment, which is made on first use. Raises `ShellError`."""
    python, complete = environment / "bin" / "python", environment / PACKAGE
    if not complete.exists():  # written last, so that an interrupted installation is repeated
        venv.create(environment, clear=True)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", PACKAGE]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False, env=clean_environment()
            )
        except subprocess.TimeoutExpired:
            raise ShellError(f"{PACKAGE} could not be installed within {INSTALL_S_MAX:.0f} s") from None
        if done.returncode != 0:
            raise ShellError(f"{PACKAGE} could not be installed: {done.stderr.strip()[-500:]}")
        complete.touch()
    return python


def clean_environment() -> dict[str, str]:
    """The environment, without the variables by which the shell would find Wiresum's packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--p4runtime", default="127.0.0.1:9559", help="where its P4Runtime server listens")
    parser.add_argument("--device", type=int, default=0, help="its device id")
    parser.add_argument("--tls", type=Path, help="a folder with ca.crt, tls.crt and tls.key, of an operator")
    arguments = parser.parse_args()
    try:
        python = python_of()
    except ShellError as error:
        parser.exit(1, f"Error: {error}\n")
    command = [str(python), "-m", "p4runtime_sh", "--grpc-addr", arguments.p4runtime]
    command += ["--device-id", str(arguments.device), "--election-id", ELECTION_ID]
    if tls := arguments.tls:
        command += ["--ssl", "--cacert", str(tls / "ca.crt")]
        command += ["--cert", str(tls / "tls.crt"), "--private-key", str(tls / "tls.key")]
    return subprocess.run(command, check=False, env=clean_environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
