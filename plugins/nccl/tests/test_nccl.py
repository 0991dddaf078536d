"""NCCL's plug-in, loaded and called as NCCL does it, with a real switch and a real join service; no GPU is needed.

WIRESUM_NCCL_LIBRARY=... tries another build of the library, and WIRESUM_NCCL_FLAGS="-fsanitize=thread" compiles the
program that loads it as that needs.

pytest plugins/nccl/tests -k random --seeds 10000       a long run of random sequences
pytest plugins/nccl/tests -k random --seed 17           one of them
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.cli.paths import paths
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import end, outcome, wait_until

FOLDER = Path(__file__).resolve().parent
HOST = "127.0.0.1"
REMOTE_ERROR = "6"
"""ncclRemoteError"""
NCCL_VERSION_MIN = 22809
"""The version of PyTorch 2.11's NCCL, the first used with Wiresum that has tables of version 11."""

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="c++ is missing: NCCL's plug-in is not tried")


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


Start = Callable[..., "list[subprocess.Popen[str]]"]


@pytest.fixture(scope="module")
def library() -> Path:
    chosen = os.environ.get("WIRESUM_NCCL_LIBRARY")
    if chosen is not None:
        return Path(chosen)
    folder = CliRunner().invoke(paths, ["nccl"], catch_exceptions=False).output.strip()
    return Path(folder) / "libnccl-net-wiresum.so"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("nccl") / "node"
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
    flags = ["-std=c++20", "-O1", *warnings, *os.environ.get("WIRESUM_NCCL_FLAGS", "").split()]
    subprocess.run(["c++", *flags, FOLDER / "node.cpp", "-o", program, "-ldl", "-pthread"], check=True)
    return program


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=4096)
    server = JoinServer(switch, Limits(leave_grace_ms=0))
    yield f"{HOST}:{server.start(HOST, 0)}"
    server.stop(1.0)
    switch.close()


def environment(switch: str) -> dict[str, str]:
    """The variables of a node on a host of its own."""
    own = {"WIRESUM_SWITCH": switch, "WIRESUM_THREADS": "1", "WIRESUM_ADDRESS": HOST, "WIRESUM_SHARE": "0"}
    return os.environ | own | {"WIRESUM_PYTHON": sys.executable}


@pytest.fixture
def start(node: Path, library: Path, control: str, tmp_path: Path) -> Iterator[Start]:
    """Starts the nodes of a scenario, which meet at the switch, as on hosts of their own. `one` has variables of node
    1; `started` is how many of the nodes are started."""
    with ExitStack() as stack:

        def start_all(
            scenario: str,
            argument: str = "",
            size: int = 2,
            one: dict[str, str] | None = None,
            started: int | None = None,
            **all_of: str,
        ) -> list[subprocess.Popen[str]]:
            made = []
            for rank in range(size if started is None else started):
                process = subprocess.Popen(
                    [node, library, tmp_path, str(rank), str(size), scenario, argument],
                    env=environment(control) | all_of | (one or {} if rank == 1 else {}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                stack.callback(end, process)
                made.append(process)
            return made

        yield start_all


@pytest.mark.parametrize(("size", "communicators"), [(2, 1), slow(3, 2), slow(4, 5)])
def test_sums_and_copies_of_all_types_and_sizes_are_right(start: Start, size: int, communicators: int) -> None:
    for process in start("sums", str(communicators), size):
        outcome(process)


@pytest.mark.slow
def test_fifty_communicators_are_in_a_process_beside_each_other(start: Start) -> None:
    for process in start("many", "50"):
        outcome(process)


def test_sums_of_floats_have_the_bits_of_the_sessions_own(start: Start, control: str, tmp_path: Path) -> None:
    for process in start("bits"):
        outcome(process)
    config = AgentConfig(switch=control, threads=1, join_timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(2) as pool:
        sessions = list(pool.map(lambda rank: Session.join(config, job_name="own", rank=rank, world_size=2), range(2)))
    for number, dtype, width in ((7, Dtype.F32, 4), (6, Dtype.F16, 2), (9, Dtype.BF16, 2)):
        given = [bytearray((tmp_path / f"in.{number}.{rank}").read_bytes()) for rank in range(2)]
        memory = [(ctypes.c_char * len(one)).from_buffer(one) for one in given]
        operations = [
            session.submit([Region(ctypes.addressof(one), ctypes.addressof(one), len(one) // width)], dtype=dtype)
            for session, one in zip(sessions, memory, strict=True)
        ]
        for operation in operations:
            operation.wait(PATIENCE_S)
        assert [(tmp_path / f"out.{number}.{rank}").read_bytes() for rank in range(2)] == given
    for session in sessions:
        session.close()


@pytest.mark.slow
def test_what_the_plug_in_cannot_do_is_refused(start: Start) -> None:
    for process in start("misuses"):
        outcome(process)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("dies", "rank 2 of job 'night-.*': its process ended without leaving"),
        slow("closes", "rank 2 .* left"),
    ],
)
def test_a_node_that_ends_is_named_at_all_others(start: Start, how: str, says: str) -> None:
    nodes = start("ends", how, 3, WIRESUM_JOB="night")
    for process in nodes[:2]:
        said = outcome(process)
        assert said.startswith(REMOTE_ERROR)
        assert re.search(says, said)


@pytest.mark.parametrize(
    ("one", "says"),
    [
        slow({"WIRESUM_SWITCH": f"{HOST}:1"}, f"{HOST}:1"),
        ({"WIRESUM_BITS": "16"}, "and 16 at rank 1 "),
        slow({"WIRESUM_PYTHON": "/nowhere/python"}, "WIRESUM_PYTHON"),
    ],
)
def test_connecting_fails_at_all_nodes_if_it_fails_at_one(start: Start, one: dict[str, str], says: str) -> None:
    said = [outcome(process) for process in start("connects", size=3, one=one)]
    assert all(not text.startswith("0 ") for text in said), said
    assert says in said[1]


def test_connecting_fails_if_a_node_leaves_before_all_know_that_all_have_joined(
    start: Start, control: str, tmp_path: Path
) -> None:
    (node,) = start("connects", started=1)
    handle = tmp_path / "g.0"
    wait_until(handle.exists, "the node's handle")
    job = re.search(rb"nccl-[0-9a-f]{32}", handle.read_bytes())
    assert job
    (tmp_path / "g.1").write_bytes(handle.read_bytes())
    config = AgentConfig(switch=control, threads=1, share=False, join_timeout_s=PATIENCE_S)
    Session.join(config, job_name=job.group().decode(), rank=1, world_size=2).close()
    said = outcome(node)
    assert said.startswith(REMOTE_ERROR)
    assert re.search("rank 1 .* left", said)


@pytest.mark.slow
def test_all_nodes_take_their_own_path_if_the_switch_has_no_room(start: Start, node: Path) -> None:
    full = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=64)
    server = JoinServer(full)
    try:
        config = AgentConfig(switch=f"{HOST}:{server.start(HOST, 0)}", slots=64, join_timeout_s=PATIENCE_S)
        session = Session.join(config, job_name="before", rank=0, world_size=1)
        said = [outcome(process) for process in start("connects", WIRESUM_SWITCH=f"{HOST}:{server.port}")]
        session.close()
    finally:
        server.stop(1.0)
        full.close()
    assert all(text.startswith(REMOTE_ERROR) for text in said), said


@pytest.mark.slow
def test_a_group_may_be_closed_with_requests_in_flight(start: Start) -> None:
    for process in start("aborts"):
        outcome(process)


DIES = {1, 7}
"""The faults that end a node (node.cpp, `Fault`)."""


class Service:
    """A switch with its join service, which can be ended and started anew."""

    def __init__(self) -> None:
        self._port = 0
        self.start()

    def start(self) -> None:
        self._switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=4096)
        self._server = JoinServer(self._switch, Limits(leave_grace_ms=0))
        self._port = self._server.start(HOST, self._port)

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self._port}"

    def stop(self, *, keep_jobs: bool = False) -> None:
        self._server.stop(0.0, keep_jobs=keep_jobs)
        self._switch.close()


class Nodes:
    """Nodes that run one sequence after the other; a node that has died is started anew."""

    def __init__(self, start_one: Callable[[int, str], subprocess.Popen[str]], size: int, folder: Path) -> None:
        self._service = Service()
        self._start_one = start_one
        self._folder = folder
        self._nodes = [start_one(rank, self._service.endpoint) for rank in range(size)]

    def run(self, seed: int) -> list[str]:
        """Runs one sequence. Returns a line of each node, empty for a node that has died."""
        for node in self._nodes:
            assert node.stdin
            node.stdin.write(f"{seed}\n")
            node.stdin.flush()
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            lines = [pool.submit(self._line, node) for node in self._nodes]
            _, late = wait(lines, 3 * PATIENCE_S)
            for node in self._nodes if late else []:
                node.kill()
        said = [line.result() for line in lines]
        for rank, line in enumerate(said):
            if not line:
                end(self._nodes[rank])
                self._nodes[rank] = self._start_one(rank, self._service.endpoint)
        for handle in self._folder.iterdir():
            handle.unlink()
        assert not late, f"{len(late)} nodes of {len(said)} hang"
        return said

    def _line(self, node: subprocess.Popen[str]) -> str:
        assert node.stdout
        while (line := node.stdout.readline()) == "switch\n":
            self._service.stop(keep_jobs=True)
            self._service.start()
        return line

    def end(self) -> None:
        """The nodes end by themselves, with exit code 0: a sanitizer reports findings by the exit code."""
        try:
            for node in self._nodes:
                outcome(node)
        finally:
            for node in self._nodes:
                node.kill()
            self._service.stop()


@pytest.fixture(scope="module")
def nodes(node: Path, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Nodes]]:
    made: dict[int, Nodes] = {}

    def of_size(size: int) -> Nodes:
        if size not in made:
            folder = tmp_path_factory.mktemp("nodes")

            def start_one(rank: int, endpoint: str) -> subprocess.Popen[str]:
                return subprocess.Popen(
                    [node, library, folder, str(rank), str(size), "sequences"],
                    env=environment(endpoint),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )

            made[size] = Nodes(start_one, size, folder)
        return made[size]

    yield of_size
    for each in made.values():
        each.end()


def test_random_sequences_with_faults_sum_right_or_fail_everywhere(
    nodes: Callable[[int], Nodes], nccl_seed: int
) -> None:
    """A node that finds an error ends."""
    said = nodes(2 + nccl_seed % 3).run(nccl_seed)
    (fault,) = {int(line) for line in said if line}
    assert said.count("") == (1 if fault in DIES else 0), said


@pytest.fixture(scope="module")
def nccl() -> Path:
    """NCCL itself, from the package that PyTorch's wheels need."""
    if os.environ.get("WIRESUM_NCCL_FLAGS"):
        pytest.skip("Python loads no library with a sanitizer: NCCL itself is not tried")
    found = importlib.util.find_spec("nvidia")
    folders = [os.environ.get("WIRESUM_NCCL_ITSELF", ""), *((found.submodule_search_locations or []) if found else [])]
    for folder in folders:
        if (made := Path(folder) / "nccl/lib/libnccl.so.2").exists():
            return made
    pytest.skip("nvidia-nccl-cu13 is not installed, nor in WIRESUM_NCCL_ITSELF: NCCL itself is not tried")


def test_nccl_knows_the_tables_and_stays_whole_beside_the_plug_in(nccl: Path, library: Path) -> None:
    """NCCL without a GPU makes no communicator, and loads no plug-in for one."""
    tables = re.findall(rb"nccl(?:Coll)?NetPlugin_v11\0", nccl.read_bytes())
    assert {*tables} == {b"ncclNetPlugin_v11\0", b"ncclCollNetPlugin_v11\0"}
    program = (
        "import ctypes, sys\n"
        "nccl, plugin = map(ctypes.CDLL, sys.argv[1:])\n"
        "version, unique = ctypes.c_int(), ctypes.create_string_buffer(128)\n"
        "assert nccl.ncclGetVersion(ctypes.byref(version)) == 0 and nccl.ncclGetUniqueId(unique) == 0\n"
        "print(version.value, ctypes.c_char_p.in_dll(plugin, 'ncclCollNetPlugin_v11').value.decode())\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, nccl, library],
        env=os.environ | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET_PLUGIN": "wiresum", "NCCL_COLLNET_ENABLE": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    version, name = said.stdout.split()
    assert int(version) >= NCCL_VERSION_MIN
    assert name == "Wiresum"


@pytest.fixture(scope="module")
def one_gpu() -> ModuleType:
    """The program for machines with a GPU."""
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("one_gpu", FOLDER.parent / "examples" / "one_gpu.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VIA = "h:1:1 [0] NCCL INFO CollNet 00/1 : 0 [send] via COLLNET/Wiresum/0"
BY_CHAIN = "h:1:1 [0] NCCL INFO AllReduce: 4000 Bytes -> Algo COLLNET_CHAIN proto SIMPLE channel{Lo..Hi}={0..1}"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([VIA, BY_CHAIN], "$"),
        ([BY_CHAIN], "no channel"),
        ([VIA], "other algorithms: {}"),
        ([VIA, BY_CHAIN, BY_CHAIN.replace("COLLNET_CHAIN", "RING")], "other algorithms: {'RING': 1}"),
        ([VIA, "h:1:1 [0] wiresum:0 NCCL WARN cannot join job 'nccl-1'"], "cannot join job 'nccl-1'"),
    ],
)
def test_whether_collnet_was_used_is_read_from_nccls_log(one_gpu: ModuleType, lines: list[str], why: str) -> None:
    assert re.match(why, one_gpu.verdict("\n".join(lines)).removeprefix("NCCL has chosen "))
