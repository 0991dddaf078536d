"""What listens on the hosts of a cluster, against the table of docs/security.md, "What listens"."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from wiresum.join.constants import THREADS_MAX
from wiresum_lab import REPOSITORY
from wiresum_lab.laboratory import CONTROLLERS, HOST, SWITCHES, Laboratory
from wiresum_lab.processes import Program, unused_port, wait_until, wiresum

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNIX = "unix"
"""A listening Unix socket, as found here."""


def documented() -> dict[str, list[str]]:
    """The doors of each program, like `TCP 43487`."""
    text = (REPOSITORY / "docs/security.md").read_text().partition("## What listens\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .* \|$", text, re.MULTILINE)
    return {
        name.replace("`", ""): re.findall(r"(?:TCP|UDP) (?:\d+(?: to \d+)?|metrics|for each thread)", doors)
        for name, doors in rows
    }


def listening(program: int) -> list[str]:
    """By this process: ports, and Unix sockets."""
    command = ["ss", "--no-header", "--listening", "--tcp", "--udp", "--unix", "--processes", "--numeric"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [line.split() for line in said.splitlines() if f"pid={program}," in line]
    return sorted(UNIX if row[0].startswith("u_") else f"{row[0]} {row[4].rpartition(':')[2]}" for row in found)


def expected(doors: list[str], ports: dict[str, int], *, without: str = "") -> list[str]:
    """`ports`: here, by those in the table. A service of ours has a Unix socket besides."""
    found = [UNIX]
    for door in doors:
        protocol, name = door.lower().split(" ", 1)
        first, _, last = name.partition(" to ")
        if name != without:
            count = int(last) - int(first) + 1 if last else 1
            found += [f"{protocol} {ports[first] + further}" for further in range(count)]
    return sorted(found)


def test_nothing_listens_but_what_the_table_says(laboratory: Laboratory) -> None:
    if shutil.which("ss") is None:
        pytest.skip("needs `ss` of iproute2")
    table = documented()
    for name in CONTROLLERS:  # one of them stands by
        ports = {"43487": laboratory.ports[name], "metrics": laboratory.metrics[name]}
        process, doors = laboratory.controllers[name].process.pid, expected(table["wiresum controller"], ports)
        with contextlib.suppress(AssertionError):
            wait_until(lambda process=process, doors=doors: listening(process) == doors, "it serves")  # type: ignore[misc]
        assert listening(process) == doors, name
    for name in SWITCHES:
        ports = {"9559": laboratory.at[name].p4runtime, "43488": laboratory.at[name].data}
        doors = expected(table["wiresum switch --p4runtime"], ports, without="metrics")
        assert listening(laboratory.switches[name].process.pid) == doors

    ports = {"43487": unused_port(), "43488": unused_port(THREADS_MAX), "metrics": unused_port()}
    at = ["--control", f"{HOST}:{ports['43487']}", "--port", str(ports["43488"])]
    with Program(
        wiresum("switch", *at, "--metrics", f"{HOST}:{ports['metrics']}"), laboratory.folder / "alone.log"
    ) as alone:
        alone.await_text("ready: ")
        assert listening(alone.process.pid) == expected(table["wiresum switch"], ports)

    laboratory.pki.issue("serving", "worker", "fallback", addresses=(HOST,))
    port = unused_port(THREADS_MAX)
    job = laboratory.job("night", 2, tls="serving", variables={"WIRESUM_FALLBACK": f"{HOST}:{port}"})
    for worker in job.programs:
        assert listening(worker.process.pid) == [], "its data ports are connected to the switch's"
    for switch in laboratory.switches.values():
        switch.kill()
    wait_until(lambda: "goes on at software switch" in job.programs[0].said(), "it is there", meanwhile=job.check)
    children = Path(f"/proc/{job.programs[0].process.pid}/task").glob("*/children")
    (child,) = {int(child) for each in children for child in each.read_text().split()}
    assert listening(child) == expected(table["fallback"], {"43487": port, "43488": port + 1})
    job.finish()
