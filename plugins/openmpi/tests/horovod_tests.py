"""Runs Horovod's own tests of its PyTorch collectives over MPI, in one rank: horovodrun starts as many as are wanted.

    horovodrun --mpi -np 2 python horovod_tests.py SOURCE FOLDER [arguments for pytest]

SOURCE is a checkout of Horovod, of which only `test/` is used: Horovod itself is the installed one. FOLDER gets a
report for each rank.
"""

from __future__ import annotations

import os
import sys
import unittest.mock
from pathlib import Path

import pytest
import torch


def main() -> int:
    source, folder, *arguments = sys.argv[1:]
    sys.modules.setdefault("mock", unittest.mock)
    # Excludes Muon: the tests give vectors to every optimizer, and Muon takes matrices only.
    torch.optim.Muon.__module__ = "young"
    sys.path.insert(0, str(Path(source, "test", "utils")))
    report = Path(folder, f"{os.environ['OMPI_COMM_WORLD_RANK']}.xml")
    tests = str(Path(source, "test", "parallel", "test_torch.py"))
    own = ["-c", os.devnull, "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    return int(pytest.main([tests, *own, *arguments]))


if __name__ == "__main__":
    sys.exit(main())
