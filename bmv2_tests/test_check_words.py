"""The registers of a bmv2 are written while a job uses them, as bad memory would change them: without check words a
worker gets a wrong sum, and with them none does. Needs root and PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wiresum_lab.namespaces.bmv2_star import Bmv2Star
from wiresum_lab.namespaces.training import Training
from wiresum_lab.processes import Program

ELEMENTS = 500
WRITER = """
import itertools
from wiresum_lab.namespaces.bmv2_registers import register_writer
with register_writer("127.0.0.1") as write:
    print("ready", flush=True)
    for cell in itertools.cycle(range(32)):
        write("sums", cell, 1 << 40 | cell)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("check_word", [False, True], ids=["without", "with"])
def test_a_register_that_is_written_gives_no_wrong_sum_with_check_words(
    check_word: bool, bmv2: None, tmp_path: Path
) -> None:  # R5.24
    pytest.importorskip("thriftpy2")
    with Bmv2Star(2) as star, star.controller() as control:
        variables = {"WIRESUM_CHECK_WORD": str(int(check_word))}
        training = Training(star.workers, control, tmp_path, variables, ELEMENTS)
        training.goes_on()
        with Program([sys.executable, "-c", WRITER], tmp_path / "writer.log", at=star.switch.popen) as writer:
            writer.await_text("ready")
            reports = training.reports({0, 1})
    wrong = [report for report in reports.values() if "wrong" in report]
    seen = [report for report in reports.values() if "seen" in report]
    if check_word:
        assert seen and not wrong, reports
        assert all("bmv2" in report["seen"] for report in seen), reports
    else:
        assert wrong and not seen, reports
