"""No test depends on how long something took: a bound ends what hangs, and is asserted nowhere; and nobody sleeps to
let something happen that can be awaited. What does so still is listed; the lists may only become shorter."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY

CLOCKS = {f"time.{clock}{unit}" for clock in ("monotonic", "perf_counter", "time") for unit in ("", "_ns")}
TESTS = re.compile(r"(^|/)(tests|bmv2_tests)/(.*/)?[^/]+\.py$")

ASSERTED: dict[str, int] = {}
"""Asserts on the clock, by file."""
SLEPT: dict[str, int] = {
    "controller/tests/controller/laboratory/test_resuming.py": 1,
    "plugins/torch/tests/replica.py": 1,
    "plugins/torch/tests/test_failure.py": 2,
}
"""Calls of `time.sleep`, by file."""


def reads_clock(node: ast.AST, known: set[str]) -> bool:
    """Whether an expression reads a clock, or a name that was set from one."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in known:
            return True
        if isinstance(each, ast.Call) and ast.unparse(each.func) in CLOCKS:
            return True
    return False


def from_clock(function: ast.AST) -> set[str]:
    """The names that a function sets to a moment or to a duration."""
    known: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign | ast.NamedExpr):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(names)
            for name, value in zip(names, values, strict=False):
                is_time = isinstance(value, ast.Name | ast.BinOp | ast.Call) and reads_clock(value, known)
                if isinstance(name, ast.Name) and is_time:
                    known.add(name.id)
    return known


def asserts_on_clocks(source: str) -> list[int]:
    """Their lines: comparisons inside an assert that have a clock on one side."""
    if not any(clock in source for clock in CLOCKS):  # parsing all tests takes ten seconds
        return []
    tree = ast.parse(source)
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            known = from_clock(function) if not isinstance(function, ast.Module) else set()
            for node in ast.walk(function):
                if isinstance(node, ast.Assert):
                    compared = (each for each in ast.walk(node.test) if isinstance(each, ast.Compare))
                    found |= {node.lineno for each in compared if reads_clock(each, known)}
    return sorted(found)


def sleeps(source: str) -> list[int]:
    if "sleep" not in source:
        return []
    tree = ast.parse(source)
    bare = any(
        isinstance(node, ast.ImportFrom) and node.module == "time" and any(name.name == "sleep" for name in node.names)
        for node in ast.walk(tree)
    )
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "time.sleep")
            or (bare and isinstance(node.func, ast.Name) and node.func.id == "sleep")
        )
    ]


def of_tests(tracked: list[Path]) -> Iterator[tuple[str, str]]:
    for path in tracked:
        name = str(path.relative_to(REPOSITORY))
        if TESTS.search(name):
            yield name, path.read_text()


@pytest.mark.parametrize(
    ("rule", "find", "listed"),
    [
        ("wait_until, or a clock as a parameter, in place of an assert on seconds", asserts_on_clocks, ASSERTED),
        ("wait_until, or an event, in place of time.sleep", sleeps, SLEPT),
    ],
    ids=["asserts", "sleeps"],
)
def test_no_test_asserts_seconds_and_none_sleeps(
    tracked: list[Path], rule: str, find: Callable[[str], list[int]], listed: dict[str, int]
) -> None:
    found = {name: lines for name, source in of_tests(tracked) if (lines := find(source))}
    more = {f"{name}:{lines[-1]}" for name, lines in found.items() if len(lines) > listed.get(name, 0)}
    assert not more, f"{rule}: {sorted(more)}"
    less = {name: len(found.get(name, ())) for name, count in listed.items() if len(found.get(name, ())) < count}
    assert not less, f"the list becomes shorter: {less}"


def test_the_finders_find() -> None:
    source = """
def test():
    began = time.monotonic()
    assert time.monotonic() - began < 5
    assert began
    took = time.perf_counter() - began
    assert 1 < took
    while True:
        assert time.time() < give_up_at, "hangs"
    assert time.clock_gettime(2) < 5 and clock.time() == 3
    time.sleep(1)
"""
    assert asserts_on_clocks(source) == [4, 7, 9]
    assert sleeps(source) == [11] and sleeps("from time import sleep\nsleep(1)") == [2] and not sleeps("sleep(1)")
