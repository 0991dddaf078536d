"""Runs mpi4py's own tests in one process of an mpirun, and writes down how each of them went.

    mpirun -np 2 python mpi4py_tests.py SOURCE FOLDER [arguments for mpi4py's test/main.py]

SOURCE is mpi4py's source distribution, of which only `test/` is used: mpi4py itself is the installed one. FOLDER gets a
file for each process, with a line for each test that began (`begun`) and for how it ended: a process that is aborted
still leaves a line of the test that it was at.
"""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any


class Recorder(unittest.TextTestResult):
    path = Path()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's name)
        super().startTest(test)
        self._write("begun", test)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self._write("passed", test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._write("failed", test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._write("failed", test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._write("skipped", test)

    def addSubTest(  # noqa: N802
        self,
        test: unittest.TestCase,
        subtest: unittest.TestCase,
        err: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None,
    ) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._write("failed", test)

    def _write(self, how: str, test: unittest.TestCase) -> None:
        with self.path.open("a") as file:
            file.write(f"{how} {test.id()}\n")


def main() -> None:
    source, folder, *arguments = sys.argv[1:]
    Recorder.path = Path(folder, os.environ["OMPI_COMM_WORLD_RANK"])
    sys.path.insert(0, str(Path(source, "test")))
    from main import TestProgram

    runner = unittest.TextTestRunner(verbosity=1, resultclass=Recorder)
    TestProgram(module=None, argv=["main.py", "--no-builddir", *arguments], testRunner=runner)


if __name__ == "__main__":
    main()
