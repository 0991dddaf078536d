"""The file of epochs and keys, and the detection of damage to it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from wiresum.controller import ledger
from wiresum.controller.ledger import ForeignLedgerError, Ledger, LedgerError

LEDGER = Ledger(bytes(range(16)), 1 << 62, (1 << 32) - 1)


def test_a_written_ledger_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    assert ledger.read(tmp_path) is None
    ledger.write(tmp_path, LEDGER)
    assert ledger.read(tmp_path) == LEDGER
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_changed_bit_and_every_truncation_is_detected(tmp_path: Path) -> None:
    ledger.write(tmp_path, LEDGER)
    path = tmp_path / ledger.FILE_NAME
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(LedgerError):
            ledger.read(tmp_path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(LedgerError):
            ledger.read(tmp_path)


def test_a_failed_write_leaves_the_old_ledger(tmp_path: Path) -> None:
    ledger.write(tmp_path, LEDGER)
    (tmp_path / f"{ledger.FILE_NAME}.new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        ledger.write(tmp_path, Ledger.draw())
    assert ledger.read(tmp_path) == LEDGER


def test_another_format_version_is_not_reported_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "VERSION", 2)
    ledger.write(tmp_path, LEDGER)
    monkeypatch.undo()
    with pytest.raises(ForeignLedgerError):
        ledger.read(tmp_path)


def test_copies_of_a_ledger_get_different_epochs_above_all_known_ones() -> None:
    one, other = (Ledger.draw().with_next_epoch(above=1000) for _ in range(2))
    assert min(one.epoch, other.epoch) > 1000
    assert one.epoch != other.epoch
    assert one.with_next_epoch(above=0).epoch > one.epoch
