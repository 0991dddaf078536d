"""The controller's state on disk: one SQLite file, in WAL mode.

What is in it: the jobs that workers have grants of, with their tokens; what became of those that ended; the names that
operators have reserved; the sequence of keys, and how many of it may have been used; which switches are being drained;
and the epoch. All of it but
the sequence's secret, which comes with the file, is what `Jobs` gave out as `Write`s, and each batch of those is one
transaction, so that the file always holds a moment of the past.

synchronous = FULL: a commit is on the disk before it returns. NORMAL would survive a killed process just as well, but
after a power cut the last commits could be missing, and with them jobs whose workers have their grants, and keys that
were used: the next job with one of those would take for its own what the cells hold of the one before. One commit holds
all that has come up while the one before was being written, so a crowd of workers that joins shares a few of them. For
the same reason an old copy of the file is no state to begin from: who has lost the file begins without, and with other
keys (`Keys.identity`).

The epoch counts the controllers that have served from this file; each draws the next one when it begins. It is the
P4Runtime election id, so the newest controller is the one that switches obey, and it fences the file: a controller
whose epoch is not the newest can write nothing any more.

The file is for its owner's eyes alone, since tokens and keys are in it. It must be on a disk of this machine: SQLite's
WAL shares memory between the processes that have the file open.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple
from pathlib import Path

from wiresum.controller.jobs.keys import SECRET_BYTES, Keys, KeySequence
from wiresum.controller.jobs.outputs import (
    CheckServing,
    Forget,
    ForgetEnded,
    ForgetReservation,
    Save,
    SaveDraining,
    SaveEnded,
    SaveKeys,
    SaveReservation,
    Write,
)
from wiresum.controller.jobs.records import EndedRecord, JobRecord, Reservation, StoredState

FILE_NAME = "controller.sqlite3"
LIFE_FILE_NAME = "controller.alive"
"""Empty; who serves touches it, so that a standby sees one that is frozen."""
APPLICATION_ID = 0x77697273
"""Marks the file as ours: "wirs"."""
SCHEMA_VERSION = 3
"""3 says of a job which switches it has, and may say several; otherwise it is what 2 was."""
SCHEMA_VERSIONS_READ = (2, 3)
FREE_BYTES_MIN = 4 << 20
"""That is a thousand jobs, and what SQLite needs beside its file."""
BUSY_S_MAX = 5.0
"""How long another process may keep the file locked: a transaction takes milliseconds."""

_SCHEMA = """
CREATE TABLE epoch (number INTEGER NOT NULL);
CREATE TABLE keys (secret BLOB NOT NULL, reserved INTEGER NOT NULL);
CREATE TABLE jobs (
    switch_name TEXT NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (switch_name, number)
) WITHOUT ROWID;
CREATE TABLE reservations (job_name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE draining (switch_name TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO epoch VALUES (1);
"""
_ENDED = "CREATE TABLE IF NOT EXISTS ended (sequence INTEGER PRIMARY KEY, body TEXT NOT NULL)"
"""Younger than the rest, and so made in files that have none. Releases that do not know of it leave it alone."""


class StoreError(RuntimeError):
    """The state cannot be read or written: the text says which file, why, and what to do."""


class DeposedError(StoreError):
    """Another controller has begun to serve from the same file."""


class Store:
    """Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Makes folder and file if there are none. Raises `StoreError`, and then has changed nothing."""
        self.path = directory / FILE_NAME
        self._life_path = directory / LIFE_FILE_NAME
        self.epoch = 0
        """Of this controller; 0: it has not begun."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600)
            self._database = sqlite3.connect(
                self.path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot open the state in {self.path}: {error}") from error
        try:
            with self._explained():
                self._check()
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._make_tables()
        except BaseException:
            self._database.close()
            raise

    def begin(self) -> int:
        """From now on this is the controller that serves. Returns its epoch, larger than that of all before."""
        with self._transaction() as database:
            database.execute("UPDATE epoch SET number = number + 1")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self.epoch = self._epoch_on_disk()
        return self.epoch

    def keys(self) -> Keys:
        """To be drawn from by who has begun, and from one such object: whoever began before may have used more."""
        with self._explained():
            (row,) = self._database.execute("SELECT secret, reserved FROM keys").fetchall()
            secret, reserved = row
            return Keys(KeySequence(secret), reserved)

    def load(self) -> StoredState:
        with self._explained():
            read = self._database.execute
            jobs = read("SELECT switch_name, number, name, state, body FROM jobs").fetchall()
            reservations = read("SELECT body FROM reservations").fetchall()
            draining = read("SELECT switch_name FROM draining").fetchall()
            ended = read("SELECT body FROM ended ORDER BY sequence").fetchall()
            return StoredState(
                jobs=[JobRecord(*row) for row in jobs],
                reservations=[Reservation(**json.loads(body)) for (body,) in reservations],
                draining=frozenset(switch_name for (switch_name,) in draining),
                ended=[EndedRecord(**json.loads(body)) for (body,) in ended],
            )

    def write(self, writes: Iterable[Write]) -> None:
        """All or nothing, and on the disk when this returns. Raises `DeposedError`, or another `StoreError`."""
        with self._transaction() as database:
            if self._epoch_on_disk() != self.epoch:
                raise DeposedError(f"another controller has begun to serve from {self.path}, so this one must not")
            for write in writes:
                _apply(database, write)

    def show_life(self) -> None:
        """That who serves is no ghost: changes nothing but a time. Does not raise."""
        with contextlib.suppress(OSError):
            self._life_path.touch(mode=0o600)

    def disk_trouble(self) -> str:
        """Why a write would fail, as far as the file system knows: a sentence, or empty."""
        try:
            found = os.statvfs(self.path.parent)
        except OSError as error:
            return f"the folder of the state, {self.path.parent}, cannot be used: {error.strerror}"
        if found.f_flag & os.ST_RDONLY:
            return f"the disk of the state, {self.path.parent}, is read-only"
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < FREE_BYTES_MIN:
            return f"the disk of the state, {self.path.parent}, is full: {free_bytes >> 10} KiB are free"
        return ""

    def life_shown(self) -> float | None:
        """When life was shown last, by the file's clock: only that it changes means something. None: never."""
        try:
            return self._life_path.stat().st_mtime
        except OSError:
            return None

    def close(self) -> None:
        """Idempotent."""
        self._database.close()

    def _check(self) -> None:
        """Is this ours, of a version that we know, and undamaged? Changes nothing."""
        (objects,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if not objects:
            return
        if application != APPLICATION_ID:
            raise StoreError(f"{self.path} is another program's file: choose another folder for the state")
        if version not in SCHEMA_VERSIONS_READ:
            raise StoreError(
                f"{self.path} was written by another release of wiresum (schema {version}; this one knows "
                f"{SCHEMA_VERSION}): run that release, or move the file away when no job runs"
            )
        (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)

    def _make_tables(self) -> None:
        with self._transaction() as database:
            (objects,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not objects:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO keys VALUES (?, 0)", (secrets.token_bytes(SECRET_BYTES),))
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            database.execute(_ENDED)

    def _epoch_on_disk(self) -> int:
        (epoch,) = self._database.execute("SELECT number FROM epoch").fetchone()
        return int(epoch)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot use the state in {self.path}: {error}. Look at its disk") from error
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            said = " ".join(str(error).split())
            raise StoreError(
                f"the state in {self.path} is damaged ({said}): move it away. The jobs that run end then, and the "
                f"switches begin anew. An older copy is no help: keys that were used since would be used again"
            ) from error


def _apply(database: sqlite3.Connection, write: Write) -> None:
    match write:
        case Save(record):
            database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", astuple(record))
        case Forget(switch_name, number):
            database.execute("DELETE FROM jobs WHERE switch_name = ? AND number = ?", (switch_name, number))
        case SaveKeys(reserved):
            database.execute("UPDATE keys SET reserved = ?", (reserved,))
        case CheckServing():
            pass  # that the epoch is ours has been seen
        case SaveDraining(switch_name, draining):
            database.execute("DELETE FROM draining WHERE switch_name = ?", (switch_name,))
            database.executemany("INSERT INTO draining VALUES (?)", [(switch_name,)] * draining)
        case SaveReservation(reservation):
            body = json.dumps(asdict(reservation))
            database.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?)", (reservation.job_name, body))
        case ForgetReservation(job_name):
            database.execute("DELETE FROM reservations WHERE job_name = ?", (job_name,))
        case SaveEnded(ended):
            database.execute("INSERT OR REPLACE INTO ended VALUES (?, ?)", (ended.sequence, json.dumps(asdict(ended))))
        case ForgetEnded(sequence):
            database.execute("DELETE FROM ended WHERE sequence = ?", (sequence,))
