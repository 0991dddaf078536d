"""mpi4py's own tests over the component, if MPI4PY_SOURCE names its source distribution (docs/mpi.md).

pip install mpi4py
MPI4PY_SOURCE=~/mpi4py-4.1.2 pytest --log-cli-level INFO plugins/openmpi/tests/test_mpi4py.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from wiresum_lab.patience import PATIENCE_S

from . import mpi_launch
from .mpi4py_tests import END
from .mpi_launch import Outcomes

FOLDER = Path(__file__).resolve().parent
RUN_S_MAX = 25 * PATIENCE_S

source = os.environ.get("MPI4PY_SOURCE", "")

pytestmark = [
    pytest.mark.skipif(not mpi_launch.IS_HERE, reason=mpi_launch.WHY_NOT),
    pytest.mark.skipif(
        not source or importlib.util.find_spec("mpi4py") is None,
        reason="mpi4py's own tests are not run: MPI4PY_SOURCE names no source distribution, or mpi4py is not installed",
    ),
    pytest.mark.timeout(2 * RUN_S_MAX + 120),
]


def outcomes_of(size: int, folder: Path, mca: dict[str, str], arguments: Iterable[str]) -> tuple[Outcomes, str]:
    """Outcomes of the tests that `arguments` name. A process that ends early, or ends the whole run, counts as a
    failure."""
    folder.mkdir()
    program = [sys.executable, FOLDER / "mpi4py_tests.py", source, folder, *arguments]
    done = mpi_launch.mpirun(program, size, mca, RUN_S_MAX)
    outcomes: Outcomes = {}
    for rank in range(size):
        lines = (folder / str(rank)).read_text().splitlines()
        assert lines[-1].startswith(END), f"rank {rank} ended at {lines[-1]}\n{done.said[-10_000:]}"
        for how, name in (line.split(" ", 1) for line in lines[:-1]):
            if outcomes.get((rank, name)) != "failed":
                outcomes[rank, name] = how
    return outcomes, done.said


@pytest.mark.parametrize("size", [2, 3])
def test_mpi4pys_own_tests_pass_wherever_they_pass_without(control: str, size: int, tmp_path: Path) -> None:
    """MPI4PY_ARGUMENTS, for example `-i test_cco`, selects tests. Those that fail with the component are run again
    without it, and may fail only if they fail there too."""
    arguments = os.environ.get("MPI4PY_ARGUMENTS", "").split()
    over_it, said = outcomes_of(size, tmp_path / "with", mpi_launch.parameters(control, min_bytes="1"), arguments)
    doubtful = sorted({name for (_, name), how in over_it.items() if how != mpi_launch.PASSED})
    without, _ = outcomes_of(size, tmp_path / "without", {"coll": "^wiresum"}, doubtful) if doubtful else ({}, "")
    mpi_launch.check_as_good(without, over_it, said, collectives_min=0 if arguments else 100 * size)
