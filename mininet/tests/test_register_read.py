"""`register` prints what a register holds, or says why it cannot."""

from __future__ import annotations

import json

import pytest

from wiresum import compiled
from wiresum_mininet import register_read

REGISTERS = {
    register["name"]: register["bitwidth"]
    for register in json.loads(compiled.load("v1model").device_config)["register_arrays"]
}


def test_a_register_that_thrift_cannot_hold_is_refused_with_where_its_values_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """bmv2 would give 2^63 - 1."""
    monkeypatch.setattr("sys.argv", ["register", "sums", "33"])
    with pytest.raises(SystemExit, match=r"sums has 2048 bits, and bmv2 gives at most 63 .*tshark -O wiresum"):
        register_read.main()


@pytest.mark.parametrize("name", [name for name in REGISTERS if name != "sums"])
def test_each_other_register_is_read(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    largest = (1 << REGISTERS[name]) - 1
    assert largest < 1 << 63
    monkeypatch.setattr("sys.argv", ["register", name, "33"])
    monkeypatch.setattr(register_read, "read", lambda asked, cell: {cell: largest} if asked == name else {})
    register_read.main()
    assert capsys.readouterr().out == f"{name}[33] = {largest} (0x{largest:x})\n"
