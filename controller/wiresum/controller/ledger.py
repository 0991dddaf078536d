"""What a controller must never forget, in a file of its own beside the database: the epoch, the secret of the keys, and
how many of them are reserved.

SQLite is no place for these. After a crash it takes what its write-ahead log holds up to the first frame with a wrong
checksum, and says nothing of the frames behind that: a log that was cut, or in which one bit changed, is a state of the
past that looks like any other. With jobs that is bearable (jobs.py ends those that the switches do not hold), and with
keys it is not: one that comes again finds in a cell what the last job with it left there.

So here is a text of few lines with a checksum over all of them, replaced as a whole: written beside, synced, renamed,
and the folder synced, before anything in it is used. What is read is what was written, or is known to be damaged. A
file that is gone or damaged is no state to go on from: then there is a new secret, so all keys are new, and each
switch, which knows by its pipeline's cookie whose keys its cells hold, is loaded anew.

An old copy of the file cannot be told from the file. The switches tell (keys.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from wiresum.controller.jobs.keys import SECRET_BYTES

FILE_NAME = "controller.keys"
VERSION = 1
EPOCH_STEP_BITS = 32
"""An epoch is larger than the one before by a random number of so many bits: two controllers that begin from copies of
one file have different ones. An election id has room for 2^31 of them at least."""
_FORM = re.compile(
    r"wiresum keys (?P<version>\d+)\nsecret (?P<secret>[0-9a-f]{32})\nepoch (?P<epoch>\d{1,19})\n"
    r"reserved (?P<reserved>\d{1,10})\n"
)
_DIGEST_LINE = re.compile(r"sha256 ([0-9a-f]{64})\n")


class LedgerError(ValueError):
    """What is in the file is not what a controller wrote there: a phrase."""


class ForeignLedgerError(RuntimeError):
    """Another release wrote the file: a phrase."""


@dataclass(frozen=True)
class Ledger:
    secret: bytes = field(repr=False)
    epoch: int = 0
    """Of the controller that began last; 0: none has."""
    reserved: int = 0
    """So many keys, from the first, may have been used."""

    @classmethod
    def draw(cls) -> Ledger:
        """One with keys that nobody had before."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    def with_next_epoch(self, above: int) -> Ledger:
        """`above`: another epoch that is known."""
        return replace(self, epoch=max(self.epoch, above) + 1 + secrets.randbits(EPOCH_STEP_BITS))


def read(folder: Path) -> Ledger | None:
    """None: there is none. Raises `OSError`, `LedgerError` or `ForeignLedgerError`."""
    try:
        text = (folder / FILE_NAME).read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    body, digest = text[: -len("sha256 \n") - 64], _DIGEST_LINE.fullmatch(text[-len("sha256 \n") - 64 :])
    if digest is None or digest[1] != _digest(body):
        raise LedgerError("its checksum is wrong")
    found = _FORM.fullmatch(body)
    if found is None or int(found["version"]) != VERSION:
        raise ForeignLedgerError(f"it has another form than version {VERSION}")
    return Ledger(bytes.fromhex(found["secret"]), int(found["epoch"]), int(found["reserved"]))


def write(folder: Path, ledger: Ledger) -> None:
    """It is on the disk when this returns. Raises `OSError`, and then the file holds this or what it held before."""
    body = f"wiresum keys {VERSION}\nsecret {ledger.secret.hex()}\nepoch {ledger.epoch}\nreserved {ledger.reserved}\n"
    beside = folder / f"{FILE_NAME}.new"
    beside.touch(mode=0o600)
    with beside.open("w") as file:
        file.write(f"{body}sha256 {_digest(body)}\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / FILE_NAME)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
