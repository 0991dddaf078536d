"""The C library, used by C programs in their own processes, with a real switch and a real join service."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from wiresum.cli.paths import paths
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import end, outcome

FOLDER = Path(__file__).resolve().parent
DEV = FOLDER.parents[2] / "build/dev"
EXAMPLE = FOLDER.parents[1] / "examples" / "c"
HOST = "127.0.0.1"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1"]

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("pkg-config") is None,
    reason="cc or pkg-config is missing: programs in C are not tried",
)

needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is missing")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def flags() -> list[str]:
    """The compiler flags that a user of the library gets."""
    return flags_of_pkg_config(CliRunner().invoke(paths, ["pkg-config"], catch_exceptions=False).output.strip())


def flags_of_pkg_config(folder: str | Path, *options: str) -> list[str]:
    found = subprocess.run(
        ["pkg-config", *options, "--cflags", "--libs", "wiresum"],
        env=os.environ | {"PKG_CONFIG_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split()


@pytest.fixture(scope="module")
def worker(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("libwiresum") / "worker"
    subprocess.run(["cc", *STRICT, FOLDER / "worker.c", "-o", program, "-pthread", *flags], check=True)
    return program


@contextmanager
def service(leave_grace_s: float = PATIENCE_S) -> Iterator[str]:
    """`leave_grace_s`: for a worker that still waits for its last sum while another one has left."""
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=2048)
    server = JoinServer(switch, Limits(leave_grace_ms=int(1000 * leave_grace_s)))
    yield f"{HOST}:{server.start(HOST, 0)}"
    server.stop(1.0)
    switch.close()


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    with service() as endpoint:
        yield endpoint


@pytest.fixture
def start(worker: Path, control: str, tmp_path: Path) -> Iterator[Start]:
    """Starts `worker SCENARIO RANK WORLD_SIZE`, with additional environment variables."""
    with ExitStack() as stack:

        def start_one(scenario: str, rank: int = 0, size: int = 1, **variables: str) -> subprocess.Popen[str]:
            # Modules in the current folder of a program must not be imported by its sidecar.
            (tmp_path / "wiresum.py").write_text("raise SystemExit('the wrong wiresum')")
            process = subprocess.Popen(
                [worker, scenario, str(rank), str(size)],
                env=os.environ | {"WIRESUM_SWITCH": control, "WIRESUM_THREADS": "1"} | variables,
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(end, process)
            return process

        yield start_one


def await_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"


def go_on(process: subprocess.Popen[str]) -> None:
    """One that waits for the test."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def sidecar_of(process: subprocess.Popen[str]) -> int:
    needle = f"wiresum-sidecar\0--of\0{process.pid}\0".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and needle in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue  # the process has just ended
    raise AssertionError("the worker has no sidecar")


@pytest.mark.parametrize(("scenario", "size"), [("collectives", 2), ("collectives", 3), ("several-sessions", 2)])
def test_sums_and_copies_are_right(start: Start, scenario: str, size: int) -> None:
    for process in [start(scenario, rank, size) for rank in range(size)]:
        outcome(process)


def test_without_an_operation_the_call_waits_and_the_caller_carries_small_sums(start: Start) -> None:
    first, second = (start("waits-in-the-call", rank, 2) for rank in range(2))
    await_line(first, "summed")
    outcome(second)
    assert re.search("WIRESUM_ERROR_ABORTED.*there is no more data", outcome(first))


@pytest.mark.slow
def test_a_forked_child_has_no_session_and_may_join_itself(start: Start) -> None:
    for process in [start("forked", rank, 2) for rank in range(2)]:
        outcome(process)


def test_invalid_calls_are_refused_and_settings_take_effect(start: Start) -> None:
    outcome(start("arguments"))


@pytest.fixture(scope="module")
def late(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("late") / "late"
    subprocess.run(["cc", *STRICT, FOLDER / "late.c", "-o", program, "-pthread", *flags], check=True)
    return program


@pytest.mark.parametrize(
    "when",
    [
        "exit-handler",
        "exit-handler has-failed",
        "exit-handler has-joined",
        "destructor",
        "destructor has-failed has-joined",
        "thread",
        "thread has-joined",
    ],
)
def test_calls_work_in_exit_handlers_and_destructors(late: Path, control: str, when: str) -> None:
    """There, C++ objects of the thread are gone, and of the process perhaps too."""
    said = run_alone([late, when], control)
    assert said == "done\n"


@pytest.mark.skipif(shutil.which("c++") is None, reason="c++ is missing: programs in C++ are not tried")
def test_objects_of_a_program_in_cpp_may_leave_when_they_are_destroyed(
    flags: list[str], control: str, tmp_path: Path
) -> None:
    program = tmp_path / "late_objects"
    source = FOLDER / "late_objects.cpp"
    subprocess.run(
        ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", source, "-o", program, "-pthread", *flags], check=True
    )
    assert run_alone([program], control) == "left of-thread\nleft of-process\n"


def run_alone(command: list[str | Path], control: str) -> str:
    environment = os.environ | {"WIRESUM_SWITCH": control, "WIRESUM_THREADS": "1", "MALLOC_PERTURB_": "165"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is missing: the library's symbols are not looked at")
def test_the_library_has_no_object_that_the_end_of_a_process_or_of_a_thread_destroys(flags: list[str]) -> None:
    """Another library's destructor may call it after that."""
    (folder,) = (flag[2:] for flag in flags if flag.startswith("-L"))
    library = Path(folder) / "libwiresum.so.1"
    found = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    assert "malloc" in found.stdout or "_Znwm" in found.stdout, "nm has read it"
    assert [line for line in found.stdout.splitlines() if re.search(r"__cxa_(thread_)?atexit|\batexit", line)] == []


def test_null_pointers_are_refused_unless_there_are_no_elements(start: Start) -> None:
    for process in [start("null-pointers", rank, 2) for rank in range(2)]:
        outcome(process)


def test_a_long_text_is_cut_after_a_whole_character(start: Start) -> None:
    outcome(start("long-texts"))


def test_memory_that_partly_overlaps_is_refused_and_what_is_in_place_is_not(start: Start) -> None:
    for process in [start("overlaps", rank, 2) for rank in range(2)]:
        outcome(process)


def test_settings_that_change_after_the_first_session_count(start: Start) -> None:
    outcome(start("settings-change"))


@pytest.mark.slow
def test_a_bad_name_is_said_to_be_one(start: Start) -> None:
    outcome(start("bad-names"))


@pytest.mark.slow
def test_an_unknown_variable_is_warned_of_and_a_misspelt_one_is_refused(start: Start) -> None:
    process = start("several-sessions", WIRESUM_FAVOURITE="1", WIRESUM_SWITCH_PORT_1_TCP="for Kubernetes")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert errors.count("WIRESUM_") == 1, "once, though there are three sessions"
    assert "WIRESUM_FAVOURITE is no setting, and has no effect" in errors
    said = outcome(start("fails-to-join", WIRESUM_SWICH="localhost"))
    assert "WIRESUM_ERROR_ARGUMENT WIRESUM_SWICH is no setting: is WIRESUM_SWITCH meant?" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        ("exits", "WIRESUM_ERROR_ABORTED.*rank 1, global rank 8 of job 'exits': its process ended without leaving"),
        ("crashes", "WIRESUM_ERROR_ABORTED.*rank 1, global rank 8 of job 'crashes': its process ended without leaving"),
        ("leaves", r"WIRESUM_ERROR_ABORTED.*rank 1, global rank 8 \(.* left"),
        (
            "diverges",
            "WIRESUM_ERROR_(DIVERGED|ABORTED).*rank (0, global rank 4|1, global rank 8).*different collectives",
        ),
        ("widths-diverge", "WIRESUM_ERROR_(DIVERGED|ABORTED).*different collectives"),
    ],
)
def test_a_worker_that_ends_early_ends_the_job_and_the_others_know_why(start: Start, scenario: str, says: str) -> None:
    with service(leave_grace_s=0.0) as endpoint:
        first, second = (
            start(scenario, rank, 2, WIRESUM_SWITCH=endpoint, TEST_SETTING=f"WIRESUM_GLOBAL_RANK={4 + 4 * rank}")
            for rank in range(2)
        )
        await_line(first, "waiting")
        go_on(second)
        assert re.search(says, outcome(first))


@pytest.mark.slow
def test_a_sidecar_that_dies_ends_its_session_at_once(start: Start) -> None:
    processes = [start("sidecar-dies", rank, 2) for rank in range(2)]
    await_line(processes[0], "waiting")
    os.kill(sidecar_of(processes[0]), signal.SIGKILL)
    assert "WIRESUM_ERROR_SIDECAR the sidecar that attends job 'sidecar-dies'" in outcome(processes[0])
    assert "WIRESUM_ERROR_WORKER_LOST" in outcome(processes[1])


@pytest.mark.slow
def test_a_job_goes_on_at_a_switch_that_was_started_anew(start: Start) -> None:
    """Nobody tells its sidecars."""
    with ExitStack() as stack:

        def serve(port: int) -> JoinServer:
            switch = stack.enter_context(closing(SoftwareSwitch(bind=HOST, port=0, threads=1, slots=2048)))
            server = JoinServer(switch, Limits(leave_grace_ms=int(1000 * PATIENCE_S)))
            stack.callback(server.stop, 0.0)
            server.start(HOST, port)
            return server

        server = serve(0)
        control = f"{HOST}:{server.port}"
        first, second = (start("goes-on", rank, 2, WIRESUM_SWITCH=control) for rank in range(2))
        for _ in range(2):
            await_line(first, "summed")
            await_line(second, "summed")
            server.stop(0.0, keep_jobs=True)
            go_on(second)  # one sends while there is nobody, and the other one later
            server = serve(server.port)
            go_on(first)
        for process in (first, second):
            outcome(process)


@pytest.mark.slow
def test_leaving_and_a_deadline_end_what_is_in_flight(start: Start) -> None:
    first, _ = (start("calls-alone", rank, 2) for rank in range(2))
    assert re.search("WIRESUM_ERROR_CLOSED.*\\n.*WIRESUM_ERROR_COLLECTIVE_TIMEOUT", outcome(first))


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"WIRESUM_PYTHON": "/nowhere/python"}, "WIRESUM_ERROR_SIDECAR.*WIRESUM_PYTHON"),
        (
            {"WIRESUM_PYTHON": "/bin/true"},
            "WIRESUM_ERROR_SIDECAR.*'/bin/true': it ended without a word.*WIRESUM_PYTHON",
        ),
        ({"WIRESUM_SWITCH": "127.0.0.1:1"}, "WIRESUM_ERROR_JOIN.*127.0.0.1:1"),
        ({"WIRESUM_ADDRESS": "192.0.2.1"}, "WIRESUM_ERROR .*192.0.2.1"),
        ({"WIRESUM_THREADS": "many"}, "WIRESUM_ERROR_ARGUMENT.*WIRESUM_THREADS"),
    ],
)
def test_a_failed_join_says_why(start: Start, variables: dict[str, str], says: str) -> None:
    assert re.search(says, outcome(start("fails-to-join", 0, 1, **variables)))


@pytest.mark.slow
def test_all_ranks_hear_which_setting_differs(start: Start) -> None:
    for process in [start("fails-to-join", rank, 2, WIRESUM_BITS=bits) for rank, bits in enumerate(("16", "32"))]:
        said = outcome(process)
        assert "WIRESUM_ERROR_JOIN" in said
        assert "different settings" in said
        assert "WIRESUM_BITS is 16 at rank 0 " in said and "32 at rank 1 " in said


def test_what_the_sidecar_cannot_import_is_said(start: Start, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("click", "grpc", "google"):
        (broken / f"{name}.py").write_text("raise ImportError('it is broken')")
    said = outcome(start("fails-to-join", 0, 1, PYTHONPATH=str(broken), WIRESUM_PYTHON=sys.executable))
    assert re.search(
        r"WIRESUM_ERROR_SIDECAR cannot start the sidecar.*: ImportError: it is broken\. WIRESUM_PYTHON", said
    )


def test_a_program_can_fork_while_an_interpreter_does_not_begin(start: Start, tmp_path: Path) -> None:
    """As where its files are on a server that does not answer."""
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(f"#!/bin/sh\n> started\nexec sleep {PATIENCE_S} > /dev/null 2>&1")
    interpreter.chmod(0o755)
    outcome(start("forks-while-joining", 0, 1, WIRESUM_PYTHON=str(interpreter)))


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}, "slurm-17.0"),
        ({"SLURM_JOB_ID": "17", "WIRESUM_JOB": "night"}, "night"),
    ],
)
def test_an_unnamed_job_is_named_by_the_environment(start: Start, variables: dict[str, str], name: str) -> None:
    said = outcome(start("unnamed", WIRESUM_TLS="/nowhere", **variables))
    assert f"cannot join job '{name}': " in said


def test_ports_outside_the_configured_range_are_not_used(start: Start) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        said = outcome(start("fails-to-join", 0, 1, WIRESUM_PORTS=f"{port}-{port}"))
    assert f"no 1 consecutive UDP ports from {HOST}:{port} to {port} are free" in said
    assert "WIRESUM_PORTS" in said


def example_sums(program: Path, **variables: str) -> None:
    ranks = [
        subprocess.Popen([program, str(rank), "2"], env=os.environ | variables, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert f"rank {rank}: every element is 3" in out


def test_the_example_sums_with_pkg_config(flags: list[str], control: str, tmp_path: Path) -> None:
    assert "-lwiresum" in flags
    program = tmp_path / "all_reduce"
    subprocess.run(["cc", *STRICT, EXAMPLE / "all_reduce.c", "-o", program, *flags], check=True)
    example_sums(program, WIRESUM_SWITCH=control)


def built_by_cmake(folder: Path, **variables: str) -> Path:
    """The example, by its own CMakeLists.txt."""
    settings = [f"-D{name}={value}" for name, value in variables.items()]
    subprocess.run(["cmake", "-S", EXAMPLE, "-B", folder, *settings], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    return folder / "all_reduce"


@needs_cmake
def test_the_example_sums_with_cmake(control: str, tmp_path: Path) -> None:
    package = CliRunner().invoke(paths, ["cmake"], catch_exceptions=False).output.strip()
    example_sums(built_by_cmake(tmp_path, wiresum_DIR=package), WIRESUM_SWITCH=control)


@pytest.mark.nightly
@needs_cmake
@pytest.mark.timeout(600)  # it compiles what has changed
@pytest.mark.skipif(not (DEV / "build.ninja").exists(), reason="the build of the preset dev is not there")
def test_an_installed_build_is_found_by_cmake_and_by_pkg_config(control: str, tmp_path: Path) -> None:
    subprocess.run(["cmake", "--build", DEV, "--target", "wiresum_shared"], check=True)
    prefix = tmp_path / "usr"
    subprocess.run(["cmake", "--install", DEV, "--prefix", prefix, "--component", "libwiresum"], check=True)
    variables = {"WIRESUM_SWITCH": control, "WIRESUM_PYTHON": sys.executable}
    example_sums(built_by_cmake(tmp_path / "build", CMAKE_PREFIX_PATH=str(prefix)), **variables)
    program = tmp_path / "all_reduce"
    (folder,) = prefix.rglob("pkgconfig")
    flags = flags_of_pkg_config(folder, "--define-prefix")  # the file has that of the configuration
    assert f"-L{folder.parent}" in flags
    subprocess.run(["cc", EXAMPLE / "all_reduce.c", "-o", program, *flags], check=True)
    example_sums(program, **variables)


@needs_cmake
def test_a_cmake_project_that_needs_a_later_version_does_not_get_this_one(tmp_path: Path) -> None:
    package = CliRunner().invoke(paths, ["cmake"], catch_exceptions=False).output.strip()
    project = tmp_path / "CMakeLists.txt"
    project.write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(later LANGUAGES C)\nfind_package(wiresum 99 REQUIRED)\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dwiresum_DIR={package}"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "wiresum-config.cmake, version: 0" in refused.stderr


def test_the_header_is_one_for_cpp_too(flags: list[str], tmp_path: Path) -> None:
    includes = [flag for flag in flags if flag.startswith("-I")]
    unit = tmp_path / "unit.cpp"
    unit.write_text("#include <wiresum/wiresum.h>\nint main() { return wiresum_rank(nullptr) == -1 ? 0 : 1; }\n")
    subprocess.run(["c++", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *includes, "-fsyntax-only", unit], check=True)
