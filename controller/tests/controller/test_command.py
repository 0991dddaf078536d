"""`wiresum controller` as a process, with a software switch that has a P4Runtime server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.controller import config
from wiresum.controller.command import EXIT_DEMOTED, controller
from wiresum.controller.jobs.outputs import Save
from wiresum.controller.jobs.records import JobRecord
from wiresum.controller.p4runtime.versions import ours
from wiresum.controller.store import Store
from wiresum.join.constants import STATE_SCHEMA
from wiresum_lab.doubles.controller import Attendance, Client
from wiresum_lab.doubles.p4runtime_proxy import ProgrammedSwitch, programmed_switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

START = "from wiresum.controller.command import controller; controller()"
CONFIG = """\
[controller]
listen = "127.0.0.1:0"

[[switch]]
name = "leaf"
kind = "software"
p4runtime = "{p4runtime}"
address = "127.0.0.1"
lanes = 64
slots = 256
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def switch() -> Iterator[ProgrammedSwitch]:
    with programmed_switch(slots=256, lanes_max=64) as switch:
        yield switch


@pytest.fixture
def config_path(tmp_path: Path, switch: ProgrammedSwitch) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(CONFIG.format(p4runtime=switch.p4runtime))
    return path


@pytest.fixture
def state(config_path: Path) -> Path:
    """Adds a folder for state to the configuration; gives the folder."""
    folder = config_path.parent / "state"
    config_path.write_text(config_path.read_text().replace("[controller]\n", f'[controller]\nstate = "{folder}"\n'))
    return folder


@pytest.fixture
def start(config_path: Path) -> Iterator[Start]:
    """Starts controllers, and kills those that still run after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        command, said = [sys.executable, "-c", START, *arguments, "--config", str(config_path)], subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=said, stderr=said, text=True, env=os.environ | variables))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a supervisor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(PATIENCE_S)
        yield made


def test_it_serves_joins_until_it_is_stopped(start: Start, switch: ProgrammedSwitch, systemd: socket.socket) -> None:
    process = start(NOTIFY_SOCKET=systemd.getsockname(), WATCHDOG_USEC="3600000000")
    assert systemd.recv(4096).decode().startswith("READY=1\nSTATUS=ready: control")
    assert systemd.recv(4096) == b"WATCHDOG=1"
    client = Client(_control_port(process))
    attendance = Attendance(client, client.join())
    assert switch.switch.stats().jobs_now == 1
    process.send_signal(signal.SIGTERM)
    assert "the switch was stopped" in attendance.wait_ended().reason
    attendance.hang_up()
    client.close()
    assert process.wait(PATIENCE_S) == 0
    assert switch.switch.stats().jobs_now == 0
    assert systemd.recv(4096) == b"STOPPING=1"


def test_a_newer_controller_takes_over_and_the_older_one_exits(start: Start, state: Path) -> None:
    first = start()
    client = Client(_control_port(first))
    reply = client.join()
    client.close()
    client = Client(_control_port(start()))
    _, errors = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == EXIT_DEMOTED
    assert "another controller has taken over" in errors
    assert "Traceback" not in errors
    assert [(job.name, job.state, job.job) for job in client.jobs()] == [("a-job", "running", reply.job)]
    client.close()


def test_a_standby_needs_state_to_take_over(config_path: Path) -> None:
    result = CliRunner().invoke(controller, ["run", "--standby", "--config", str(config_path)])
    assert result.exit_code == 1
    assert "--standby needs `state`" in result.output


def test_without_state_the_next_controller_would_reload_the_program(start: Start, config_path: Path) -> None:
    _control_port(start())
    result = CliRunner().invoke(controller, ["plan", "--config", str(config_path)])
    assert "~ program: another program runs, or ours for another state's jobs" in result.output


@pytest.mark.usefixtures("state")
def test_plan_shows_what_run_would_change_and_changes_nothing(start: Start, config_path: Path) -> None:
    result = CliRunner().invoke(controller, ["plan", "--config", str(config_path)])
    assert result.exit_code == 0, result.output
    assert "program" in result.output
    assert re.search(r"leaf: \d+ changes", result.output)
    _control_port(start())
    result = CliRunner().invoke(controller, ["plan", "--config", str(config_path)])
    assert result.output == (
        "leaf: no changes\n"
        "  taken by jobs: 0 of 256 slots, 0 of 255 jobs, 0 of 2048 deliver, 0 of 510 multicast_groups, "
        "0 of 4096 admit, 0 of 1024 admit_parent_entry\n"
    )


def test_check_names_the_records_that_a_controller_would_set_aside(state: Path, config_path: Path) -> None:
    with contextlib.closing(Store(state)) as store:
        store.begin()
        store.write([Save(JobRecord("leaf", 3, "night", "running", "{}"))])
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 0, result.output
    assert "0 running jobs on disk" in result.output
    assert (
        "the record of job night, at leaf, is set aside, and the job does not go on: what is written" in result.output
    )
    with contextlib.closing(Store(state)) as store:
        assert [record.name for record in store.load().jobs] == ["night"], "it has changed nothing"


def test_check_accepts_a_valid_configuration(config_path: Path) -> None:
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert (result.exit_code, result.output) == (
        0,
        f"{config_path} is in order: leaf (software); 0 hosts; 0 running jobs on disk\n"
        f"this installation has {ours()}, join protocol {join.PROTOCOL_VERSION}, state schema {STATE_SCHEMA}\n"
        "each other tenant: any number of jobs, any number of slots, all of each switch; "
        "256 jobs that form or wait\n"
        f"leaf has {ours()}\n",
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("lanes = 64", "lanes = 0", r"cluster\.toml: switch leaf: lanes must be a whole number from 1 to 16370, not 0"),
        ("127.0.0.1:0", "0.0.0.0:0", r"workers of other hosts can reach 0\.0\.0\.0:0.*say insecure = true"),
        ('address = "', 'tls = "nowhere"\naddress = "', r"nowhere is no directory: copy this host's"),
        ("[[switch]]", '[security]\ntls = "nowhere"\n[[switch]]', r"nowhere is no directory: copy this host's"),
    ],
)
@pytest.mark.parametrize("command", [[], ["check"]])
def test_mistakes_are_reported_before_anything_is_started(
    config_path: Path, command: list[str], old: str, new: str, complaint: str
) -> None:
    config_path.write_text(config_path.read_text().replace(old, new, 1))
    result = CliRunner().invoke(controller, [*command, "--config", str(config_path)])
    assert result.exit_code == 1
    assert re.search(complaint, " ".join(result.output.split()))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("lanes = 64", "lanes = 65", "lanes must be 1 to 64, not 65"),
        ("slots = 256", "slots = 4000", "slots must be 1 to 256, not 4000"),
    ],
)
def test_check_asks_the_switch_whether_it_can_have_its_sizes(
    config_path: Path, old: str, new: str, complaint: str
) -> None:
    config_path.write_text(config_path.read_text().replace(old, new))
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert re.search(rf"switch leaf at 127\.0\.0\.1:\d+ is not as it is configured: {complaint}", said)
    assert "Change lanes and slots here, or start the switch with others" in said


TENANT = '[[tenant]]\nname = "a"\nslots = 8'


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (TENANT, "tenant a: slots must be 0, or at least 16, which every job takes"),
        ('metrics = "127.0.0.1:43487"', r"metrics cannot be at 127\.0\.0\.1:43487, where .* give it another port"),
        ('state = "file"', r"state, .*/file, is a file, and must be a folder: name another"),
        ('state = "file/below"', r"state, .*/below, cannot be made: .*/file is a file"),
        ('state = "locked"', r"this user \(nobody\) cannot write in .*/locked: make it this user's"),
        ('state = "locked/new"', r"state, .*/new: this user \(nobody\) cannot write in .*/locked: make"),
        ('[security]\naudit = "folder"', r"audit, .*/folder, is a folder, and must be a file: say .*/audit\.log"),
        ('[security]\naudit = "locked/log"', r"audit, .* cannot write in .*/locked: make"),
    ],
    ids=[
        "quota", "metrics", "state-file", "state-below-file", "state-locked", "state-in-locked",
        "audit-folder", "audit-locked",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "run"])
def test_what_would_be_met_later_is_said_by_check_and_before_it_runs(
    config_path: Path, command: str, table: str, complaint: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "file").touch()
        (folder / "folder").mkdir()
        (folder / "locked").mkdir(mode=0o555)
        path = folder / "cluster.toml"
        path.write_text(config_path.read_text().replace(':0"', f':43487"\n{table}', 1))
        with as_nobody():
            result = CliRunner().invoke(controller, [command, "--config", str(path)])
    assert result.exit_code == 1
    assert re.search(complaint, " ".join(result.output.split())), result.output


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_check_says_which_switches_do_not_answer(config_path: Path) -> None:
    config_path.write_text(re.sub('p4runtime = ".*"', 'p4runtime = "127.0.0.1:1"', config_path.read_text()))
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 0
    assert "leaf does not answer, so its versions and sizes were not looked at" in result.output


def test_check_may_ask_beside_a_controller_that_runs(start: Start, config_path: Path) -> None:
    _control_port(start())
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 0 and "is in order" in result.output
    config_path.write_text(config_path.read_text().replace("lanes = 64", "lanes = 65"))
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 1


def test_p4runtime_over_a_network_needs_tls_or_insecure(config_path: Path) -> None:
    config_path.write_text(re.sub('p4runtime = ".*"', 'p4runtime = "192.0.2.1:9559"', config_path.read_text()))
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 1
    assert "no TLS directory for it: say `tls` in its [[switch]]" in result.output
    config_path.write_text(config_path.read_text() + "[security]\ninsecure = true\n")
    result = CliRunner().invoke(controller, ["check", "--config", str(config_path)])
    assert result.exit_code == 0


def test_the_configuration_in_the_help_is_valid(tmp_path: Path) -> None:
    result = CliRunner().invoke(controller, ["--help"], terminal_width=120)
    assert result.exit_code == 0
    shown = result.output.partition("(TOML):\n")[2].partition("Examples:")[0]
    path = tmp_path / "shown.toml"
    path.write_text(shown)
    assert config.load(path).switches[0].p4runtime == "127.0.0.1:9559"


def _control_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    ready = re.match(
        r"ready: control 127\.0\.0\.1:(\d+), data 127\.0\.0\.1:43488-43503 \(leaf, software, 256 slots, 64 lanes\)",
        line,
    )
    if ready is None:
        wait_until(lambda: process.poll() is not None, "the controller said why it does not start")
        raise AssertionError(f"{line!r}: {process.communicate()[1]}")
    return int(ready[1])
