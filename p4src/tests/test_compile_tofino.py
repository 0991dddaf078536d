"""The Tofino program compiles without a warning and fits the chip, where the compiler is installed."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from wiresum.compiled import compile_program as p4_compile
from wiresum.compiled.compile_program import TOFINO_COMPILER
from wiresum.controller.p4runtime.sizes import ours, parse, sizes_of
from wiresum_lab import REPOSITORY

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
    assert 0 < stages(assembly, "ingress") <= STAGES_MAX[target]
    assert parser_selects(assembly) >= SELECTS_MIN, (
        f"this {TOFINO_COMPILER} drops parser selects: take one with p4c's #5753"
    )
    bmv2 = (p4_compile.COMPILED / "v1model.p4info.txtpb").read_text()
    assert identifiers(p4info.read_text()) == identifiers(bmv2)
    assert counters(p4info.read_text()) == counters(bmv2)
    assert bfrt_identifiers(bfrt.read_text()) == identifiers(bmv2)
    assert bfrt_counters(bfrt.read_text()) == counters(bmv2)
    assert sizes_of(parse(p4info.read_text()), target) == sizes_of(ours(), "bmv2")
    # Another release of the compiler may place the program otherwise: then the page gets these numbers.
    assert resources(tmp_path / "pipe", STAGES_MAX[target]) == documented(target)


def stages(assembly: str, gress: str) -> int:
    return 1 + max(int(stage) for stage in re.findall(rf"^stage (\d+) {gress}:", assembly, re.MULTILINE))


def resources(pipe: Path, stages_there: int) -> dict[str, str]:
    """What the program takes, and the chip has: rows of the page's table, from the compiler's reports, which leave out
    stages that are not used."""
    reported = json.loads((pipe / "logs" / "resources.json").read_text())["resources"]
    each = reported["mau"]["mau_stages"]
    assembly = (pipe / "main.bfa").read_text()
    taken = Counter(
        (container["container_type"], container["bit_width"])
        for container in json.loads((pipe / "logs" / "phv.json").read_text())["containers"]
        if container["slices"]
    )

    def of_stages(resource: str, entries: str, there: int) -> str:
        return f"{sum(len(stage[resource][entries]) for stage in each)} of {there * stages_there}"

    def containers(*kinds: str) -> str:
        there = [(kind, row) for kind in kinds for row in reported["phv_containers"].get(kind, [])]
        rows = []
        for width in sorted({row["width"] for _, row in there}):
            units = sum(row["units"] for _, row in there if row["width"] == width)
            rows.append(f"{sum(taken[kind, width] for kind in kinds)} of {units}")
        return ", ".join(rows) or "none"

    return {
        "ingress stages": f"{stages(assembly, 'ingress')} of {stages_there}",
        "egress stages": f"{stages(assembly, 'egress')} of {stages_there}",
        "stateful ALUs": of_stages("meter_alus", "meters", each[0]["meter_alus"]["nAlus"]),
        "SRAM blocks": of_stages("rams", "srams", each[0]["rams"]["nRows"] * each[0]["rams"]["nColumns"]),
        "logical tables": of_stages("logical_tables", "ids", each[0]["logical_tables"]["size"]),
        "containers in match and action (8, 16, 32 bits)": containers("normal", "mocha"),
        '"tagalong" containers': containers("tagalong"),
    }


def documented(target: str) -> dict[str, str]:
    page = (REPOSITORY / "docs/tofino_design.md").read_text()
    table = page.partition("## What the compiler reports\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[list(STAGES_MAX).index(target) + 1] for row in rows[2:]}


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
