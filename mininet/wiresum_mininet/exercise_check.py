"""Checks a verdict table: compiles the switch program with this table, loads the program into bmv2, and plays the test
vectors.

    python -m wiresum_mininet.exercise_check mininet/exercise/verdict.p4      the exercise, as you have changed it
    python -m wiresum_mininet.exercise_check p4src/common/verdict.p4          the solution: the program's own

Needs root, p4c and bmv2. conformance/wiresum/conformance/vectors has the packets, and what a switch must answer to
each: docs/protocol.md, section 3.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format
from rich.console import Console

from bmv2_tests.bmv2_harness import programmed_bmv2
from wiresum.compiled import compile_program
from wiresum.conformance.player import failures
from wiresum.conformance.reader import load_all
from wiresum.conformance.scenarios import Scenario
from wiresum.conformance.switch import Switch
from wiresum.controller.p4runtime import Pipeline, device_config
from wiresum_lab.namespaces.bmv2 import bmv2_missing
from wiresum_lab.namespaces.star import StarError, check_prerequisites, termination_as_exit

EXIT_USAGE = 2


class CheckError(Exception):
    """The check cannot run; the text says why, and what to do."""


def compiler_missing() -> str:
    """Why the program cannot be compiled here; empty if it can."""
    found = shutil.which(compile_program.COMPILER)
    return "" if found else f"{compile_program.COMPILER} is not on PATH: {compile_program.INSTALL}"


def program_with(verdict: Path) -> Pipeline:
    """The switch program with another verdict table, compiled. Raises `CheckError`."""
    with tempfile.TemporaryDirectory(prefix="wiresum-exercise-") as folder:
        sources, scratch = Path(folder, "sources"), Path(folder, "compiled")
        for part in ("common", "v1model"):
            shutil.copytree(compile_program.FOLDER / part, sources / part)
        try:
            shutil.copy(verdict, sources / "common" / "verdict.p4")
        except OSError as error:
            raise CheckError(f"{verdict}: cannot read it: {error.strerror}") from error
        scratch.mkdir()
        try:
            compiled = compile_program.compile_v1model(scratch, sources)
        except compile_program.CompileError as error:
            raise CheckError(f"p4c does not take the program:\n{error}") from error
    program, p4info = compiled["v1model.json"], compiled["v1model.p4info.txtpb"]
    json.loads(program)
    return replace(
        device_config.bmv2(),
        device_config=program.encode(),
        p4info=text_format.Parse(p4info, p4i.P4Info()),
    )


def play(program: Pipeline, chosen: Sequence[Scenario]) -> Iterator[tuple[str, int, str]]:
    """For each file of vectors: its name, its number of scenarios, and the first difference (empty: none)."""
    with programmed_bmv2(program) as switch:
        for path, group in groupby(chosen, key=lambda scenario: scenario.path):
            scenarios = list(group)
            yield path.name, len(scenarios), next(_complaints(scenarios, switch), "")


def _complaints(scenarios: Sequence[Scenario], switch: Switch) -> Iterator[str]:
    return (failure.text for scenario in scenarios for failure in failures(scenario, switch))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verdict", type=Path, help="a file like p4src/common/verdict.p4")
    parser.add_argument("vectors", nargs="*", help="only these files of the vectors, like contributions (all)")
    options = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False)
    scenarios = load_all()
    names = sorted({scenario.path.stem for scenario in scenarios})
    if unknown := sorted(set(options.vectors) - set(names)):
        parser.error(f"no vectors are called {', '.join(unknown)}: there are {', '.join(names)}")
    chosen = [scenario for scenario in scenarios if scenario.path.stem in (options.vectors or names)]
    try:
        check_prerequisites()
        if missing := [*filter(None, (bmv2_missing(), compiler_missing()))]:
            raise CheckError("; ".join(missing))
        program = program_with(options.verdict)
        failed = 0
        with termination_as_exit():
            for name, count, complaint in play(program, chosen):
                failed += bool(complaint)
                verdict = f"FAILS\n    {complaint}" if complaint else f"all {count} scenarios right"
                console.print(f"{name:18} {verdict}", markup=False)
    except (CheckError, StarError) as error:
        console.print(str(error), markup=False)
        return EXIT_USAGE
    console.print(f"{failed} files fail." if failed else "Every packet is answered as the protocol says.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
