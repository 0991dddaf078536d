"""What goes wrong with real ranks that run in lock step, over Gloo, is an error that says it. Needs root and PyTorch.
That they sum is for the benchmarks' tests."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, repeat, start_gloo
from wiresum_lab.namespaces.star import Star
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.ranks import Ranks, RanksError, RanksTimeoutError, Site

ELEMENTS = 100_000


pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("gloo_on_a_star"), pytest.mark.timeout(120)]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with Star(2) as star:
        started = SYSTEMS["gloo"].start(Site.of_star(star), tmp_path)
        yield started
        started.abandon()


def test_a_rank_that_dies_is_an_error_that_names_the_system(ranks: Ranks) -> None:
    repeat(ranks, 32, ELEMENTS, 0, PATIENCE_S)
    os.kill(_rank_process_id(ranks), signal.SIGKILL)
    with pytest.raises(RanksError, match="gloo"):
        repeat(ranks, 32, ELEMENTS, 1, PATIENCE_S)


def test_a_rank_that_hangs_is_a_timeout(ranks: Ranks) -> None:
    repeat(ranks, 32, ELEMENTS, 0, PATIENCE_S)
    os.kill(_rank_process_id(ranks), signal.SIGSTOP)
    with pytest.raises(RanksTimeoutError, match="2 of 2 ranks do not answer 'go'"):
        ranks.command("go", timeout_s=0.5)


def test_an_error_contains_the_end_of_the_log(tmp_path: Path) -> None:
    with Star(1) as star, pytest.raises(RanksError, match=r"broken-rank0\.log"):
        Ranks("broken", Site.of_star(star), tmp_path, partial(start_gloo, backend="no-such-backend"))


def _rank_process_id(ranks: Ranks) -> int:
    return ranks.process_ids()[1]
