"""The state on disk, written and read by real SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller.jobs.leases import Seen
from wiresum.controller.jobs.outputs import (
    Forget,
    ForgetReservation,
    Save,
    SaveDraining,
    SaveReservation,
    SaveRounds,
    SaveZeroCells,
)
from wiresum.controller.jobs.records import JobRecord, RecordError, Reservation, job_of
from wiresum.controller.store import FILE_NAME, DeposedError, Store, StoreError

JOB = JobRecord("leaf", 3, "a job", "running", 17, "{}")
RESERVATION = Reservation("created", 4, 64, "vision", 7, "leaf", "a token", 1000.0, 2000.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with contextlib.closing(Store(folder)) as store:
        store.begin()
        yield store


def test_what_is_written_is_there_for_the_next(store: Store, folder: Path) -> None:
    store.write([Save(JOB), SaveReservation(RESERVATION), SaveDraining("leaf", True)])
    store.write([SaveRounds({("leaf", 3): 1 << 40})])
    store.close()
    with contextlib.closing(Store(folder)) as after:
        state = after.load()
    assert state.jobs == [JobRecord("leaf", 3, "a job", "running", 1 << 40, "{}")]
    assert state.reservations == [RESERVATION]
    assert state.draining == {"leaf"}
    assert 0 <= state.silent_s < 60


def test_what_is_forgotten_is_gone_but_for_the_rounds_of_its_slots(store: Store) -> None:
    store.write([Save(JOB), SaveReservation(RESERVATION), SaveDraining("leaf", True)])
    seen = Seen(64, 16, 1 << 35, None, "vision")
    store.write([Forget("leaf", 3, seen), ForgetReservation("created"), SaveDraining("leaf", False)])
    state = store.load()
    assert (state.jobs, state.reservations, state.draining) == ([], [], frozenset())
    assert state.seen == [("leaf", seen)]
    store.write([Forget("leaf", 4, Seen(64, 16, 1 << 36, 5, "")), Forget("spine", 4, Seen(64, 16, 2, 2, ""))])
    store.write([SaveZeroCells("leaf", 256)])
    assert sorted(store.load().seen, key=str) == [
        ("leaf", Seen(0, 256, 1, 0, None)),
        ("leaf", Seen(64, 16, 1 << 36, 0, None)),
        ("spine", Seen(64, 16, 2, 2, "")),
    ]


def test_the_number_of_rows_is_bounded_by_the_slots(store: Store) -> None:
    for _ in range(3):
        store.write([Forget("leaf", n, Seen(16 * (n % 4), 16, n, None, "")) for n in range(1000)])
    assert len(store.load().seen) == 4


def test_a_batch_is_written_as_a_whole_or_not_at_all(store: Store) -> None:
    with pytest.raises(StoreError):
        store.write([Save(JOB), Save(JobRecord("leaf", 4, None, "running", 0, "{}"))])  # type: ignore[arg-type]
    assert store.load().jobs == []
    store.write([Save(JOB)])
    assert store.load().jobs == [JOB]


def test_each_controller_has_a_newer_epoch_and_only_the_newest_may_write(store: Store, folder: Path) -> None:
    with contextlib.closing(Store(folder)) as newer:
        store.write([Save(JOB)])
        assert newer.begin() > store.epoch
        with pytest.raises(DeposedError, match="another controller has begun to serve"):
            store.write([Forget("leaf", 3, Seen(0, 16, 1, None, ""))])
        newer.write([SaveRounds({("leaf", 3): 99})])
        assert newer.load().jobs[0].round_newest == 99


def test_one_that_has_not_begun_may_only_read(store: Store, folder: Path) -> None:
    with contextlib.closing(Store(folder)) as reader:
        assert reader.load().jobs == []
        with pytest.raises(DeposedError):
            reader.write([Save(JOB)])


def test_nobody_else_may_read_it(store: Store) -> None:
    store.write([Save(JOB)])
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_damaged_file_is_told_and_left_as_it_is(folder: Path, store: Store) -> None:
    store.write([Save(JobRecord("leaf", n, "a job", "running", 0, "x" * 1000)) for n in range(100)])
    store.close()
    damaged = bytearray(store.path.read_bytes())
    damaged[4096:20000] = bytes(20000 - 4096)
    store.path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"controller\.sqlite3 is damaged [^\n]*put a copy of it in its place"):
        Store(folder)
    assert store.path.read_bytes() == damaged


@pytest.mark.parametrize("contents", [b"this is a text, and not a database\n" * 100, b"SQLite format 3\0" + bytes(50)])
def test_what_is_no_database_is_told_and_left_as_it_is(folder: Path, contents: bytes) -> None:
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
            r"written by another release of wiresum \(schema 99; this one knows 1\): run that release",
        ),
        ("application_id = 1", "another program's file"),
    ],
)
def test_a_file_of_another_release_or_program_is_told_and_left_as_it_is(
    folder: Path, store: Store, pragma: str, complaint: str
) -> None:
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        database.execute(f"PRAGMA {pragma}")
    before = store.path.read_bytes()
    with pytest.raises(StoreError, match=complaint):
        Store(folder)
    assert store.path.read_bytes() == before


def test_a_folder_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot open the state in"):
        Store(tmp_path / "file" / "state")


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"key": 1}'])
def test_a_record_that_makes_no_sense_is_told(body: str) -> None:
    with pytest.raises(RecordError, match="what is written down of job 'a job', number 3 at leaf makes no sense"):
        job_of(JobRecord("leaf", 3, "a job", "running", 0, body), now=0.0, unix_offset=0.0)
