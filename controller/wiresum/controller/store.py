"""The controller's state on disk: a SQLite file in WAL mode, and beside it the ledger of epochs and keys (ledger.py).

The database holds the jobs whose workers have grants, with their tokens; how jobs ended; the jobs that operators have
created; which switches are being drained. Each batch of `Write`s is one transaction. synchronous = FULL, since after a
power cut NORMAL may lose the last commits, and with them jobs whose workers have their grants.

Still, a disk may forget, or return what was never written, and people restore old copies. No key is used again then:
the ledger is written before a key is used, and the switches know how many they have been given. The database's records
of jobs may be outdated. So each record has a seal, and is set aside if the seal is broken (set_aside.py); a job that
the switches do not hold is ended (telling.py); and a job that is unknown here loses its entries.

The epoch tells the controllers that have served from this state apart, and grows with each. The P4Runtime election id
is the epoch, so switches obey the newest controller. Both the ledger and the database have the epoch. In the database
it is a fence: a transaction fails, and writes to neither file, if a newer controller has begun. And it shows which file
is older. A ledger that is older is taken for lost.

Only the owner may read the files, which hold tokens and keys. They must be on a local disk: SQLite's WAL shares memory
between processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import json_format

from wiresum import join
from wiresum.controller import ledger
from wiresum.controller.jobs import outputs
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.records import EndedRecord, JobRecord, Reservation, SetAside, StoredState
from wiresum.controller.ledger import ForeignLedgerError, Ledger, LedgerError
from wiresum.join.constants import STATE_SCHEMA

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE_NAME = "controller.sqlite3"
LIFE_FILE_NAME = "controller.alive"
"""An empty file that the active controller touches, so that a standby notices a frozen one. In an orderly end the
controller removes the file."""
APPLICATION_ID = 0x77697273
"""Marks the file as ours: "wirs"."""
FREE_BYTES_MIN = 4 << 20
BUSY_S_MAX = 5.0
"""How long another process may lock the file."""
CLOSE_S_MAX = 2 * BUSY_S_MAX
"""How long `close` waits for a write in progress before it leaves the file to the write."""

_SCHEMA = """
CREATE TABLE epoch (number INTEGER NOT NULL, reserved INTEGER NOT NULL);
CREATE TABLE jobs (
    switch_name TEXT NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    PRIMARY KEY (switch_name, number)
) WITHOUT ROWID;
CREATE TABLE reservations (job_name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE draining (switch_name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE ended (sequence INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE set_aside (sequence INTEGER PRIMARY KEY, why, switch_name, number, name, state, body, seal);
INSERT INTO epoch VALUES (0, 0);
"""
"""SQL statements that make the tables. `set_aside` is a table of its own, since another job may get the number."""
_JOB_COLUMNS = "switch_name, number, name, state, body"


def tables() -> frozenset[str]:
    """The statements that made the tables, in the form of `without_spaces`."""
    return frozenset(without_spaces(statement) for statement in _SCHEMA.split(";") if "CREATE" in statement)


def without_spaces(statement: str) -> str:
    """A statement with a single space between words."""
    return " ".join(statement.split())


class StoreError(RuntimeError):
    """Raised if the state cannot be read or written: the text says which file, why, and what to do."""


class DeposedError(StoreError):
    """Raised if another controller has begun to serve from the file."""


@contextlib.contextmanager
def holding(directory: Path, *, alone: bool = False) -> Iterator[None]:
    """Marks the folder of a state as in use by this process, until the context or the process ends. `alone`: raises
    `BlockingIOError` if another process uses the folder; meanwhile others get this error. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_NB | (fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another process has it in use", str(directory)) from None
        yield
    finally:
        os.close(descriptor)


class Store:
    """The state on disk. May be used from any thread; one at a time uses the database."""

    def __init__(self, directory: Path, *, busy_s_max: float = BUSY_S_MAX, close_s_max: float = CLOSE_S_MAX) -> None:
        """Makes folder and file if there are none. Raises `StoreError`, and then has changed nothing."""
        self.path = directory / FILE_NAME
        self._busy_s_max, self._close_s_max = busy_s_max, close_s_max
        self._using = threading.Lock()
        """Guards the database: SQLite crashes if it is closed while a thread executes a statement."""
        self._closed = False
        self._life_path = directory / LIFE_FILE_NAME
        self._ledger: Ledger | None = None
        """The ledger of this controller; None: it has not begun."""
        self._keys_lost = ""
        self._past = ""
        self._cleanup = contextlib.ExitStack()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._cleanup.enter_context(holding(directory))
            self.path.touch(mode=0o600)
            self._database = sqlite3.connect(
                self.path, timeout=busy_s_max, isolation_level=None, check_same_thread=False
            )
            self._cleanup.callback(self._database.close)
            self._database.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        except (OSError, sqlite3.Error) as error:
            self._cleanup.close()
            raise StoreError(f"cannot open the state in {self.path}: {error}") from error
        try:
            with self._explained():
                self._check()
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._make_tables()
        except BaseException:
            self._cleanup.close()
            raise

    @property
    def epoch(self) -> int:
        """Epoch of this controller; 0: it has not begun."""
        return self._ledger.epoch if self._ledger is not None else 0

    def begin(self) -> int:
        """Makes this the active controller. Returns its epoch, which is larger than all earlier ones."""
        with self._transaction() as database:
            found = self._read_ledger()
            epoch, reserved = self._witnessed()
            self._keys_lost = self._past = ""
            if found is None and epoch:
                self._keys_lost = f"the controller's keys are lost: {self._ledger_trouble}"
            elif found is not None and (epoch > found.epoch or reserved > found.reserved):
                self._keys_lost = f"the controller's keys are lost: {self._ledger_path} is not what was written last"
            elif found is not None and epoch < found.epoch:
                self._past = f"{self.path} is not what was written last, or the controller died when it was beginning"
            if self._keys_lost or self._past:
                log.error("%s. What runs on account of what was lost ends", self._keys_lost or self._past)
            began = (Ledger.draw() if found is None or self._keys_lost else found).with_next_epoch(epoch)
            ledger.write(self.path.parent, began)
            database.execute("UPDATE epoch SET number = ?, reserved = ?", (began.epoch, began.reserved))
        self._ledger = began
        self.show_life()
        return began.epoch

    def end(self) -> None:
        """Notes that this controller, which has begun, does not serve any more: a standby need not wait. Does not
        raise."""
        with contextlib.suppress(OSError):
            self._life_path.unlink()

    def keys(self) -> Keys:
        """The keys of the state. Only the controller that has begun may draw keys, and from one such object."""
        with self._used():
            found = self._ledger or self._read_ledger() or Ledger.draw()
            return Keys(KeySequence(found.secret), found.reserved)

    def load(self) -> StoredState:
        with self._used():
            read = self._database.execute
            jobs, damaged = self._load_jobs()
            reservations = read("SELECT body FROM reservations").fetchall()
            draining = read("SELECT switch_name FROM draining").fetchall()
            ended = read("SELECT sequence, body FROM ended ORDER BY sequence").fetchall()
            return StoredState(
                jobs=jobs,
                set_aside=[*self._load_set_aside(), *damaged],
                reservations=self._parsed("reservation", _reservation, reservations),
                draining=frozenset(switch_name for (switch_name,) in draining),
                ended=self._parsed("job that has ended", _ended, ended),
                past=self._keys_lost or self._past,
                keys_lost=bool(self._keys_lost),
            )

    def write(self, writes: Iterable[outputs.Write]) -> None:
        """Writes all or nothing, on disk when this returns. Raises `DeposedError`, or another `StoreError`."""
        with self._transaction() as database:
            self._check_epoch(self._witnessed()[0])
            for write in writes:
                if isinstance(write, outputs.SaveKeys):
                    self._save_keys(database, write.reserved)
                else:
                    _apply(database, write)

    def check_serving(self) -> None:
        """Raises `DeposedError` if another controller has begun, or another `StoreError` if this is not known. May be
        called from any thread, also while a write hangs: the check has a connection of its own."""
        with self._explained(), contextlib.closing(self._reader()) as database:
            (epoch,) = database.execute("SELECT number FROM epoch").fetchone()
        self._check_epoch(epoch)

    def _check_epoch(self, epoch: int) -> None:
        if self._ledger is None or epoch != self._ledger.epoch:
            raise DeposedError(f"another controller has begun to serve from {self.path}, so this one must not")

    def show_life(self) -> None:
        """Tells a standby that this controller is not frozen. Does not raise."""
        with contextlib.suppress(OSError):
            self._life_path.touch(mode=0o600)

    def disk_trouble(self) -> str:
        """A sentence that says why a write would fail, as the file system reports; empty: it would not."""
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
        """When life was last shown, comparable only with other values of this function. None: never, or no controller
        has begun since the orderly end of the last one."""
        try:
            return self._life_path.stat().st_mtime
        except OSError:
            return None

    def close(self) -> None:
        """Closes the state. Idempotent. Waits for the write in progress. If the write hangs, the file stays open, and
        the folder in use, until the process ends. Later uses of the database get a `StoreError`."""
        self._closed = True
        if not self._using.acquire(timeout=self._close_s_max):
            log.error("%s is not closed: a write has hung for %.0f s", self.path, self._close_s_max)
            return
        try:
            self._cleanup.close()
        finally:
            self._using.release()

    def _check(self) -> None:
        """Raises an error if this is not an undamaged database of ours, of this version."""
        (objects,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if not objects:
            return
        if application != APPLICATION_ID:
            raise StoreError(f"{self.path} is another program's file: choose another folder for the state")
        if version != STATE_SCHEMA:
            raise StoreError(
                f"{self.path} was written by another release of wiresum (schema {version}; this one knows "
                f"{STATE_SCHEMA}): run that release, or move the file away when no job runs"
            )
        (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)

    def _make_tables(self) -> None:
        with self._transaction() as database:
            (objects,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if objects:
                return
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {STATE_SCHEMA}")

    # The ledger.

    @property
    def _ledger_path(self) -> Path:
        return self.path.parent / ledger.FILE_NAME

    def _read_ledger(self) -> Ledger | None:
        """Reads the ledger; None: there is none, or it is damaged, which `_ledger_trouble` says."""
        self._ledger_trouble = f"{self._ledger_path} is gone"
        try:
            return ledger.read(self.path.parent)
        except LedgerError as error:
            self._ledger_trouble = f"{self._ledger_path} is damaged ({error})"
            return None
        except ForeignLedgerError as error:
            raise StoreError(
                f"{self._ledger_path} was written by another release of wiresum ({error}): run that release, or move "
                f"the file away when no job runs"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot read {self._ledger_path}: {error.strerror}. Mend that, or move it away: the jobs that run end "
                f"then, and the switches begin anew"
            ) from error

    def _save_keys(self, database: sqlite3.Connection, reserved: int) -> None:
        assert self._ledger is not None, "it has begun"
        after = dataclasses.replace(self._ledger, reserved=reserved)
        ledger.write(self.path.parent, after)
        self._ledger = after
        database.execute("UPDATE epoch SET reserved = ?", (reserved,))

    def _witnessed(self) -> tuple[int, int]:
        """The newest epoch, and the number of keys reserved, as the database has them; 0: no controller has begun."""
        epoch, reserved = self._database.execute("SELECT number, reserved FROM epoch").fetchone()
        return int(epoch), int(reserved)

    # The database.

    def _parsed(self, what: str, parse: Callable[..., T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
        """Parses rows, without damaged ones: no job depends on them."""
        found = []
        for row in rows:
            try:
                found.append(parse(*row))
            except (ValueError, TypeError, json_format.ParseError):
                log.error("a %s in %s is damaged, and is forgotten", what, self.path)
        return found

    def _load_jobs(self) -> tuple[list[JobRecord], list[SetAside]]:
        """Undamaged records of jobs, and damaged ones."""
        rows = self._database.execute(f"SELECT {_JOB_COLUMNS}, seal FROM jobs").fetchall()
        whole = [JobRecord(*row[:-1]) for row in rows if row[-1] == _seal(*row[:-1])]
        why = f"what {self.path} says of it is damaged"
        damaged = [JobRecord(*row[:-1]) for row in rows if row[-1] != _seal(*row[:-1])]
        return whole, [SetAside(0, record, why, damaged=True) for record in damaged]

    def _load_set_aside(self) -> list[SetAside]:
        rows = self._database.execute(f"SELECT sequence, why, {_JOB_COLUMNS}, seal FROM set_aside ORDER BY sequence")
        return [
            SetAside(row[0], JobRecord(*row[2:-1]), str(row[1]), damaged=row[-1] != _seal(*row[2:-1])) for row in rows
        ]

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        with self._using, self._explained():
            if self._closed:
                raise StoreError(f"the state in {self.path} was closed")
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._used():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _reader(self) -> sqlite3.Connection:
        """Opens a connection that makes no file."""
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=self._busy_s_max)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreError(f"cannot use the state in {self.path}: {error}. Look at its disk") from error
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            said = " ".join(str(error).split())
            raise StoreError(
                f"the state in {self.path} is damaged ({said}): move it away, and its -wal and -shm, but leave "
                f"{self._ledger_path.name}. The jobs that run end then"
            ) from error


def _reservation(body: str) -> Reservation:
    found = Reservation(**json.loads(body))
    found.check()
    return found


def _ended(sequence: int, body: str) -> EndedRecord:
    return EndedRecord(sequence, json_format.Parse(body, join.EndedJob(), ignore_unknown_fields=True))


def _seal(*columns: object) -> str:
    return hashlib.blake2s(repr(columns).encode(errors="replace"), digest_size=16).hexdigest()


def _apply(database: sqlite3.Connection, write: outputs.Write) -> None:
    match write:
        case outputs.Save(JobRecord() as record):
            row = (*astuple(record), _seal(*astuple(record)))
            database.execute(f"INSERT OR REPLACE INTO jobs ({_JOB_COLUMNS}, seal) VALUES (?, ?, ?, ?, ?, ?)", row)
        case outputs.Forget(JobRecord(switch_name, number)):
            database.execute("DELETE FROM jobs WHERE switch_name = ? AND number = ?", (switch_name, number))
        case outputs.Save(SetAside(sequence, JobRecord(switch_name, number), why)):
            place = (switch_name, number)
            columns = f"{_JOB_COLUMNS}, seal"
            database.execute(
                f"INSERT INTO set_aside (sequence, why, {columns}) SELECT ?, ?, {columns} FROM jobs "
                "WHERE switch_name = ? AND number = ?",
                (sequence, why, *place),
            )
            database.execute("DELETE FROM jobs WHERE switch_name = ? AND number = ?", place)
        case outputs.Forget(SetAside(sequence)):
            database.execute("DELETE FROM set_aside WHERE sequence = ?", (sequence,))
        case outputs.Save(Reservation(job_name) as reservation):
            body = json.dumps(asdict(reservation))
            database.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?)", (job_name, body))
        case outputs.Forget(Reservation(job_name)):
            database.execute("DELETE FROM reservations WHERE job_name = ?", (job_name,))
        case outputs.Save(EndedRecord(sequence, job)):
            body = json_format.MessageToJson(job, preserving_proto_field_name=True)
            database.execute("INSERT OR REPLACE INTO ended VALUES (?, ?)", (sequence, body))
        case outputs.Forget(EndedRecord(sequence)):
            database.execute("DELETE FROM ended WHERE sequence = ?", (sequence,))
        case outputs.SaveDraining(switch_name, draining):
            database.execute("DELETE FROM draining WHERE switch_name = ?", (switch_name,))
            database.executemany("INSERT INTO draining VALUES (?)", [(switch_name,)] * draining)
        case outputs.CheckServing():
            pass  # the transaction has checked the epoch
