"""Horovod itself, unmodified and built with MPI, over the component; where it is not installed, skipped.

docs/mpi.md says how it is built. HOROVOD_SOURCE names a checkout of Horovod, whose own tests are run, too:

    HOROVOD_SOURCE=~/horovod pytest --log-cli-level INFO plugins/openmpi/tests/test_horovod.py
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from wiresum_lab.patience import PATIENCE_S

from . import mpi_launch
from .mpi_launch import Outcomes

FOLDER = Path(__file__).resolve().parent
EXAMPLE = FOLDER.parents[1] / "horovod/examples/digits.py"
RANKS, EPOCHS, BATCH = 2, 4, 32
TRAINING_IMAGES, GRADIENTS = 1437, 38_282
TRAINING_S_MAX, OWN_TESTS_S_MAX = 2 * PATIENCE_S, 25 * PATIENCE_S

source = os.environ.get("HOROVOD_SOURCE", "")


def runs_horovod(test: Callable[..., None]) -> Callable[..., None]:
    """Skips the test where Horovod or the component is not there."""
    is_here = importlib.util.find_spec("horovod") is not None
    installed = pytest.mark.skipif(not is_here, reason="Horovod is not installed, so it is not tried over MPI")
    return installed(pytest.mark.skipif(not mpi_launch.IS_HERE, reason=mpi_launch.WHY_NOT)(test))


def horovodrun(program: Sequence[str | Path], mca: Mapping[str, str], timeout_s: float) -> str:
    """Runs `program` in `RANKS` processes and returns their output, without the tags that horovodrun adds."""
    words = ["--timeout", f"{timeout_s:.0f}"]
    for name, value in {"rmaps_base_oversubscribe": "1", "mpi_yield_when_idle": "1", **mca}.items():
        words += ["--mca", name, value]
    launcher = Path(sys.executable).with_name("horovodrun")
    command = [launcher, "--mpi", "-np", str(RANKS), f"--mpi-args={' '.join(words)}", sys.executable, *program]
    # horovodrun is a shell over mpirun over the ranks: a process group of its own, so that all of them can be killed.
    with subprocess.Popen(
        command,
        env=os.environ | {"WIRESUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s + mpi_launch.ENDING_S_MAX)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return mpi_launch.streams_of(said)


def test_output_is_read_as_each_process_wrote_it_whatever_tags_cut_it() -> None:
    said = (
        "a launcher's own line\n"
        "[1,0]<stdout>:epoch 1: accuracy 0.9[1,1]<stderr>:loaded 2[1,0]<stdout>:333[1,0]<stdout>:\n"
        "[1,1]<stderr>: of 3\n[1,0]<stdout>:the end\n"
    )
    assert mpi_launch.streams_of(said) == ("a launcher's own line\nepoch 1: accuracy 0.9333\nthe end\nloaded 2 of 3\n")
    assert mpi_launch.streams_of("no tag [1, 2] here") == "no tag [1, 2] here"


def accuracy_of(said: str) -> float:
    accuracies = re.findall(r"accuracy (\S+)", said)
    assert len(accuracies) == EPOCHS, said
    return float(accuracies[-1])


@runs_horovod
@pytest.mark.timeout(3 * TRAINING_S_MAX)
def test_horovods_example_trains_through_the_switch_to_the_same_accuracy(control: str, tmp_path: Path) -> None:
    """The example is that of docs/horovod.md, changed back to import Horovod itself."""
    ours, theirs = "import wiresum.horovod.torch as hvd", "import horovod.torch as hvd"
    text = EXAMPLE.read_text()
    assert text.count(f"\n{ours}\n") == 1
    script = tmp_path / "digits.py"
    script.write_text(text.replace(f"\n{ours}\n", f"\n{theirs}\n"))
    program = [script, "--epochs", str(EPOCHS), "--batch-size", str(BATCH)]
    without = horovodrun(program, {"coll": "^wiresum"}, TRAINING_S_MAX)
    over_it = horovodrun(program, mpi_launch.parameters(control, min_bytes="1024"), TRAINING_S_MAX)
    assert accuracy_of(without) > 0.9, without
    assert accuracy_of(over_it) == pytest.approx(accuracy_of(without), abs=0.01), over_it
    packets = sum(int(count) for count in re.findall(r"(\d+) packets sent by rank 0", over_it))
    steps = EPOCHS * -(-TRAINING_IMAGES // (RANKS * BATCH))
    # The packets cannot be fewer than the longest possible ones would be.
    assert packets >= steps * 4 * GRADIENTS // 9000, over_it


def own_tests(folder: Path, mca: Mapping[str, str]) -> tuple[Outcomes, str]:
    folder.mkdir()
    program = [FOLDER / "horovod_tests.py", source, folder, "--timeout", "120", "--color", "no"]
    said = horovodrun(program, mca, OWN_TESTS_S_MAX)
    outcomes: Outcomes = {}
    for rank in range(RANKS):
        for case in ElementTree.parse(folder / f"{rank}.xml").iter("testcase"):
            ends = [end.tag for end in case if end.tag in ("failure", "error", "skipped")]
            outcomes[rank, case.attrib["name"]] = ends[0] if ends else mpi_launch.PASSED
    return outcomes, said


@runs_horovod
@pytest.mark.skipif(not source, reason="Horovod's own tests are not run over MPI: HOROVOD_SOURCE names no checkout")
@pytest.mark.timeout(2 * OWN_TESTS_S_MAX + 120)
def test_horovods_own_tests_pass_wherever_they_pass_without(control: str, tmp_path: Path) -> None:
    without, _ = own_tests(tmp_path / "without", {"coll": "^wiresum"})
    over_it, said = own_tests(tmp_path / "with", mpi_launch.parameters(control, min_bytes="1"))
    mpi_launch.check_as_good(without, over_it, said, collectives_min=100)
