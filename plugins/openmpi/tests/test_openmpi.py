"""Open MPI's component, under mpirun, through a real switch and a real join service."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from wiresum import join
from wiresum_lab.doubles.controller import Client

from . import mpi_launch
from .mpi_launch import carried

FOLDER = Path(__file__).resolve().parent
PATIENCE_S = 90.0

pytestmark = pytest.mark.skipif(not mpi_launch.IS_HERE, reason=mpi_launch.WHY_NOT)

Run = Callable[..., str]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("openmpi") / "collectives"
    command = [
        "mpicc",
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        str(FOLDER / "collectives.c"),
        "-o",
        str(made),
    ]
    subprocess.run([*command, "-pthread"], check=True)
    return made


@pytest.fixture
def run(program: Path, control: str) -> Run:
    """Runs a scenario, and gives what everybody printed; `parameters` are the component's."""

    def run_it(scenario: str, size: int, **parameters: str) -> str:
        done = mpi_launch.mpirun([program, scenario], size, mpi_launch.parameters(control, **parameters), PATIENCE_S)
        assert done.code == 0, done.said
        assert done.said.count("is content") == size, done.said
        return done.said

    return run_it


@pytest.mark.parametrize("size", [2, 3])
def test_all_that_suits_goes_through_the_network_and_is_right(run: Run, size: int) -> None:
    # Nine blocking ones, nine that are not, and the barrier.
    assert carried(run("everything", size)) == {0: [19]}


def test_what_does_not_suit_goes_below(run: Run) -> None:
    assert carried(run("below", 3)) == {}


def test_each_communicator_has_an_order_of_its_own_and_messages_get_through_meanwhile(run: Run) -> None:
    counts = carried(run("communicators", 3))
    assert counts.pop(0) == [3]
    assert sorted(count for groups in counts.values() for count in groups) == [1, 2]


def test_a_communicators_job_is_named_after_the_run(run: Run, control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRESUM_JOB", "night")
    run("everything", 2)
    client = Client(int(control.rpartition(":")[2]))
    newest = client.operator.ListEnded(join.ListEndedRequest(count_max=1), timeout=PATIENCE_S).jobs[0]
    client.close()
    assert re.fullmatch(r"night\.mpi-[0-9a-f]+-0-[0-9a-f]{16}", newest.name)


def test_threads_have_communicators_of_their_own(run: Run) -> None:
    assert sorted(carried(run("threads", 2)).values()) == [[10], [10]]


@pytest.mark.parametrize("parameters", [{"priority": "-1"}, {"switch": ""}, {"min_bytes": "1000000000"}])
def test_parameters_turn_it_off(run: Run, parameters: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WIRESUM_SWITCH", raising=False)
    assert carried(run("everything", 2, **parameters)) == {}


def test_floats_can_be_left_to_open_mpi(run: Run) -> None:
    assert carried(run("everything", 2, float32="0")) == {0: [17]}


def test_without_a_switch_a_communicator_goes_on_below_and_says_so(run: Run) -> None:
    said = run("everything", 2, switch="127.0.0.1:1", join_timeout="1")
    assert carried(said) == {}
    assert "a communicator goes on without the network: cannot reach the switch" in said


def test_a_freed_communicators_collectives_complete(run: Run) -> None:
    counts = carried(run("free_in_flight", 3))
    assert counts.pop(0) == [1]
    assert list(counts.values()) == [[5]]
