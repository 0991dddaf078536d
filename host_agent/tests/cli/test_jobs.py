from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from wiresum.cli.jobs import jobs
from wiresum.controller import JoinServer
from wiresum.controller.testing import Client, RecordingDriver, wait_until


@pytest.fixture
def client() -> Iterator[Client]:
    server = JoinServer(RecordingDriver())
    client = Client(server.start("127.0.0.1", 0))
    yield client
    client.close()
    server.stop(0.2)


def test_a_switch_without_jobs_says_so(client: Client) -> None:
    result = CliRunner().invoke(jobs, ["--switch", client.target])
    assert (result.exit_code, result.output) == (0, "no jobs\n4096 of 4096 slots are free\n")


def test_jobs_are_listed_in_a_table(client: Client) -> None:
    client.join(job_name="night run")
    waiting = client.join_soon(job_name="forming", rank=2, world_size=8)
    wait_until(lambda: len(client.jobs()) == 2, "both are there")
    result = CliRunner().invoke(jobs, [], env={"WIRESUM_SWITCH": client.target})
    assert result.exit_code == 0, result.output
    header, *rows, free = result.output.splitlines()
    assert header.split() == ["JOB", "NAME", "STATE", "WORKERS", "SLOTS", "RESULTS", "RESENT", "DROPPED", "AGE"]
    assert [row.split() for row in rows] == [
        ["1", "night", "run", "running", "1/1", "0+256", "1", "0", "0", rows[0].split()[-1]],
        ["-", "forming", "forming", "1/8", "-", "0", "0", "0", rows[1].split()[-1]],
    ]
    assert free == "3840 of 4096 slots are free"
    waiting.cancel()


def test_jobs_are_given_as_json_with_every_counter(client: Client) -> None:
    client.join(job_name="night run")
    listed = json.loads(CliRunner().invoke(jobs, ["--switch", client.target, "--json"]).output)
    assert (listed["slots_total"], listed["slots_free"]) == (4096, 3840)
    (job,) = listed["jobs"]
    assert (job["name"], job["state"], job["packets"]) == ("night run", "running", {"admitted": 10})


def test_no_switch_is_an_error_that_says_what_to_do() -> None:
    result = CliRunner().invoke(jobs, ["--switch", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "start one with `wiresum switch`" in result.output
