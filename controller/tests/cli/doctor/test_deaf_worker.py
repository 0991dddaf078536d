"""A worker that does not hear the switch, and one that computes: in both cases the others wait, and the doctor tells
which it is. On a star of namespaces."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from wiresum_lab.namespaces.star import Star
from wiresum_lab.processes import Program, wait_until, wiresum

RANK = """
import array, sys
from pathlib import Path
from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum_lab.processes import wait_until
rank, pause = int(sys.argv[1]), Path(sys.argv[2])
session = Session.join(AgentConfig.from_environment(), job_name="night", rank=rank, world_size=2)
values, sums = array.array("I", range(100_000)), array.array("I", bytes(400_000))
region = Region(values.buffer_info()[0], sums.buffer_info()[0], len(values))
while True:
    session.submit([region], dtype=Dtype.I32, timeout_s=60.0, notify=False).wait()
    print("summed", flush=True)
    if rank:
        wait_until(lambda: not pause.exists(), "it is to go on")
"""
DROP = """
add table ip t
add chain ip t c { type filter hook input priority 0; }
add rule ip t c udp sport 43488-43503 drop
"""


@pytest.mark.nightly
def test_the_doctor_tells_a_worker_that_does_not_hear_from_one_that_computes(star: Star, tmp_path: Path) -> None:
    pause = tmp_path / "pause"
    with ExitStack() as cleanup:
        command = wiresum("switch", "--control", f"{star.switch.management_address}:43487", "--insecure")
        command += ["--bind", star.switch.address]
        switch = cleanup.enter_context(Program(star.switch.command(command), tmp_path / "switch.log"))
        switch.await_text("ready: ")
        control = f"{star.switch.management_address}:43487"
        ranks = [
            cleanup.enter_context(
                Program(
                    host.command([sys.executable, "-c", RANK, str(rank), str(pause)]),
                    tmp_path / f"rank{rank}.log",
                    {**host.variables(control), "WIRESUM_INSECURE": "1"},
                )
            )
            for rank, host in enumerate(star.workers)
        ]
        for rank in ranks:
            rank.await_text("summed")

        def found() -> list[tuple[str, str]]:
            asked = wiresum("doctor", "--check", "job", "--json", "--switch", control, "--insecure")
            said = subprocess.run(star.workers[0].command(asked), capture_output=True, text=True, check=False).stdout
            return [(finding["check"], finding["what"]) for finding in json.loads(said)["findings"]]

        def comes(check: str) -> str:
            return wait_until(lambda: next((what for name, what in found() if name == check), None), f"it says {check}")

        pause.touch()
        assert "the others wait for rank 1" in comes("lags")
        pause.unlink()
        comes("health")
        star.workers[1].run(["nft", DROP])
        assert re.search("rank 1 .*, to which the switch sent|answers to single workers", comes("deaf"))
        assert "lags" not in dict(found())
