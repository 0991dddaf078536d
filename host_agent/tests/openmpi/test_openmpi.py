"""Open MPI's component, under mpirun, through a real switch and a real join service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum import join
from wiresum.agent import _native
from wiresum.controller import JoinServer
from wiresum.controller.testing import Client
from wiresum.switch import SoftwareSwitch

FOLDER = Path(__file__).resolve().parent
COMPONENT = Path(str(_native.__file__)).resolve().parent / "openmpi" / "mca_coll_wiresum.so"
HOST = "127.0.0.1"
PATIENCE_S = 90.0

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None or not COMPONENT.exists(),
    reason="mpirun, or the component (libopenmpi-dev when wiresum was built), is missing: Open MPI is not tried",
)

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


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=4096)
    server = JoinServer(switch)
    yield f"{HOST}:{server.start(HOST, 0)}"
    server.stop(1.0)
    switch.close()


@pytest.fixture
def run(program: Path, control: str) -> Run:
    """Runs a scenario, and gives what everybody printed; `parameters` are the component's."""

    def run_it(scenario: str, size: int, succeeds: bool = True, **parameters: str) -> str:
        ours = {"switch": control, "verbose": "1"} | parameters
        installed = subprocess.run(
            ["ompi_info", "--path", "pkglibdir", "--parsable"], capture_output=True, text=True, check=True
        )
        folders = f"{COMPONENT.parent}:{installed.stdout.strip().rpartition(':')[2]}"
        general = {
            "mca_base_component_path": folders,
            "mpi_yield_when_idle": "1",
            "rmaps_base_oversubscribe": "1",
            "hwloc_base_binding_policy": "none",
        }
        command = ["mpirun", "--allow-run-as-root", "-np", str(size)]
        for name, value in {**general, **{f"coll_wiresum_{name}": value for name, value in ours.items()}}.items():
            command += ["--mca", name, value]
        done = subprocess.run(
            [*command, program, scenario],
            env=os.environ | {"WIRESUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = done.stdout + done.stderr
        if succeeds:
            assert done.returncode == 0, said
            assert said.count("is content") == size, said
        return said

    return run_it


def carried(said: str) -> dict[int, list[int]]:
    """By communicator, how many collectives went through the network; one number for each group of processes."""
    found: dict[int, list[int]] = {}
    for communicator, count in re.findall(r"communicator (\d+): (\d+) collectives through the network", said):
        found.setdefault(int(communicator), []).append(int(count))
    return found


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
    said = run("everything", 2, switch=f"{HOST}:1", join_timeout="1")
    assert carried(said) == {}
    assert "a communicator goes on without the network: cannot reach the switch" in said
