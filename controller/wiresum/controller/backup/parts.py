"""The parts of a backup, and how they are restored.

**The state** is the database, copied by SQLite while the controller serves, and then the ledger of keys. The ledger is
written before the database, so a backup's ledger is as new as its database or newer, as after a crash.

**Keys.** A backup is old: since then the controller has drawn keys that the backup's ledger does not know of. Each
switch knows how many keys of the sequence it was given, for as long as its cells, and a controller continues behind
that number before it gives the switch a job (jobs/keys.py). So the sequence is kept, and with it the jobs that the
backup and the switches both know: with a new secret every switch would be loaded anew. If the folder has a ledger of
this sequence already, the higher of both counts is kept.

**Epochs.** A switch obeys the newest controller. A controller that begins from a backup must be newer than all that
have begun since. How many have begun is unknown; so the restored ledger's epoch is as much greater as 4096 of them can
make it. The database keeps its old epoch. The controller that begins sees by this difference that the database is not
what was written last, and says so (store.py).

Nothing is written before all is checked. New files are written beside the old ones, and then moved in their place; the
old database's write-ahead log goes before, since SQLite would apply it to the new database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from wiresum.controller import ledger
from wiresum.controller.jobs.keys import KEY_BITS
from wiresum.controller.ledger import EPOCH_STEP_BITS, ForeignLedgerError, Ledger, LedgerError
from wiresum.controller.ledger import FILE_NAME as KEYS
from wiresum.controller.store import (
    BUSY_S_MAX,
    LIFE_FILE_NAME,
    Store,
    StoreError,
    holding,
    tables,
    without_spaces,
)
from wiresum.controller.store import FILE_NAME as DATABASE

EPOCH_STEP = 4096 << EPOCH_STEP_BITS
"""How much a restored epoch exceeds the one in the backup."""
EPOCH_MAX = 1 << 62
"""The largest epoch of a backup: all that follow are election ids, too."""


class BackupError(RuntimeError):
    """Raised if a backup cannot be made or restored: a sentence that says what is wrong, and what to do."""


@dataclass(frozen=True)
class Contents:
    """How much a database contains."""

    jobs: int
    reservations: int
    ended: int

    def __str__(self) -> str:
        return f"{self.jobs} jobs, {self.reservations} created ones, {self.ended} that have ended"


# ---- making one


def collect(state: Path, into: Path) -> tuple[dict[str, Path], Contents]:
    """Copies the files of a backup into the folder `into`, since they may change meanwhile. Raises `BackupError`."""
    if not (state / DATABASE).exists():
        raise BackupError(f"there is no state in {state} yet: no controller has served from there")
    contents = _snapshot(state, into / DATABASE)
    found = {DATABASE: into / DATABASE}
    with contextlib.suppress(FileNotFoundError):  # whoever restores a state without a ledger draws other keys
        (into / KEYS).write_bytes((state / KEYS).read_bytes())
        found[KEYS] = into / KEYS
    return found, contents


def _snapshot(state: Path, to: Path) -> Contents:
    """Copies the database into one file, as one transaction left it."""
    try:
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(holding(state))
            source = sqlite3.connect(f"file:{quote(str(state / DATABASE))}?mode=rw", timeout=BUSY_S_MAX, uri=True)
            cleanup.callback(source.close)
            target = sqlite3.connect(to)
            cleanup.callback(target.close)
            source.backup(target)  # in one step, so that a controller that writes meanwhile does not prolong it
            target.execute("PRAGMA journal_mode = DELETE")
    except BlockingIOError:
        raise BackupError(f"a backup is being restored to {state}: try again when that is over") from None
    except (sqlite3.Error, OSError) as error:
        raise BackupError(f"cannot copy the state in {state}: {error}. Run this as its owner, or as root") from None
    return _check_database(to, f"in {state}")


def _check_database(path: Path, where: str) -> Contents:
    """Counts what a copy of a database has, which nobody else uses. Raises `BackupError` if a controller of this
    release could not begin with the database."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            made = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            found = {without_spaces(str(statement)) for (statement,) in made}
            if found != tables():
                # Before any query: a view or a trigger could do anything then, or later.
                raise BackupError(f"the database {where} has other tables than a controller's")
            epoch, reserved = database.execute("SELECT number, reserved FROM epoch").fetchone()
        with contextlib.closing(Store(path.parent)) as store:
            state = store.load()
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = DELETE")
    except (StoreError, sqlite3.Error, OSError, ValueError, TypeError) as error:
        said = str(error).replace(f"{path}", "it").split(":")[0]
        raise BackupError(f"the database {where} cannot be used: {said}") from None
    if not _make_sense(epoch, reserved):
        raise BackupError(f"the database {where} cannot be used: its counts make no sense")
    return Contents(len(state.jobs), len(state.reservations), len(state.ended))


# ---- putting one back


def _make_sense(epoch: object, reserved: object) -> bool:
    return (
        isinstance(epoch, int)
        and isinstance(reserved, int)
        and 0 <= epoch < EPOCH_MAX
        and 0 <= reserved < 1 << KEY_BITS
    )


def restore(there: Path, state: Path, *, force: bool) -> Contents:
    """Restores what `archive.unpack` has unpacked and checked. Returns what the state has. Raises `BackupError`, and
    has changed nothing then unless the error says so."""
    database, ledger_file = there / DATABASE / DATABASE, there / KEYS / KEYS
    if not database.exists():
        raise BackupError("it has no state: it is no backup of a controller")
    contents = _check_database(database, "in the backup")
    keys = _ledger(ledger_file.parent, "in the backup") if ledger_file.exists() else None
    occupied = [str(state / name) for name in (KEYS, DATABASE) if os.path.lexists(state / name)]
    if occupied and not force:
        are = "is" if len(occupied) == 1 else "are"
        raise BackupError(f"{', '.join(occupied)} {are} there already, and replaced with --force alone")
    with contextlib.ExitStack() as cleanup:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            cleanup.enter_context(holding(state, alone=True))
        except BlockingIOError:
            raise BackupError(
                f"a controller uses the state in {state}, or stands by, or a backup is made: stop controller and "
                f"standby before you restore"
            ) from None
        except OSError as error:
            raise BackupError(f"cannot use {error.filename or state}: {error.strerror}") from None
        try:
            _install(database, state, _next_ledger(keys, state))
        except OSError as error:
            raise BackupError(
                f"cannot write {error.filename}: {error.strerror}. Part of the backup may have been restored: mend "
                f"that, and restore it again with --force"
            ) from error
    return contents


def _ledger(folder: Path, where: str) -> Ledger | None:
    """Reads a ledger; None: there is none. Raises `BackupError`."""
    try:
        found = ledger.read(folder)
    except (LedgerError, ForeignLedgerError, OSError) as error:
        raise BackupError(f"the keys {where} cannot be used: {error}") from None
    if found is not None and not _make_sense(found.epoch, found.reserved):
        raise BackupError(f"the keys {where} cannot be used: its counts make no sense")
    return found


def _next_ledger(keys: Ledger | None, state: Path) -> Ledger | None:
    """The ledger of the next controller. None if the backup has no ledger: that controller draws a new secret."""
    try:
        there = _ledger(state, f"in {state}")
    except BackupError:
        there = None  # the old ledger is replaced, perhaps because it is damaged
    if keys is None:
        return None
    epoch, reserved = keys.epoch, keys.reserved
    if there is not None:
        epoch = max(epoch, there.epoch)
        reserved = max(reserved, there.reserved) if there.secret == keys.secret else reserved
    return dataclasses.replace(keys, epoch=epoch + EPOCH_STEP, reserved=reserved)


def _install(database: Path, state: Path, keys: Ledger | None) -> None:
    """Puts the files in their places, the ledger first: with the new ledger and the old database a controller would
    begin as after a crash."""
    beside = state / f".{DATABASE}.restored"
    try:
        _stage(database, beside)
        if keys is not None:
            ledger.write(state, keys)
            _give(state / KEYS)
        else:
            (state / KEYS).unlink(missing_ok=True)
        for name in (f"{DATABASE}-wal", f"{DATABASE}-shm", LIFE_FILE_NAME):
            (state / name).unlink(missing_ok=True)
        beside.replace(state / DATABASE)
        _sync(state)
    finally:
        beside.unlink(missing_ok=True)


def _stage(source: Path, beside: Path) -> None:
    """Copies a file to a new one, on disk, that its owner alone may read."""
    beside.unlink(missing_ok=True)
    with (
        source.open("rb") as content,
        os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        shutil.copyfileobj(content, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    _give(beside)


def _give(path: Path) -> None:
    """Gives a file to the owner of its folder: root restores what a service's user reads."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
