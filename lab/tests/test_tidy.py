"""Which C++ files clang-tidy reads again."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum_lab import tidy


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        ".clang-tidy": "Checks: '*'",
        "host_agent/src/wire/CMakeLists.txt": "",
        "host_agent/src/wire/packet.cpp": '#include "wire/packet.hpp"\n',
        "host_agent/src/wire/packet.hpp": "#if 0\n#  include <wire/bytes.hpp>\n#endif\n#include <vector>\n",
        "host_agent/src/wire/bytes.hpp": "",
        "host_agent/src/wire/constants.hpp": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tidy, "REPOSITORY", tmp_path)
    return tmp_path


@pytest.mark.parametrize("changed", [".clang-tidy", "CMakeLists.txt", "packet.cpp", "packet.hpp", "bytes.hpp"])
def test_a_file_is_read_again_when_anything_of_it_has_changed(tree: Path, changed: str) -> None:
    folder = tree / "host_agent/src/wire"
    before = tidy.hash_of(folder / "packet.cpp")
    (folder / "constants.hpp").write_text("// not included\n")
    assert tidy.hash_of(folder / "packet.cpp") == before
    one = tree / changed if changed.startswith(".") else folder / changed
    one.write_text(one.read_text() + "another\n")
    assert tidy.hash_of(folder / "packet.cpp") != before


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("int one;  // a number\n", "/// An integer.\n\nint one;\n", True),
        ('const char* at = "http://one";\n', 'const char* at = "http://two";\n', False),
        ("char mark = '\"'; // \"\nint one;\n", "char mark = '\"';\nint two;\n", False),
        ("int one;  // NOLINT(a-check)\n", "int one;\n", False),
        ("int one = /*first=*/1;\n", "int one = /*second=*/1;\n", False),
    ],
)
def test_comments_of_lines_do_not_count_but_for_nolint(tree: Path, before: str, after: str, is_same: bool) -> None:
    file = tree / "host_agent/src/wire/packet.cpp"
    file.write_text(before)
    hashed = tidy.hash_of(file)
    file.write_text(after)
    assert (tidy.hash_of(file) == hashed) == is_same


def test_a_complaint_is_no_clean_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tree / ".clang-tidy-clean"
    file = tree / "host_agent/src/wire/packet.cpp"
    monkeypatch.setattr(tidy, "TABLE", table)
    monkeypatch.setattr(tidy, "compiled_files", lambda: {file})
    monkeypatch.setattr("sys.argv", ["tidy", "--jobs", "1"])
    for said, failed, rows in (("a complaint", True, 0), ("", False, 1)):
        monkeypatch.setattr(tidy, "complaints", lambda path, said=said: said)
        with pytest.raises(SystemExit) as ended:
            tidy.main()
        assert bool(ended.value.code) == failed
        assert len(tidy.known_clean()) == rows
    monkeypatch.setattr(tidy, "complaints", lambda path: pytest.fail("it was clean, and nothing has changed"))
    with pytest.raises(SystemExit):
        tidy.main()
    assert "0 of 1 files checked" in capsys.readouterr().out
