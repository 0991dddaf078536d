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
import io, itertools
from thriftpy2.parser import load_fp
from thriftpy2.protocol import TBinaryProtocolFactory, TMultiplexedProtocolFactory
from thriftpy2.rpc import client_context
interface = load_fp(io.StringIO('''
service Standard { void bm_register_write(1: i32 context, 2: string name, 3: i32 index, 4: i64 value) }
'''), "bmv2_thrift")
protocol = TMultiplexedProtocolFactory(TBinaryProtocolFactory(), "standard")
with client_context(interface.Standard, "127.0.0.1", 9090, proto_factory=protocol) as client:
    print("ready", flush=True)
    for cell in itertools.cycle(range(32)):
        client.bm_register_write(0, "sums", cell, 1 << 40 | cell)
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
