from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from wiresum.controller import ledger
from wiresum.controller.backup.parts import EPOCH_STEP
from wiresum.controller.jobs.outputs import Forget, Save, SaveKeys
from wiresum.controller.jobs.records import JobRecord
from wiresum.controller.store import FILE_NAME, LIFE_FILE_NAME, Store, StoreError
from wiresum_lab.doubles.stored_state import JOB, RESERVATION, StoredState
from wiresum_lab.processes import wait_until

STATE = {"manifest.json", FILE_NAME, ledger.FILE_NAME}


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return set(opened.getnames())


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_backup_has_the_state_and_no_private_key_and_only_its_owner_may_read_it(site: StoredState) -> None:
    code, said = site.run("backup")
    assert (code, f"{site.archive}: " in said, "1 jobs, 1 created ones, 0 that have ended" in said) == (0, True, True)
    assert names(site.archive) == STATE
    assert mode_of(site.archive) == 0o600
    assert list(site.folder.glob(".*")) == [], "nothing else is left"
    shown = subprocess.run(["tar", "-xOf", site.archive, "manifest.json"], check=True, capture_output=True)
    assert json.loads(shown.stdout)["files"][FILE_NAME]["bytes"] > 0


@pytest.mark.parametrize("lost", ["state", "archive"])
def test_what_cannot_be_backed_up_is_an_error_that_says_what_to_do(site: StoredState, lost: str) -> None:
    if lost == "archive":
        site.archive.write_text("of yesterday")
    else:
        shutil.rmtree(site.state)
    code, said = site.run("backup")
    why = {"state": "no controller has served from there", "archive": "it is there already: name another file"}
    assert (code, why[lost] in said) == (1, True)
    assert site.archive.exists() == (lost == "archive")
    assert list(site.folder.glob(".*")) == []


def test_what_could_not_be_restored_is_not_backed_up(site: StoredState) -> None:
    (site.state / ledger.FILE_NAME).write_bytes(bytes(4097))
    code, said = site.run("backup")
    assert (code, f"{ledger.FILE_NAME} is too large" in said, site.archive.exists()) == (1, True, False)


def test_a_controller_without_state_has_nothing_to_back_up(site: StoredState) -> None:
    site.config.write_text(site.config.read_text().replace("state =", "# state ="))
    code, said = site.run("backup")
    assert (code, "names no `state`" in said) == (1, True)


def test_a_backup_under_a_controller_that_writes_is_what_one_moment_left(site: StoredState) -> None:
    """Each transaction moves a job to another number, and so in every moment there is one."""
    stop = threading.Event()
    moves: list[int] = []
    elsewhere = site.folder / "elsewhere/cluster.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(site.config.read_text().replace(f"{site.state}", f"{elsewhere.parent}/state"))

    def write() -> None:
        with contextlib.closing(Store(site.state)) as store:
            store.begin()
            number = 3
            while not stop.is_set():
                jobs = [JobRecord("leaf", each, "night", "running", "{}") for each in (number, number % 60 + 3)]
                store.write([Forget(jobs[0]), Save(jobs[1]), SaveKeys(64 + len(moves))])
                number = jobs[1].number
                moves.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: moves, "it writes")
        for _ in range(10):
            assert site.run("backup")[0] == 0
            folder = elsewhere.parent / "state"
            code, said = site.run("restore", config=elsewhere)
            assert code == 0, said
            with contextlib.closing(Store(folder)) as copy:
                copy.begin()
                state = copy.load()
            assert (len(state.jobs), state.keys_lost) == (1, False)
            shutil.rmtree(folder)
            site.archive.unlink()
    finally:
        stop.set()
        writer.join()


def test_a_lost_state_is_restored_for_its_owner_alone(site: StoredState) -> None:
    before = ledger.read(site.state)
    assert before is not None
    site.run("backup")
    shutil.rmtree(site.state)
    code, said = site.run("restore")
    assert code == 0, said
    given = f"the owner of {site.state} (`chown -R wiresum: {site.state}` gives it to the service);" in said
    assert given == (os.geteuid() == 0), "root's state is no service's"
    assert {path.name for path in site.state.iterdir()} == {FILE_NAME, ledger.FILE_NAME}
    assert {mode_of(path) for path in site.state.iterdir()} == {0o600}
    after = ledger.read(site.state)
    assert after == ledger.Ledger(before.secret, before.epoch + EPOCH_STEP, 64)
    with contextlib.closing(Store(site.state)) as store:
        assert store.begin() > before.epoch + EPOCH_STEP
        state = store.load()
    assert (state.jobs, state.reservations, set(state.draining)) == ([JOB], [RESERVATION], {"leaf"})
    assert (state.keys_lost, "is not what was written last" in state.past) == (False, True)


def test_what_is_there_is_replaced_only_with_force_and_its_write_ahead_log_is_not_applied(site: StoredState) -> None:
    site.run("backup")
    with contextlib.closing(Store(site.state)) as store:
        store.begin()
        store.write([SaveKeys(640), *(Save(JobRecord("leaf", n, f"new-{n}", "running", "{}")) for n in range(50))])
        shutil.copytree(site.state, site.folder / "killed")
    shutil.rmtree(site.state)
    (site.folder / "killed").rename(site.state)
    assert (site.state / f"{FILE_NAME}-wal").stat().st_size > 0
    there = ledger.read(site.state)
    assert there is not None
    before = site.everything()
    code, said = site.run("restore")
    assert (code, "are there already, and replaced with --force alone" in said, site.everything()) == (1, True, before)
    assert site.run("restore", "--force")[0] == 0
    after = ledger.read(site.state)
    assert after is not None
    assert (after.reserved, after.epoch) == (640, there.epoch + EPOCH_STEP), "of both ledgers what is further on"
    assert not (site.state / LIFE_FILE_NAME).exists()
    with contextlib.closing(Store(site.state)) as store:
        store.begin()
        assert store.load().jobs == [JOB]


def test_a_ledger_of_another_secret_does_not_count_the_backups_keys(site: StoredState) -> None:
    before = ledger.read(site.state)
    assert before is not None
    site.run("backup")
    other = ledger.Ledger(bytes(16), before.epoch + 5, 640)
    ledger.write(site.state, other)
    assert site.run("restore", "--force")[0] == 0
    assert ledger.read(site.state) == ledger.Ledger(before.secret, other.epoch + EPOCH_STEP, 64)


def test_without_a_ledger_in_the_backup_the_next_controller_draws_other_keys(site: StoredState) -> None:
    (site.state / ledger.FILE_NAME).rename(site.folder / "keys")
    site.run("backup")
    (site.folder / "keys").rename(site.state / ledger.FILE_NAME)
    assert site.run("restore")[0] == 1, "the ledger would be replaced, too"
    assert site.run("restore", "--force")[0] == 0
    with contextlib.closing(Store(site.state)) as store:
        store.begin()
        assert store.load().keys_lost


@pytest.mark.parametrize("serves", [True, False])
def test_nothing_is_restored_while_a_controller_serves_or_stands_by(site: StoredState, serves: bool) -> None:
    site.run("backup")
    with contextlib.closing(Store(site.state)) as store:
        if serves:
            store.begin()
        before = site.everything()
        code, said = site.run("restore", "--force")
        assert (code, "a controller uses the state in" in said, site.everything()) == (1, True, before)
    assert site.run("restore", "--force")[0] == 0


def test_no_controller_begins_while_a_backup_is_restored(site: StoredState, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run("backup")
    written = ledger.write
    said = []

    def write(folder: Path, what: ledger.Ledger) -> None:
        with pytest.raises(StoreError) as caught:
            Store(site.state)
        said.append(str(caught.value))
        written(folder, what)

    monkeypatch.setattr(ledger, "write", write)
    assert site.run("restore", "--force")[0] == 0
    assert "another process has it in use" in said[0]


@pytest.mark.parametrize("written", [0, 1])
def test_a_failure_in_the_middle_leaves_a_state_from_which_no_key_is_drawn_again(
    site: StoredState, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """First the ledger is written, and then the database."""
    before = ledger.read(site.state)
    assert before is not None
    site.run("backup")

    replace, replaced = Path.replace, []

    def full(self: Path, target: Path) -> Path:
        if len(replaced) == written:
            raise OSError(28, "No space left on device", str(site.state))
        replaced.append(target)
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        code, said = site.run("restore", "--force")
        assert (code, "Part of the backup may have been restored" in said) == (1, True)
    with contextlib.closing(Store(site.state)) as store:
        assert store.begin() > before.epoch + written * EPOCH_STEP
        assert (store.load().keys_lost, store.load().jobs) == (False, [JOB])
    assert not list(site.state.glob(".*")), "nothing else is left"


def test_what_is_no_database_cannot_be_backed_up(site: StoredState) -> None:
    (site.state / FILE_NAME).write_bytes(b"nothing of the kind" * 1000)
    code, said = site.run("backup")
    assert (code, "cannot copy the state in" in said) == (1, True)
    with contextlib.closing(sqlite3.connect(site.state / FILE_NAME)) as database, pytest.raises(sqlite3.DatabaseError):
        database.execute("SELECT 1 FROM epoch")
