from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from wiresum.cli.health import health
from wiresum.controller import JoinServer
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.processes import wait_until


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver()


@pytest.fixture
def target(driver: RecordingDriver) -> Iterator[str]:
    server = JoinServer(driver)
    yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    server.stop(0.1)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(health, list(arguments))
    return result.exit_code, result.output


def test_the_exit_status_says_whether_a_service_is_healthy(target: str) -> None:
    assert run("--switch", target) == (0, f"{target}: SERVING\n")
    wait_until(lambda: run("--ready", "--switch", target)[0] == 0, "a job can begin")
    assert json.loads(run("--json", "--switch", target)[1]) == {target: "SERVING"}


def test_a_service_whose_switch_is_lost_is_alive_but_not_ready(target: str, driver: RecordingDriver) -> None:
    driver.change("its cable was pulled")
    said = f"{target}: NOT_SERVING: no switch takes jobs: `wiresum jobs` says why\n"
    wait_until(lambda: run("--ready", "--switch", target) == (1, said), "no job can begin")
    assert run("--switch", target)[0] == 0


def test_a_service_that_does_not_answer_is_unhealthy_unless_its_standby_answers(target: str) -> None:
    code, said = run("--switch", "127.0.0.1:1", "--timeout", "1")
    assert (code, "cannot ask the service at 127.0.0.1:1" in said) == (1, True)
    assert run("--switch", f"127.0.0.1:1,{target}") == (0, f"127.0.0.1:1,{target}: SERVING\n")
