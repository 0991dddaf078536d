"""The program behind `make bench NAMES=gpu`, on the device for tests, and where there is no accelerator."""

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly


def test_without_an_accelerator_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from wiresum_lab.benchmarks.gpu import NO_ACCELERATOR, main

    if torch.accelerator.is_available():
        pytest.skip("an accelerator is here")
    assert main(["--out", str(tmp_path / "none")]) == NO_ACCELERATOR
    assert "PyTorch finds no accelerator here" in capsys.readouterr().err and not (tmp_path / "none").exists()


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("ninja") is None, reason="no ninja for the device of tests")
def test_it_measures_and_leaves_a_report(tmp_path: Path) -> None:
    from wiresum_lab.benchmarks.gpu import FORMATS, main

    small = ["--bytes", str(8 << 20), "--width", "64", "--repetitions", "1"]
    assert main(["--double", "--no-tests", *small, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert all(seconds > 0 for part in ("copies", "sum", *FORMATS, "1_kB") for seconds in found[part].values())
    assert set(found["waiting"]) == {"its_stream", "the_other"}
    report = (tmp_path / "report.txt").read_text()
    said = ("whose figures mean nothing", "copies: ", "times the longest part", "- 1 kB: ", "of a processor")
    for line in (*said, "is hidden"):
        assert line in report
