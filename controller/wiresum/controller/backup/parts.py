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
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from wiresum.controller import ledger
from wiresum.controller.backup.archive import AUTHORITY_KEY, CONFIGURATION, PKI, TLS, Archive, ArchiveError
from wiresum.controller.config import Config
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
PUBLIC = frozenset({CONFIGURATION, "tls/ca.crt", "tls/tls.crt", "tls/ca.crl", "pki/ca.crt", "pki/ca.crl"})
"""Files that others may read, as `wiresum ca` makes them; the configuration holds no secret."""


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


def collect(
    config_path: Path, config: Config, into: Path, *, tls: bool, pki: Path | None, authority_key: bool
) -> tuple[dict[str, Path], Contents]:
    """Collects the files of a backup; files that might change meanwhile are copied into the folder `into`. Raises
    `BackupError`."""
    if config.state is None:
        raise BackupError(f"{config_path} names no `state`, so there is none to back up: keep a copy of that file")
    if not (config.state / DATABASE).exists():
        raise BackupError(f"there is no state in {config.state} yet: no controller has served from there")
    contents = _snapshot(config.state, into / DATABASE)
    sources = {KEYS: config.state / KEYS, CONFIGURATION: config_path}
    if tls:
        if config.security.tls is None:
            raise BackupError(f"{config_path} names no `tls` under [security]: leave --tls out")
        sources |= {name: config.security.tls.expanduser() / Path(name).name for name in TLS}
    if pki is not None:
        sources |= {
            name: pki / Path(name).name for name in (*PKI, AUTHORITY_KEY) if name != AUTHORITY_KEY or authority_key
        }
    found = {DATABASE: into / DATABASE}
    for name, source in sources.items():
        copied = into / name.replace("/", "-")
        try:
            copied.write_bytes(source.read_bytes())
        except FileNotFoundError:
            if name in (*TLS[:3], PKI[0], AUTHORITY_KEY):
                raise BackupError(f"{source} is not there: name the folder that has it") from None
            continue  # a list of revoked certificates, for instance, need not be
        except OSError as error:
            raise BackupError(f"cannot read {source}: {error.strerror}. Run this as root, or as its owner") from None
        found[name] = copied
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


@dataclass(frozen=True)
class Places:
    """Where the parts of a backup go; None: a part stays in the backup."""

    state: Path
    configuration: Path | None = None
    tls: Path | None = None
    pki: Path | None = None

    def of(self, name: str) -> Path | None:
        if name in (DATABASE, KEYS):
            return self.state / name
        if name == CONFIGURATION:
            return self.configuration
        folder = self.tls if name in TLS else self.pki
        return folder / Path(name).name if folder is not None else None


def configuration_in(archive: Archive) -> str:
    """The text of the configuration in an archive; empty: there is none. Raises `ArchiveError` or `OSError`."""
    return archive.read(CONFIGURATION).decode(errors="replace") if CONFIGURATION in archive else ""


def restore(archive: Archive, places: Places, *, force: bool) -> tuple[Contents, list[Path]]:
    """Restores a backup. Returns what the state has, and the files that were written. Raises `BackupError`, and has
    changed nothing then unless the error says so."""
    if DATABASE not in archive:
        raise BackupError("it has no state: it is no backup of a controller")
    with _unpacked(archive) as there, contextlib.ExitStack() as cleanup:
        contents = _check_database(there[DATABASE], "in the backup")
        keys = _ledger(there[KEYS].parent, "in the backup") if KEYS in there else None
        targets = {name: target for name in there if (target := places.of(name)) is not None}
        occupied = [path for path in {*targets.values(), places.state / KEYS} if os.path.lexists(path)]
        if occupied and not force:
            raise BackupError(
                f"{', '.join(sorted(map(str, occupied)))} {'is' if len(occupied) == 1 else 'are'} there already, and "
                f"replaced with --force alone"
            )
        try:
            places.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            cleanup.enter_context(holding(places.state, alone=True))
            for folder in {target.parent for target in targets.values()}:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except BlockingIOError:
            raise BackupError(
                f"a controller uses the state in {places.state}, or stands by, or a backup is made: stop controller "
                f"and standby before you restore"
            ) from None
        except OSError as error:
            raise BackupError(f"cannot use {error.filename or places.state}: {error.strerror}") from None
        try:
            return contents, _install(there, targets, _next_ledger(keys, places.state))
        except OSError as error:
            raise BackupError(
                f"cannot write {error.filename}: {error.strerror}. Part of the backup may have been restored: mend "
                f"that, and restore it again with --force"
            ) from error


@contextlib.contextmanager
def _unpacked(archive: Archive) -> Iterator[dict[str, Path]]:
    """The files of an archive, for as long as the context: each in a folder of its own, under the name of `Places`."""
    with tempfile.TemporaryDirectory(prefix="wiresum-restore-") as folder:
        there = {}
        for index, name in enumerate(archive.manifest.digests):
            (Path(folder) / str(index)).mkdir()
            there[name] = Path(folder) / str(index) / Path(name).name
            try:
                archive.copy(name, there[name])
            except ArchiveError as error:
                raise BackupError(str(error)) from None
            except OSError as error:
                raise BackupError(
                    f"cannot unpack it in {folder}: {error.strerror}. TMPDIR names another place"
                ) from None
        yield there


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


def _install(there: Mapping[str, Path], targets: Mapping[str, Path], keys: Ledger | None) -> list[Path]:
    """Puts the files in their places, the ledger first: with the new ledger and the old database a controller would
    begin as after a crash."""
    state = targets[DATABASE].parent
    with contextlib.ExitStack() as cleanup:
        staged = {name: _stage(name, there[name], target, cleanup) for name, target in targets.items() if name != KEYS}
        if keys is not None:
            ledger.write(state, keys)
            _give(state / KEYS)
        else:
            (state / KEYS).unlink(missing_ok=True)
        for name in (f"{DATABASE}-wal", f"{DATABASE}-shm", LIFE_FILE_NAME):
            (state / name).unlink(missing_ok=True)
        for name, beside in staged.items():
            beside.replace(targets[name])
        for folder in dict.fromkeys(target.parent for target in targets.values()):
            _sync(folder)
    return list(targets.values())


def _stage(name: str, source: Path, target: Path, cleanup: contextlib.ExitStack) -> Path:
    """Copies a file beside its place, on disk; the copy goes in the end if it was not moved there."""
    beside = target.with_name(f".{target.name}.restored")
    beside.unlink(missing_ok=True)
    cleanup.callback(beside.unlink, missing_ok=True)
    folder_mode = target.parent.stat().st_mode
    # A folder for a group alone: its service is in the group.
    shared = 0o040 if folder_mode & 0o057 == 0o050 else 0
    mode = 0o644 if name in PUBLIC else 0o600 | shared
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.fchmod(descriptor, mode)  # whatever the umask is
    with source.open("rb") as content, os.fdopen(descriptor, "wb") as file:
        while block := content.read(1 << 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    _give(beside)
    return beside


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
