"""Runs mpi4py's own tests in one process of an mpirun, and writes down how each of them went.

    mpirun -np 2 python mpi4py_tests.py SOURCE FOLDER [arguments for mpi4py's test/main.py]

SOURCE is mpi4py's source distribution, of which only `test/` is used: mpi4py itself is the installed one. FOLDER gets a
file for each process, with a line when a test begins (`begun`), a line with its outcome, and a line at the end of all
tests.
"""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any

END = "end"


class Recorder(unittest.TextTestResult):
    path = Path()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's name)
        super().startTest(test)
        self.write(f"begun {test.id()}")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self.write(f"passed {test.id()}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self.write(f"failed {test.id()}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.write(f"failed {test.id()}")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.write(f"skipped {test.id()}")

    def addSubTest(  # noqa: N802
        self,
        test: unittest.TestCase,
        subtest: unittest.TestCase,
        err: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None,
    ) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.write(f"failed {test.id()}")

    @classmethod
    def write(cls, line: str) -> None:
        with cls.path.open("a") as file:
            file.write(f"{line}\n")


def main() -> None:
    source, folder, *arguments = sys.argv[1:]
    Recorder.path = Path(folder, os.environ["OMPI_COMM_WORLD_RANK"])
    sys.path.insert(0, str(Path(source, "test")))
    from main import TestProgram

    runner = unittest.TextTestRunner(verbosity=1, resultclass=Recorder)
    try:
        TestProgram(module=None, argv=["main.py", "--no-builddir", *arguments], testRunner=runner)
    finally:
        Recorder.write(f"{END} {END}")


if __name__ == "__main__":
    main()
