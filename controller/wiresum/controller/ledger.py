"""What a controller must never forget, in a file beside the database: the epoch, the secret of the keys, and how many
keys are reserved.

SQLite is not safe enough for these values. After a crash it silently ignores its write-ahead log from the first frame
with a wrong checksum on, and so returns to a past state. With jobs that is bearable (jobs.py ends the jobs that the
switches do not hold). A key that is used again would find in a cell what the last job with this key left there.

So the file is a short text with a checksum, replaced as a whole: written to a new file, synced, renamed, and the folder
synced, before any of its values is used. If the file is gone or damaged, a new secret makes all keys new, and every
switch is loaded anew, since its pipeline's cookie says whose keys its cells hold. An old copy looks like the current
file; only the switches notice the difference (keys.py).
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
"""Bits of the random number by which an epoch exceeds the former one, so that controllers that begin from copies of one
file differ. An election id has room for 2^31 such steps."""
_FORM = re.compile(
    r"wiresum keys (?P<version>\d+)\nsecret (?P<secret>[0-9a-f]{32})\nepoch (?P<epoch>\d{1,19})\n"
    r"reserved (?P<reserved>\d{1,10})\n"
)
_DIGEST_LINE = re.compile(r"sha256 ([0-9a-f]{64})\n")


class LedgerError(ValueError):
    """Raised for a damaged file; the text is a phrase."""


class ForeignLedgerError(RuntimeError):
    """Raised for a file of another release; the text is a phrase."""


@dataclass(frozen=True)
class Ledger:
    secret: bytes = field(repr=False)
    epoch: int = 0
    """Epoch of the newest controller; 0: none has begun."""
    reserved: int = 0
    """How many keys, from the first, may have been used."""

    @classmethod
    def draw(cls) -> Ledger:
        """Returns a ledger with a new secret."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    def with_next_epoch(self, above: int) -> Ledger:
        """This ledger with an epoch above its own and above `above`, another known epoch."""
        return replace(self, epoch=max(self.epoch, above) + 1 + secrets.randbits(EPOCH_STEP_BITS))


def read(folder: Path) -> Ledger | None:
    """Reads the ledger; None: there is none. Raises `OSError`, `LedgerError` or `ForeignLedgerError`."""
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
    """Writes the ledger, on disk when this returns. Raises `OSError`; then the file has the new content or still the
    old one."""
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
