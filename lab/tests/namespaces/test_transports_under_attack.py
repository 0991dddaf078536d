"""A hostile host floods a switch and its workers with forged and malformed frames, over each transport: the job goes
on, and every sum is exact. Needs root."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wiresum_lab.laboratory import WORKER, Job
from wiresum_lab.namespaces.star import STAR_DEVICE, Star
from wiresum_lab.namespaces.transports import TRANSPORTS, missing, start_switch, start_worker
from wiresum_lab.processes import Program, wait_until

WORKERS = 2
REFUSED_MIN = 500
"""Packets of each kind that the switch must have refused while the job went on."""

METRICS = "127.0.0.1:9464"
SCRAPE = [
    sys.executable, "-c", f"import urllib.request as r; print(r.urlopen('http://{METRICS}/metrics').read().decode())",
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_job_sums_exactly_while_a_host_forges_floods_and_sends_malformed_frames(
    transport: str, tmp_path: Path
) -> None:
    if reason := missing(transport):
        pytest.skip(reason)
    with Star(WORKERS + 1) as star:
        *hosts, hostile = star.workers
        switch = start_switch(star, transport, tmp_path / "switch.log", "--metrics", METRICS)
        stop = tmp_path / "stop"
        arguments = [str(WORKER), "attacked", "{rank}", str(WORKERS), "1", str(stop), "60", "256"]
        programs = [
            start_worker(
                star, host, transport, [each.format(rank=rank) for each in arguments], tmp_path / f"{rank}.log"
            )
            for rank, host in enumerate(hosts)
        ]
        job = Job("attacked", programs, stop)
        wait_until(job.steps, "the job sums", meanwhile=job.check)

        def refused() -> int:
            """Of the kind of which there are fewest."""
            shown = subprocess.run(star.switch.command(SCRAPE), check=True, capture_output=True, text=True).stdout
            pattern = r'^wiresum_dataplane_packets_total\{reason="(?:unknown|malformed)"\} (\S+)$'
            return min(int(float(count)) for count in re.findall(pattern, shown, re.MULTILINE))

        before = refused()

        def both_go_on() -> None:
            attack.check()
            job.check()

        victims = [star.switch.address, *(host.address for host in hosts)]
        command = ["-m", "wiresum_lab.namespaces.attacker", STAR_DEVICE, hostile.address, *victims]
        attack = Program([sys.executable, *command], tmp_path / "attack.log", at=hostile.popen)
        wait_until(
            lambda: refused() >= before + REFUSED_MIN, "the switch refuses hostile packets", meanwhile=both_go_on
        )
        job.goes_on()
        attack.check()
        attack.stop()
        job.goes_on()
        job.finish()
        switch.stop()
