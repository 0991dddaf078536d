"""`wiresum controller` as a process, over a switch that keeps entries."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.controller import config
from wiresum.controller.command import controller
from wiresum.controller.p4runtime.testing import FakeSwitch
from wiresum.controller.testing import PATIENCE_S, Attendance, Client, wait_until

START = "from wiresum.controller.command import controller; controller()"


@pytest.fixture
def fake() -> Iterator[FakeSwitch]:
    fake = FakeSwitch()
    yield fake
    fake.stop()


@pytest.fixture
def config_path(tmp_path: Path, fake: FakeSwitch) -> Path:
    text = config.EXAMPLE.replace("127.0.0.1:9559", fake.address).replace("0.0.0.0:43487", "127.0.0.1:0")
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


@pytest.fixture
def process(config_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", START, "--config", str(config_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_it_serves_joins_until_it_is_told_to_stop(process: subprocess.Popen[str], fake: FakeSwitch) -> None:
    client = Client(_control_port(process))
    reply = client.join(endpoint=join.Endpoint(address="10.0.0.10", port=5000))
    attendance = Attendance(client, reply)
    assert len(fake.entries("admit")) == reply.threads
    process.send_signal(signal.SIGTERM)
    assert "the switch was stopped" in attendance.wait_ended().reason
    attendance.hang_up()
    client.close()
    assert process.wait(PATIENCE_S) == 0
    assert not fake.entries("admit")


def test_when_the_switch_is_lost_the_workers_are_told_and_it_says_why(
    process: subprocess.Popen[str], fake: FakeSwitch
) -> None:
    client = Client(_control_port(process))
    attendance = Attendance(client, client.join(endpoint=join.Endpoint(address="10.0.0.10", port=5000)))
    fake.stop()
    attendance.wait_ended()
    attendance.hang_up()
    client.close()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert re.search("Error: the connection to the P4 switch at .* broke.*Start the switch again", errors)
    assert "Traceback" not in errors


def test_a_bad_configuration_is_told_before_anything_is_started(config_path: Path, fake: FakeSwitch) -> None:
    config_path.write_text(config_path.read_text().replace("port = 0", "port = 1000"))
    result = CliRunner().invoke(controller, ["--config", str(config_path)])
    assert result.exit_code == 1
    assert re.search(r"cluster\.toml:14: host: port must be a whole number from 0 to 510, not 1000", result.output)
    assert fake.configs == 0


def test_the_help_shows_a_configuration_that_works(tmp_path: Path) -> None:
    result = CliRunner().invoke(controller, ["--help"], terminal_width=120)
    assert result.exit_code == 0
    shown = result.output.partition("(TOML):\n")[2].partition("Examples:")[0]
    path = tmp_path / "shown.toml"
    path.write_text(shown)
    assert config.load(path).switch.p4runtime == "127.0.0.1:9559"


def _control_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    ready = re.match(r"ready: control 127\.0\.0\.1:(\d+), data 10\.0\.0\.1:43488-43503 \(P4 switch at .*2 hosts", line)
    if ready is None:
        wait_until(lambda: process.poll() is not None, "the controller said why it does not start")
        raise AssertionError(f"{line!r}: {process.communicate()[1]}")
    return int(ready[1])
