"""The state on disk, written and read with real SQLite."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller import ledger
from wiresum.controller import store as store_module
from wiresum.controller.jobs.keys import Keys
from wiresum.controller.jobs.outputs import (
    CheckServing,
    Forget,
    Save,
    SaveDraining,
    SaveKeys,
)
from wiresum.controller.jobs.records import JobRecord, RecordError, Reservation, job_of
from wiresum.controller.store import FILE_NAME, DeposedError, Store, StoreError, holding
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

JOB = JobRecord("leaf", 3, "a-job", "running", "{}")
RESERVATION = Reservation("created", 4, 64, "vision", 7, "leaf", "a token", 1000.0, 2000.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with contextlib.closing(Store(folder)) as store:
        store.begin()
        yield store


def test_stored_records_are_read_after_reopening(store: Store, folder: Path) -> None:
    store.write([Save(JOB), Save(RESERVATION), SaveDraining("leaf", True)])
    store.close()
    with contextlib.closing(Store(folder)) as after:
        state = after.load()
    assert state.jobs == [JOB]
    assert state.reservations == [RESERVATION]
    assert state.draining == {"leaf"}


def test_deleted_records_are_gone(store: Store) -> None:
    store.write([Save(JOB), Save(RESERVATION), SaveDraining("leaf", True)])
    store.write([Forget(JOB), Forget(RESERVATION), SaveDraining("leaf", False)])
    state = store.load()
    assert (state.jobs, state.reservations, state.draining) == ([], [], frozenset())


def drawn(keys: Keys, count: int) -> list[int]:
    found = []
    for _ in range(count):
        if keys.must_reserve:
            keys.reserve()
        found.append(keys.draw())
    return found


def test_the_next_controller_continues_the_key_sequence_after_all_used_keys(store: Store, folder: Path) -> None:
    keys = store.keys()
    store.write([SaveKeys(keys.reserve())])
    used = drawn(keys, 3)
    with contextlib.closing(Store(folder)) as after:
        after.begin()
        assert after.keys().identity == keys.identity
        assert not set(drawn(after.keys(), 1000)) & set(used)


def test_keys_that_were_not_reserved_on_disk_are_drawn_again(store: Store) -> None:
    assert drawn(store.keys(), 3) == drawn(store.keys(), 3), "no job can have used them"


def test_the_keys_survive_the_loss_of_the_database(store: Store, folder: Path) -> None:
    keys = store.keys()
    store.write([SaveKeys(keys.reserve()), Save(JOB)])
    used = drawn(keys, 3)
    store.close()
    for path in folder.glob(f"{FILE_NAME}*"):
        path.unlink()
    with contextlib.closing(Store(folder)) as after:
        assert after.begin() > store.epoch
        assert after.keys().identity == keys.identity
        assert not set(drawn(after.keys(), 1000)) & set(used)
        state = after.load()
    assert (state.jobs, state.keys_lost) == ([], False)
    assert "is not what was written last" in state.past


@pytest.mark.parametrize("how", ["lost", "damaged", "older"])
def test_lost_keys_are_replaced_by_a_new_sequence_and_epochs_still_increase(
    store: Store, folder: Path, how: str
) -> None:
    keys, path, older = store.keys(), folder / ledger.FILE_NAME, (folder / ledger.FILE_NAME).read_bytes()
    store.write([SaveKeys(keys.reserve()), Save(JOB)])
    store.close()
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(older if how == "older" else path.read_bytes().replace(b"reserved 64", b"reserved 65"))
    with contextlib.closing(Store(folder)) as after:
        assert after.begin() > store.epoch
        assert after.keys().identity != keys.identity
        state = after.load()
        assert (state.jobs, state.keys_lost) == ([JOB], True)
        said = {"lost": "is gone", "damaged": "is damaged (its checksum is wrong)", "older": "is not what was written"}
        assert f"the controller's keys are lost: {path} {said[how]}" in state.past
        after.write([CheckServing()])
    with contextlib.closing(Store(folder)) as later:
        later.begin()
        assert later.load().past == "", "the warning is given once"


def test_an_undamaged_state_is_not_reported_as_old(store: Store, folder: Path) -> None:
    keys = store.keys()
    store.write([SaveKeys(keys.reserve()), Save(JOB)])
    store.close()
    with contextlib.closing(Store(folder)) as after:
        after.begin()
        assert (after.load().past, after.load().keys_lost) == ("", False)


def test_only_a_damaged_job_record_is_set_aside(store: Store, folder: Path) -> None:
    store.write([Save(JOB), Save(JobRecord("leaf", 4, "another", "running", "{}"))])
    store.close()
    with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as database, database:
        database.execute("UPDATE jobs SET body = '{ }' WHERE number = 4")
    with contextlib.closing(Store(folder)) as after:
        after.begin()
        state = after.load()
    assert state.jobs == [JOB]
    (aside,) = state.set_aside
    assert (aside.record.name, aside.damaged, state.past) == ("another", True, "")
    assert "is damaged" in aside.why


def test_an_unreadable_ledger_is_reported_with_a_remedy_and_left_as_it_is(store: Store, folder: Path) -> None:
    store.close()
    (folder / ledger.FILE_NAME).unlink()
    (folder / ledger.FILE_NAME).mkdir()
    with contextlib.closing(Store(folder)) as after, pytest.raises(StoreError, match=r"cannot read .*or move it away"):
        after.begin()


def test_a_batch_is_written_completely_or_not_at_all(store: Store) -> None:
    with pytest.raises(StoreError):
        store.write([Save(JOB), Save(JobRecord("leaf", 4, None, "running", "{}"))])  # type: ignore[arg-type]
    assert store.load().jobs == []
    store.write([Save(JOB)])
    assert store.load().jobs == [JOB]


def test_each_controller_gets_a_newer_epoch_and_only_the_newest_may_write(store: Store, folder: Path) -> None:
    with contextlib.closing(Store(folder)) as newer:
        store.write([Save(JOB)])
        assert newer.begin() > store.epoch
        with pytest.raises(DeposedError, match="another controller has begun to serve"):
            store.write([Forget(JOB)])
        with pytest.raises(DeposedError):
            store.write([CheckServing()])
        newer.write([CheckServing()])
        assert newer.load().jobs == [JOB]


def test_a_store_that_has_not_begun_is_read_only(store: Store, folder: Path) -> None:
    with contextlib.closing(Store(folder)) as reader:
        assert reader.load().jobs == []
        with pytest.raises(DeposedError):
            reader.write([Save(JOB)])


def test_closing_waits_for_the_write_in_progress(store: Store, folder: Path) -> None:
    """Else SQLite would crash."""
    in_write = threading.Event()

    def write() -> None:
        with store._transaction() as database:
            in_write.set()
            wait_until(lambda: store._closed, "it is being closed")
            database.execute("INSERT INTO draining VALUES ('leaf')")

    writing = threading.Thread(target=write)
    writing.start()
    assert in_write.wait(PATIENCE_S)
    store.close()
    writing.join()
    with contextlib.closing(Store(folder)) as after:
        assert after.load().draining == {"leaf"}


def test_closing_does_not_wait_for_ever_and_leaves_the_file_to_a_write_that_hangs(folder: Path) -> None:
    store = Store(folder, close_s_max=0.0)
    with store._transaction() as database:
        store.close()
        database.execute("INSERT INTO draining VALUES ('leaf')")
        with pytest.raises(BlockingIOError), holding(folder, alone=True):
            pass
    for use in (store.load, store.keys, store.begin, lambda: store.write([])):
        with pytest.raises(StoreError, match=r"was closed$"):
            use()
    store.close()
    with holding(folder, alone=True):
        pass


def test_only_the_owner_may_read_the_files(store: Store) -> None:
    store.write([Save(JOB)])
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_damaged_database_is_reported_and_left_as_it_is(folder: Path, store: Store) -> None:
    store.write([Save(JobRecord("leaf", n, "a-job", "running", "x" * 1000)) for n in range(100)])
    store.close()
    damaged = bytearray(store.path.read_bytes())
    damaged[4096:20000] = bytes(20000 - 4096)
    store.path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"controller\.sqlite3 is damaged [^\n]*move it away"):
        Store(folder)
    assert store.path.read_bytes() == damaged


@pytest.mark.parametrize("contents", [b"this is a text, and not a database\n" * 100, b"SQLite format 3\0" + bytes(50)])
def test_a_file_that_is_no_database_is_reported_and_left_as_it_is(folder: Path, contents: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(contents)
    with pytest.raises(StoreError, match="is damaged"):
        Store(folder)
    assert (folder / FILE_NAME).read_bytes() == contents


@pytest.mark.parametrize(
    ("pragma", "complaint"),
    [
        (
            "user_version = 99",
            r"written by another release of wiresum \(schema 99; this one knows 4\): run that release",
        ),
        ("user_version = 1", r"written by another release of wiresum \(schema 1; this one knows 4\)"),
        ("application_id = 1", "another program's file"),
    ],
)
def test_a_database_of_another_release_or_program_is_reported_and_left_as_it_is(
    folder: Path, store: Store, pragma: str, complaint: str
) -> None:
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        database.execute(f"PRAGMA {pragma}")
    before = store.path.read_bytes()
    with pytest.raises(StoreError, match=complaint):
        Store(folder)
    assert store.path.read_bytes() == before


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot open the state in"):
        Store(tmp_path / "file" / "state")


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"key": 1}'])
def test_an_invalid_job_record_is_refused(body: str) -> None:
    with pytest.raises(RecordError, match="what is written down of job 'a-job', number 3 at 'leaf' makes no sense"):
        job_of(JobRecord("leaf", 3, "a-job", "running", body), now=0.0, unix_offset=0.0)


def test_a_full_disk_is_noticed_before_a_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Store(tmp_path / "state")) as store:
        assert store.disk_trouble() == ""
        monkeypatch.setattr(store_module, "FREE_BYTES_MIN", 1 << 62)
        assert "is full: " in store.disk_trouble()
        assert store.life_shown() is None
        store.show_life()
        assert store.life_shown() is not None
    shutil.rmtree(tmp_path / "state")
    assert "cannot be used: No such file" in store.disk_trouble()
    store.show_life()
    assert store.life_shown() is None
