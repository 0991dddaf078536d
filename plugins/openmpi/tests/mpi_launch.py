"""Runs programs under mpirun, with and without Open MPI's component."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wiresum.agent import _native
from wiresum_lab.patience import PATIENCE_S

COMPONENT = Path(str(_native.__file__)).resolve().parent / "openmpi" / "mca_coll_wiresum.so"
IS_HERE = shutil.which("mpirun") is not None and COMPONENT.exists()
WHY_NOT = "mpirun, or the component (libopenmpi-dev when wiresum was built), is missing: Open MPI is not tried"
ENDING_S_MAX = PATIENCE_S / 2
"""Seconds that mpirun may take to end processes that run too long."""
PASSED = "passed"
TAG = re.compile(r"(\[\d+,\d+\]<\w+>):")
"""The tag that `mpirun --tag-output`, which horovodrun asks for, puts before each chunk that it reads from a
process."""

log = logging.getLogger(__name__)

Outcomes = dict[tuple[int, str], str]
"""How the tests of some project ended, by rank and name: PASSED, or another word."""


def parameters(control: str, **ours: str) -> dict[str, str]:
    """MCA parameters that load the component for the switch at `control`; `ours` are further parameters of the
    component. By default a communicator joins in its first collective."""
    asked = ["ompi_info", "--path", "pkglibdir", "--parsable"]
    installed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().rpartition(":")[2]
    own = {"switch": control, "verbose": "1", "join_after": "0"} | ours
    return {
        "mca_base_component_path": f"{COMPONENT.parent}:{installed}",
        **{f"coll_wiresum_{name}": value for name, value in own.items()},
    }


@dataclass(frozen=True)
class ProgramResult:
    code: int
    said: str


def mpirun(
    program: Sequence[str | Path],
    size: int,
    mca: Mapping[str, str],
    timeout_s: float,
    variables: Mapping[str, str] | None = None,
) -> ProgramResult:
    """Runs `size` processes, possibly more than there are cores, and ends them at the time limit."""
    general = {"mpi_yield_when_idle": "1", "rmaps_base_oversubscribe": "1", "hwloc_base_binding_policy": "none"}
    command: list[str | Path] = ["mpirun", "--allow-run-as-root", "--timeout", f"{timeout_s:.0f}", "-np", str(size)]
    for name, value in {**general, **mca}.items():
        command += ["--mca", name, value]
    environment = os.environ | {"WIRESUM_THREADS": "1"} | (variables or {})
    done = subprocess.run(
        [*command, *program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s + ENDING_S_MAX,
        check=False,
    )
    return ProgramResult(done.returncode, done.stdout)


def streams_of(said: str) -> str:
    """The output of processes without mpirun's tags, one process after the other, as each wrote it. A line that was
    written in two parts has a tag between them, and may have parts of other processes there."""
    untagged, *tagged = TAG.split(said)
    streams: dict[str, str] = {}
    for tag, part in zip(tagged[::2], tagged[1::2], strict=True):
        streams[tag] = streams.get(tag, "") + part
    return untagged + "".join(streams.values())


def carried(said: str) -> dict[int, list[int]]:
    """The number of collectives that went through the network: by communicator, one number for each group of
    processes."""
    found: dict[int, list[int]] = {}
    for communicator, count in re.findall(r"communicator (\d+): (\d+) collectives through the network", said):
        found.setdefault(int(communicator), []).append(int(count))
    return found


def check_as_good(without: Outcomes, over_it: Outcomes, said: str, collectives_min: int) -> None:
    """Checks that all tests that passed without the component pass with it, and that the network was used; `said` is
    the output of the run with it."""
    collectives = sum(sum(counts) for counts in carried(said).values())
    log.info("without: %s; over the component: %s", dict(Counter(without.values())), dict(Counter(over_it.values())))
    log.info("%d collectives went through the network", collectives)
    passed = [test for test, how in without.items() if how == PASSED]
    assert PASSED in over_it.values(), said[-10_000:]
    assert {test: over_it.get(test) for test in passed if over_it.get(test) != PASSED} == {}, said[-10_000:]
    assert collectives >= collectives_min, said[-10_000:]
