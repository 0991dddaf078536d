"""Sizes that do not fit each other do not compile: each relation in p4src/common/sizes.p4 is broken once.

The interpreter evaluates the assertions as p4c does, in the program for Tofino; p4c, where it is installed, in bmv2's,
which has the same but for its lanes.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tna_interpreter.values import P4Error
from wiresum.compiled import compile_program

WRONG = {
    "LANES 56": "on Tofino a packet has 64 words",
    "LANES 72": "on Tofino a packet has 64 words",
    "SLOTS 0": "SLOTS must be 1 to 32768",
    "SLOTS 32769": "SLOTS must be 1 to 32768",
    "JOB_ROWS 1": "JOB_ROWS must be 2 to 256",
    "JOB_ROWS 257": "JOB_ROWS must be 2 to 256",
    "SWITCH_WORKERS_MAX 16": "SWITCH_WORKERS_MAX must be 32",
    "SWITCH_WORKERS_MAX 64": "SWITCH_WORKERS_MAX must be 32",
    "ADMIT_ENTRIES 511": "must have room for a job of 32 workers",
    "ADMIT_PARENT_ENTRIES 15": "must have room for a job of 32 workers",
    "DELIVER_ENTRIES 31": "must have room for a job of 32 workers",
    "OWN_ENTRIES 2": "table own must have room for three entries",
    "FLOOD_GROUP 255": "multicast groups must differ",
    "FLOOD_GROUP 512": "multicast groups must differ",
    "UPLINK_GROUPS 768": "multicast groups must differ",
    "REASONS 7": "REASONS must be 8",
}
WRONG_ON_BMV2 = {
    "LANES 0": "LANES must be a multiple of 8",
    "LANES 60": "LANES must be a multiple of 8",
    "LANES 72": "on bmv2 a packet has at most 64 words",
    "REASONS 7": "REASONS must be 8",
}
RIGHT = ("SLOTS 1", "SLOTS 32768", "JOB_ROWS 2", "ADMIT_ENTRIES 512", "OWN_ENTRIES 3")


def with_size(folder: Path, size: str) -> Path:
    """The sources with one size changed."""
    name, value = size.split()
    sources = folder / "p4src"
    shutil.copytree(compile_program.FOLDER, sources, ignore=shutil.ignore_patterns("*.json", "*.txtpb"))
    changed = 0
    for path in (sources / "common/sizes.p4", sources / "common/metadata.p4"):
        definition = rf"^(#define {name} |const \w+ {name} = )\d+"
        text, times = re.subn(definition, rf"\g<1>{value}", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)
        changed += times
    assert changed == 1, f"{name} is defined once"
    return sources


@pytest.mark.parametrize(("size", "message"), WRONG.items())
def test_a_program_for_tofino_with_sizes_that_do_not_fit_is_refused(tmp_path: Path, size: str, message: str) -> None:
    with pytest.raises(P4Error, match=message):
        Switch(with_size(tmp_path, size) / "tna/main.p4", generation=2)


@pytest.mark.parametrize("size", RIGHT)
def test_a_program_for_tofino_with_other_sizes_that_fit_is_taken(tmp_path: Path, size: str) -> None:
    program = Switch(with_size(tmp_path, size) / "tna/main.p4", generation=2).program
    assert {register.size for register in program.registers.values()} == {2 * sizes_of(size).get("SLOTS", 4096)}
    assert program.counters["results"].size == sizes_of(size).get("JOB_ROWS", 256)


def sizes_of(size: str) -> dict[str, int]:
    name, value = size.split()
    return {name: int(value)}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "message"), WRONG_ON_BMV2.items())
def test_a_program_for_bmv2_with_sizes_that_do_not_fit_does_not_compile(
    p4c: None, tmp_path: Path, size: str, message: str
) -> None:
    with pytest.raises(compile_program.CompileError, match=message):
        compile_program.compile_v1model(tmp_path, with_size(tmp_path, size))


@pytest.mark.slow
@pytest.mark.parametrize("size", [*RIGHT, "LANES 8", "LANES 40"])
def test_a_program_for_bmv2_with_other_sizes_that_fit_compiles(p4c: None, tmp_path: Path, size: str) -> None:
    """Without a warning, too."""
    program = compile_program.compile_v1model(tmp_path, with_size(tmp_path, size))
    sums = re.search(r'name: "sums".*?bitwidth: (\d+).*?size: (\d+)', program["v1model.p4info.txtpb"], re.DOTALL)
    assert sums is not None
    wanted = {"LANES": 64, "SLOTS": 4096} | sizes_of(size)
    assert (int(sums[1]), int(sums[2])) == (32 * wanted["LANES"], 2 * wanted["SLOTS"])
