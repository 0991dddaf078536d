"""Open MPI's component under mpirun, with a real switch and a real join service."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from wiresum import join
from wiresum.join.constants import SWITCH_WORKERS_MAX
from wiresum.switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.loopback_tree import loopback_tree
from wiresum_lab.patience import PATIENCE_S

from . import mpi_launch
from .conftest import HOST, switches
from .mpi_launch import carried

FOLDER = Path(__file__).resolve().parent
RUN_S_MAX = 3 * PATIENCE_S
WARNING_CHARACTERS_MAX = 320
TRIES_MORE = 3
ACCUSED = re.compile(r"mpirun has exited due to process rank (\d+) ")

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
    """Runs a scenario and returns the output of all processes; `parameters` are the component's."""

    def run_it(scenario: str, size: int, *, through: str = control, launcher: Sequence[str] = (), **own: str) -> str:
        parameters = mpi_launch.parameters(through, **own)
        done = mpi_launch.mpirun([*launcher, program, scenario], size, parameters, RUN_S_MAX)
        for _ in range(TRIES_MORE):
            accused = ACCUSED.search(done.said)
            if not accused or f"rank {accused[1]} is content" not in done.said:
                break
            # mpirun takes a process that has returned from MPI_Finalize for one that has not called it, now and then.
            done = mpi_launch.mpirun([*launcher, program, scenario], size, parameters, RUN_S_MAX)
        assert done.code == 0, done.said
        assert done.said.count("is content") == size, done.said
        return done.said

    return run_it


def warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if "goes on without the network" in line]


@pytest.fixture
def full() -> Iterator[str]:
    """A switch with the slots of one job."""
    with switches(SoftwareSwitch(bind=HOST, port=0, threads=1, slots=256)) as control:
        yield control


@pytest.fixture
def tree() -> Iterator[str]:
    """Two leaves below a spine; the hosts are 127.0.7.101 and 127.0.7.102."""
    with switches(*loopback_tree("127.0.7", 2, slots=512)) as control:
        yield control


def test_collectives_are_right_and_the_supported_ones_go_through_the_network(
    run: Run, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The communicator's job is named after the run."""
    monkeypatch.setenv("WIRESUM_JOB", "night")
    # Nine blocking collectives, nine nonblocking ones, six of each from MPI_BOTTOM, and the barrier.
    assert carried(run("everything", 3)) == {0: [31]}
    client = Client(int(control.rpartition(":")[2]))
    newest = client.operator.ListEnded(join.ListEndedRequest(count_max=1), timeout=PATIENCE_S).jobs[0]
    client.close()
    assert re.fullmatch(r"night\.mpi-[0-9a-f]+-0-[0-9a-f]{16}", newest.name)


def test_communicators_may_be_freed_at_once_and_used_in_different_orders_and_by_threads(run: Run) -> None:
    counts = carried(run("communicators", 3))
    assert counts.pop(0) == [3 + 1]
    assert sorted(count for groups in counts.values() for count in groups) == [1, 2, 5, 10, 10]


@pytest.mark.parametrize("parameters", [{"priority": "-1"}, {"switch": ""}, {"min_bytes": "1000000000"}])
def test_parameters_turn_it_off(run: Run, parameters: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WIRESUM_SWITCH", raising=False)
    assert carried(run("everything", 2, **parameters)) == {}


def test_floats_can_be_left_to_open_mpi(run: Run) -> None:
    assert carried(run("everything", 2, float32="0")) == {0: [29]}


@pytest.mark.slow
def test_floats_are_summed_in_blocks_if_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test puts an Inf, a NaN or a much larger number into the same packet."""
    monkeypatch.setenv("WIRESUM_PRECISION", "block")
    said = run("floats", 3)
    assert carried(said) == {0: [4]}
    found = re.search(r"^(\d+) floats differ", said, re.MULTILINE)
    assert found and int(found[1]) >= 300, said


@pytest.mark.slow
def test_rank_0_decides_how_floats_are_rounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 sets nothing, so floats are summed as Open MPI does."""
    monkeypatch.delenv("WIRESUM_PRECISION", raising=False)
    others_in_blocks = '[ $OMPI_COMM_WORLD_RANK = 0 ] || export WIRESUM_PRECISION=block; exec "$0" "$@"'
    said = run("floats", 3, launcher=["sh", "-c", others_in_blocks])
    assert carried(said) == {0: [4]}
    assert "\n0 floats differ" in f"\n{said}"


def test_errors_of_a_communicator_name_the_ranks_in_the_world_too(run: Run) -> None:
    said = run("differ", 3)
    assert re.search(r"coll:wiresum: .*(rank 0, global rank 1|rank 1, global rank 2)\b.*different collectives", said)


def test_a_communicator_joins_after_some_collectives(run: Run) -> None:
    # Every second of eight sums is blocking: after three, the next blocking one is the fifth.
    assert carried(run("sums", 2, join_after="3")) == {0: [4]}


def test_communicators_of_a_few_collectives_do_not_join(program: Path, control: str) -> None:
    parameters = mpi_launch.parameters(control)
    del parameters["coll_wiresum_join_after"]
    done = mpi_launch.mpirun([program, "dups"], 2, parameters, RUN_S_MAX)
    assert done.code == 0, done.said
    assert "coll:wiresum" not in done.said


@pytest.mark.slow
def test_a_programs_further_communicators_have_small_leases(run: Run) -> None:
    said = run("dups", 2)
    assert warnings(said) == []
    # 20 one after the other, and 20 at once, for which a switch of 4,096 slots has no room if each takes the usual 256.
    counts = carried(said)
    counts.pop(0)
    assert [count for groups in counts.values() for count in groups] == 40 * [1]


@pytest.mark.slow
def test_communicators_that_a_full_switch_refuses_go_on_with_one_short_warning(run: Run, full: str) -> None:
    said = run("dups", 2, through=full, verbose="0")
    (warning,) = warnings(said)
    assert "no 16 slots in a row are free" in warning
    assert len(warning) <= WARNING_CHARACTERS_MAX


@pytest.mark.slow
def test_without_a_switch_a_communicator_goes_on_below_and_says_so_once(run: Run) -> None:
    said = run("everything", 2, switch="127.0.0.1:1", join_timeout="1", verbose="0")
    (warning,) = warnings(said)
    assert "a communicator goes on without the network: cannot reach the switch" in warning
    assert len(warning) <= WARNING_CHARACTERS_MAX


@pytest.mark.nightly
def test_verbosely_each_process_says_all(run: Run) -> None:
    said = run("everything", 2, switch="127.0.0.1:1", join_timeout="1")
    assert carried(said) == {}
    assert len(warnings(said)) == 3


@pytest.mark.nightly
@pytest.mark.timeout(4 * PATIENCE_S)
def test_more_processes_than_a_switch_has_bits_go_on_below_with_one_warning(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIRESUM_SHARE", "0")  # otherwise processes of one host would share a worker bit
    said = run("sums", SWITCH_WORKERS_MAX + 1, verbose="0")
    (warning,) = warnings(said)
    assert str(SWITCH_WORKERS_MAX) in warning
    assert len(warning) <= WARNING_CHARACTERS_MAX


@pytest.mark.nightly
@pytest.mark.timeout(4 * PATIENCE_S)
def test_more_processes_than_that_sum_in_a_tree(run: Run, tree: str) -> None:
    own_address = 'export WIRESUM_ADDRESS=127.0.7.10$((1 + OMPI_COMM_WORLD_RANK % 2)); exec "$0" "$@"'
    said = run("sums", SWITCH_WORKERS_MAX + 2, through=tree, launcher=["sh", "-c", own_address])
    assert warnings(said) == []
    assert carried(said) == {0: [8]}
