"""The Tofino program compiles without a warning and fits the chip, where the compiler is installed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from wiresum.compiled import compile_program as p4_compile
from wiresum.compiled.compile_program import TOFINO_COMPILER
from wiresum.controller.p4runtime.sizes import ours, parse, sizes_of

STAGES_MAX = {"tofino": 12, "tofino2": 20}
SELECTS_MIN = 5
"""States for the port, EtherType, IPv4, UDP port, and kind with length."""


@pytest.mark.slow
@pytest.mark.timeout(p4_compile.COMPILE_TIMEOUT_S)
@pytest.mark.parametrize("target", STAGES_MAX)
def test_the_program_fits_the_chip_and_has_the_tables_of_bmv2(target: str, tmp_path: Path) -> None:
    if shutil.which(TOFINO_COMPILER) is None:
        pytest.skip(
            f"the program was not compiled for {target}: {TOFINO_COMPILER} is not on PATH. It is part of p4c that was "
            "built with -DENABLE_TOFINO=ON"
        )
    p4info, bfrt = p4_compile.compile_tofino(target, tmp_path)
    assembly = (tmp_path / "pipe" / "main.bfa").read_text()
    assert 0 < ingress_stages(assembly) <= STAGES_MAX[target]
    assert parser_selects(assembly) >= SELECTS_MIN, (
        f"this {TOFINO_COMPILER} drops parser selects: take one with p4c's #5753"
    )
    bmv2 = (p4_compile.COMPILED / "v1model.p4info.txtpb").read_text()
    assert identifiers(p4info.read_text()) == identifiers(bmv2)
    assert counters(p4info.read_text()) == counters(bmv2)
    assert bfrt_identifiers(bfrt.read_text()) == identifiers(bmv2)
    assert bfrt_counters(bfrt.read_text()) == counters(bmv2)
    assert sizes_of(parse(p4info.read_text()), target) == sizes_of(ours(), "bmv2")


def ingress_stages(assembly: str) -> int:
    return 1 + max(int(stage) for stage in re.findall(r"^stage (\d+) ingress:", assembly, re.MULTILINE))


def parser_selects(assembly: str) -> int:
    """States of the ingress parser that decide by a field."""
    parser = assembly[assembly.index("parser ingress:") : assembly.index("deparser ingress:")]
    return parser.count("match:")


def identifiers(p4info: str) -> dict[str, int]:
    """Ids by name, of all tables and actions with an id in ids.p4."""
    ids = (p4_compile.FOLDER / "common" / "ids.p4").read_text()
    numbers = {int(number, 16) for number in re.findall(r"#define (?:ACTION|TABLE)\w+ (0x\w+)", ids)}
    found = re.findall(r"preamble {\s*id: (\d+)\s*name: \"([\w.]+)\"", p4info)
    return {name: int(number) for number, name in found if int(number) in numbers}


def counters(p4info: str) -> dict[str, int]:
    """Sizes by name. The compiler for Tofino ignores @id for counters and chooses their ids."""
    found = re.findall(
        r"^counters {\s*preamble {[^}]*name: \"([\w.]+)\"[^}]*}\s*spec {[^}]*}\s*size: (\d+)", p4info, re.MULTILINE
    )
    return {name: int(size) for name, size in found}


def bfrt_identifiers(bfrt: str) -> dict[str, int]:
    """Ids of the same tables and actions in the driver's description; Stratum passes P4Info's ids to the driver."""
    tables = [table for table in json.loads(bfrt)["tables"] if table["table_type"] == "MatchAction_Direct"]
    actions = {action["name"]: action["id"] for table in tables for action in table["action_specs"]}
    del actions["NoAction"]
    return actions | {table["name"].removeprefix("pipe."): table["id"] for table in tables}


def bfrt_counters(bfrt: str) -> dict[str, int]:
    """Sizes by name; Stratum finds counters by name."""
    counters = [table for table in json.loads(bfrt)["tables"] if table["table_type"] == "Counter"]
    return {table["name"].removeprefix("pipe."): table["size"] for table in counters}
