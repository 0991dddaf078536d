"""The constants of C++, Python, P4 and Lua are generated from p4src/constants.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import generate_constants


def test_the_committed_files_match_the_table() -> None:
    assert generate_constants.stale_files() == []


def test_the_switch_program_has_the_numbers_of_the_table() -> None:
    assert generate_constants.differences_of_p4() == []


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"),
    [
        ("wire.p4", "#define SWITCH_PORT 0xA9E0", "#define SWITCH_PORT 0xA9E1", "SWITCH_PORT is 43489 in the switch"),
        ("wire.p4", "    META = 3,\n", "", "does not define kind_t.META"),
        ("metadata.p4", "STALE = 3", "STALE = 5", "reason_t.STALE is 5"),
        ("wire.p4", "bit<8> flags;", "bit<16> flags;", "the fields of wiresum_h"),
        ("sizes.p4", "UPLINK_GROUPS = 512", "UPLINK_GROUPS = 513", "UPLINK_GROUPS is 513"),
        ("sizes.p4", "#define SWITCH_WORKERS_MAX 32", "#define SWITCH_WORKERS_MAX 16", "SWITCH_WORKERS_MAX is 16"),
    ],
)
def test_a_different_number_in_the_switch_program_is_found(
    tmp_path: Path, name: str, old: str, new: str, complaint: str
) -> None:
    folder = Path(shutil.copytree(generate_constants.P4, tmp_path / "common"))
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    (found,) = generate_constants.differences_of_p4(folder)
    assert complaint in found
