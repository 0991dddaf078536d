"""The file of epochs and keys: read back as it was written, or known to be something else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from wiresum.controller import ledger
from wiresum.controller.ledger import ForeignLedgerError, Ledger, LedgerError

LEDGER = Ledger(bytes(range(16)), 1 << 62, (1 << 32) - 1)


def test_what_is_written_is_read_and_is_its_owners_alone(tmp_path: Path) -> None:
    assert ledger.read(tmp_path) is None
    ledger.write(tmp_path, LEDGER)
    assert ledger.read(tmp_path) == LEDGER
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_bit_can_change_and_no_byte_be_missing_without_being_seen(tmp_path: Path) -> None:
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


def test_what_could_not_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    ledger.write(tmp_path, LEDGER)
    (tmp_path / f"{ledger.FILE_NAME}.new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        ledger.write(tmp_path, Ledger.draw())
    assert ledger.read(tmp_path) == LEDGER


def test_a_form_of_another_release_is_told_apart_from_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "VERSION", 2)
    ledger.write(tmp_path, LEDGER)
    monkeypatch.undo()
    with pytest.raises(ForeignLedgerError):
        ledger.read(tmp_path)


def test_two_that_begin_from_copies_have_other_epochs_above_all_that_are_known() -> None:
    one, other = (Ledger.draw().with_next_epoch(above=1000) for _ in range(2))
    assert min(one.epoch, other.epoch) > 1000
    assert one.epoch != other.epoch
    assert one.with_next_epoch(above=0).epoch > one.epoch
