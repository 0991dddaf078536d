"""A pair of controllers that change roles, started as by their units: what operators, Prometheus, systemd and log
collectors observe."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.agent.config import AgentConfig
from wiresum.agent.membership import Membership
from wiresum.cli.doctor import switch as doctor
from wiresum.cli.doctor.finding import Level
from wiresum.cli.health import health
from wiresum.cli.service import Service
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.processes import PATIENCE_S, Program, unused_port, wait_until, wiresum

CONFIG = """\
[controller]
listen = "127.0.0.1:{port}"
metrics = "127.0.0.1:{metrics}"
state = "{state}"

[[switch]]
name = "leaf"
kind = "software"
p4runtime = "{p4runtime}"
address = "127.0.0.1"
port = {data_port}
lanes = 16
slots = 64
"""


class Controller:
    """One controller of the pair, with a socket that takes the place of systemd."""

    def __init__(self, folder: Path, text: str) -> None:
        folder.mkdir()
        self.port, self.metrics_port = unused_port(), unused_port()
        self._config = folder / "cluster.toml"
        self._config.write_text(text.format(port=self.port, metrics=self.metrics_port))
        self._log = folder / "log"
        self._supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._supervisor.bind(str(folder / "notify"))
        self.heard: list[str] = []
        """What it has sent to systemd."""
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        self._environment = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "1500000"}
        self._client = Client(self.port)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = wiresum("controller", "--config", str(self._config), "--standby", "--log-format", "json")
        self.process = Program(command, self._log, self._environment, append=True).process

    def end(self, sent: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(sent)
            self.process.wait(PATIENCE_S)

    def _listen(self) -> None:
        while said := self._supervisor.recv(4096).decode():
            self.heard.append(said)

    def hears(self, text: str) -> None:
        wait_until(lambda: any(text in said for said in self.heard), f"its supervisor hears {text}")

    def role(self) -> str:
        with contextlib.suppress(grpc.RpcError):
            return str(self._client.report().service.role)
        return ""

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def logged(self) -> list[dict[str, str]]:
        """All lines of the log, parsed as JSON objects."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)
        self._client.close()
        self._supervisor.shutdown(socket.SHUT_RD)  # the listener receives an empty datagram
        self._listener.join(PATIENCE_S)
        self._supervisor.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Controller]]:
    with contextlib.ExitStack() as cleanup:
        switch = SoftwareSwitch(port=0, threads=1, slots=64, lanes_max=16)
        cleanup.callback(switch.close)
        server = P4RuntimeServer(switch, 0)
        p4runtime = f"127.0.0.1:{server.start('127.0.0.1:0')}"
        cleanup.callback(server.stop)
        fixed = {"{state}": str(tmp_path / "state"), "{p4runtime}": p4runtime, "{data_port}": str(switch.endpoint.port)}
        text = re.sub("|".join(fixed), lambda found: fixed[found[0]], CONFIG)
        both = [Controller(tmp_path / name, text) for name in ("first", "second")]
        for one in both:
            cleanup.callback(one.close)
        yield both


def becomes(role: str) -> Callable[[Controller], None]:
    return lambda controller: wait_until(lambda: controller.role() == role, f"it is {role}")


def run_a_job(name: str, active: Controller, *endpoints: Controller) -> None:
    """Joins and leaves, and waits until the job is gone, so that a controller that is killed next has that on disk."""
    config = AgentConfig(switch=",".join(f"127.0.0.1:{each.port}" for each in endpoints), join_timeout_s=PATIENCE_S)
    membership = Membership.join(
        config, job_name=name, rank=0, world_size=1, address="127.0.0.1", port=5000, threads_max=1, lanes_max=16
    )
    membership.leave()
    wait_until(lambda: name not in [job.name for job in active._client.jobs()], "the job is gone")


@pytest.mark.slow
def test_the_controllers_take_turns_and_the_standby_answers_without_a_traceback(pair: list[Controller]) -> None:
    first, second = pair
    first.start()
    becomes("active")(first)
    second.start()
    becomes("standby")(second)

    # Operators see a healthy standby, and changes are forwarded to the active controller.
    report = second._client.report()
    assert [(switch.state, switch.trouble) for switch in report.switches] == [("standby", "")]
    with Service(f"127.0.0.1:{second.port},127.0.0.1:{first.port}") as service:
        assert {finding.level for finding in doctor.findings(service)} == {Level.OK}
        created = service.tell(
            lambda stub: stub.CreateJob(join.CreateJobRequest(job_name="later", world_size=2), timeout=PATIENCE_S)
        )
        assert created.job_token
        assert [job.name for job in service.ended().jobs] == []
        asked = CliRunner().invoke(health, ["--switch", service.switch])
        assert (asked.exit_code, asked.output) == (0, f"{service.switch}: SERVING\n")

    # Prometheus sees the role, and the switch is not reported as down.
    scraped = second.scrape()
    assert 'wiresum_service_info{role="standby"' in scraped
    assert 'wiresum_switch_up{switch="leaf"} 1.0' in scraped

    # Workers reach the active controller, whichever is named first.
    run_a_job("a-job", first, second, first)

    # systemd is told that each is ready, in its role, and alive.
    first.hears("READY=1\nSTATUS=ready: control")
    second.hears("READY=1\nSTATUS=standing by")
    for each in pair:
        each.hears("WATCHDOG=1")

    # One controller is killed and returns as standby; it is active again when the other one is stopped.
    for old, new in ((first, second), (second, first)):
        old.end(signal.SIGKILL if old is first else signal.SIGTERM)
        becomes("active")(new)
        run_a_job("another", new, old, new)
        old.start()
        becomes("standby")(old)
    for each in pair:
        each.end(signal.SIGTERM)
        assert each.process is not None
        assert each.process.returncode == 0
        logged = each.logged()
        assert [entry for entry in logged if "exception" in entry or "Traceback" in entry["message"]] == []
        assert any(entry["message"].startswith("ready: control") for entry in logged)
    first.hears("STOPPING=1")


@pytest.mark.slow
def test_a_deposed_controller_becomes_active_again(pair: list[Controller]) -> None:
    """The controller that takes over may run without --standby; the deposed one must then wait as a standby."""
    first, second = pair
    first.start()
    becomes("active")(first)
    command = wiresum("controller", "--config", str(second._config))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as intruder:
        try:
            becomes("active")(second)
            becomes("standby")(first)
        finally:
            intruder.kill()
    becomes("active")(first)
    first.end(signal.SIGTERM)
    assert [entry for entry in first.logged() if "exception" in entry] == []
