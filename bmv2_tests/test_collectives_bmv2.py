"""The host agent with bmv2: every collective over UDP through the switch program gives exact results.

Workers are processes in the namespaces of a star. Their joins, Gloo and PyTorch's store go through the same switch. The
functions that they run are those of plugins/torch/tests.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmv2_tests import lose
from bmv2_tests.bmv2_harness import inside
from plugins.torch.tests import test_blocks as blocks
from plugins.torch.tests import test_collectives as collectives
from plugins.torch.tests import test_rows as rows
from wiresum.controller import JobCounters, JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.p4runtime import STANDBY_ID, P4RuntimeSwitch
from wiresum.controller.security import Security
from wiresum.join.constants import CONTROL_PORT
from wiresum_lab.namespaces.bmv2_star import Bmv2Star
from wiresum_lab.namespaces.star import STAR_DEVICE
from wiresum_lab.processes import Program

FOLDER = Path(__file__).resolve().parent
STORE_PORT = 29_500
WORKERS = 3
RUN_S_MAX = 240.0
JOB = "collectives"
LOSS = 0.01

PLAN: list[tuple[Any, ...]] = [
    (collectives.test_barrier_runs_in_the_network,),
    (collectives.test_all_reduce_gives_the_exact_integer_sum, "int32"),
    (collectives.test_all_reduce_gives_the_exact_integer_sum, "float32"),
    (collectives.test_all_reduce_gives_the_exact_integer_sum, "bfloat16"),
    (collectives.test_average_divides_the_exact_sum, "float32"),
    (collectives.test_infinity_and_nan_reach_every_worker_and_zeros_stay_zero,),
    (collectives.test_reduce_writes_the_sum_at_the_root_only, "float32"),
    (collectives.test_broadcast_copies_every_bit, "float64"),
    (collectives.test_broadcast_keeps_nan_payloads,),
    (collectives.test_all_gather_copies_every_bit, "float32"),
    (collectives.test_all_gather_takes_contributions_of_different_sizes,),
    (collectives.test_reduce_scatter_gives_each_worker_its_part_of_the_sum, "float32", 1301),
    (collectives.test_coalesced_all_gathers,),
    (collectives.test_coalesced_reduce_scatters,),
    (collectives.test_coalesced_all_reduces_of_different_sizes_and_types,),
    (blocks.test_block_sparse_sums_are_exact_and_skip_zero_blocks,),
    (rows.test_sparse_sums_are_exact_and_identical_for_both_encodings_of_keys, "float32", 50, False),
]


class Site:
    """A star with bmv2, its controller in this process, and ranks."""

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self._folder = folder
        self._jobs = 0
        self.star = cleanup.enter_context(Bmv2Star(WORKERS))
        switch = P4RuntimeSwitch(self.star.target(), election_id=STANDBY_ID + 1)
        self.switch = cleanup.enter_context(contextlib.closing(switch))
        self.switch.wait_ready()
        self.switch.reconcile([])
        service = JoinServer(self.switch, security=Security(SecurityConfig(insecure=True)))
        with inside(self.star.control_host.namespace):
            service.start(self.star.control_host.address, CONTROL_PORT)
        cleanup.callback(service.stop)

    def run(self, plan: list[tuple[Any, ...]]) -> list[str]:
        """Runs a plan on all ranks; gives their outputs, and fails if a rank failed."""
        self._jobs += 1
        path = self._folder / "plan.json"
        path.write_text(
            json.dumps([[inspect.getfile(inspect.unwrap(of)), of.__name__, arguments] for of, *arguments in plan])
        )
        variables = {
            "WIRESUM_SWITCH": f"{self.star.control_host.address}:{CONTROL_PORT}",
            "WIRESUM_INSECURE": "1",
            "WIRESUM_JOB": JOB,
            "WIRESUM_THREADS": "2",
            "GLOO_SOCKET_IFNAME": STAR_DEVICE,
            "OMP_NUM_THREADS": "1",
        }
        ranks: list[Program] = []
        try:
            for rank, worker in enumerate(self.star.workers):
                command = [sys.executable, str(FOLDER / "rank.py"), str(rank), str(WORKERS)]
                command += [self.star.workers[0].address, str(STORE_PORT), str(path)]
                ranks.append(Program(command, self._folder / f"rank{rank}.log", variables, at=worker.popen))
            give_up_at = time.monotonic() + RUN_S_MAX
            codes = [rank.process.wait(max(0.1, give_up_at - time.monotonic())) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = [rank.exit_code for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        said = [rank.said() for rank in ranks]
        assert codes == [0] * WORKERS, "\n".join(f"--- rank {rank}\n{text}" for rank, text in enumerate(said))
        return said

    def counted(self) -> JobCounters:
        """The counters of the last job; the service numbers jobs from 1."""
        return self.switch.counters(self._jobs)


@pytest.fixture(scope="module")
def site(bmv2: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(tmp_path_factory.mktemp("bmv2"), cleanup)


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX + 60)
def test_every_collective_is_exact(site: Site) -> None:
    for said in site.run(PLAN):
        assert said.count("done ") == len(PLAN)
    assert site.counted().results > 5_000


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX + 60)
def test_every_collective_is_exact_with_loss_in_both_directions(site: Site) -> None:
    faults = [lose.entry(LOSS)]
    site.star.lose_upstream(LOSS)
    site.switch.tables.insert("a fault", faults)
    try:
        said = site.run(PLAN)
    finally:
        site.switch.tables.delete("a fault", faults)
        site.star.lose_upstream(0)
    for text in said:
        assert text.count("done ") == len(PLAN)
        # Since only a worker whose packet was lost sends it again, these are
        # hardly more than 1% of the 7,008 that it sends.
        assert int(text.rpartition("retransmissions ")[2]) > 30
    counters = site.counted()
    assert counters.packets["resent"] > 100, "copies of results were lost"
    assert counters.packets["duplicate"] > 0
