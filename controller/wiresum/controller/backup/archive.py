"""The form of a backup: a tar (ustar) of few files with known names, the first of which is the manifest.

    {"format": 1, "made_at": seconds of Unix time, "software_version": "...", "schema": of the database,
     "files": {"controller.sqlite3": {"bytes": ..., "sha256": "..."}, ...}}

An archive comes from anywhere, perhaps cut off, damaged or made to do harm. So it is read through once, and everything
in it checked, before anything is written: each header is that of a regular file with a name of `BYTES_MAX`, no name
comes twice, no file is larger than its bound, and the manifest lists exactly these files with these digests. Names are
compared, never used as paths. What is copied afterwards is checked again, since the file may have changed meanwhile.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from wiresum.controller.ledger import FILE_NAME as KEYS
from wiresum.controller.store import FILE_NAME as DATABASE
from wiresum.join.constants import STATE_SCHEMA

FORMAT = 1
MANIFEST = "manifest.json"
CONFIGURATION = "cluster.toml"
TLS = ("tls/ca.crt", "tls/tls.crt", "tls/tls.key", "tls/ca.crl")
PKI = ("pki/ca.crt", "pki/issued.jsonl", "pki/ca.crl")
AUTHORITY_KEY = "pki/ca.key"
_MIB = 1 << 20
BYTES_MAX: Mapping[str, int] = {
    DATABASE: 1024 * _MIB,
    KEYS: 4096,
    CONFIGURATION: _MIB,
    **dict.fromkeys((*TLS, *PKI, AUTHORITY_KEY), 64 * _MIB),
}
"""All files that a backup may have, and the most bytes of each."""
MANIFEST_BYTES_MAX = 64 * 1024
END_BYTES_MAX = tarfile.RECORDSIZE + tarfile.BLOCKSIZE
"""The most zeros behind the last file."""
_COPY_BYTES = _MIB


class ArchiveError(ValueError):
    """Raised for an archive that cannot be used: a clause that says what is wrong."""


@dataclass(frozen=True)
class Manifest:
    made_at: float
    software_version: str
    schema: int
    digests: dict[str, tuple[int, str]]
    """Bytes and SHA-256 of each file."""


def write(path: Path, files: Mapping[str, Path], *, made_at: float, software_version: str) -> int:
    """Makes the archive, on disk when this returns, and readable by its owner alone. Returns its number of bytes.
    Raises `ArchiveError`, or `OSError`, also if the file exists already; then nothing is left behind."""
    digests = {name: _digest(source) for name, source in files.items()}
    if large := [name for name, (size, _) in digests.items() if size > BYTES_MAX[name]]:
        raise ArchiveError(f"{large[0]} is too large, with over {BYTES_MAX[large[0]]} bytes")
    about = {
        "format": FORMAT,
        "made_at": made_at,
        "software_version": software_version,
        "schema": STATE_SCHEMA,
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in digests.items()},
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
                manifest = json.dumps(about, indent=1).encode()
                archive.addfile(_header(MANIFEST, len(manifest), made_at), io.BytesIO(manifest))
                for name, source in files.items():
                    with source.open("rb") as content:
                        archive.addfile(_header(name, digests[name][0], made_at), content)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.link(beside, path)  # unlike a rename, a link replaces nothing
    finally:
        beside.unlink(missing_ok=True)
    return size


class Archive:
    """An archive that was checked."""

    def __init__(self, file: BinaryIO) -> None:
        """Reads the whole file. Raises `ArchiveError` or `OSError`."""
        self._file = file
        self._places: dict[str, tuple[int, int]] = {}
        """Where each file begins, and how many bytes it has."""
        found: dict[str, tuple[int, str]] = {}
        file.seek(0)
        if (first := self._next({MANIFEST: MANIFEST_BYTES_MAX})) != MANIFEST:
            raise ArchiveError("it is no backup of a controller: it has no manifest")
        found[first] = self._pass()
        while name := self._next(BYTES_MAX):
            found[name] = self._pass()
        del found[MANIFEST]
        self.manifest = _manifest(self._content(MANIFEST))
        if self.manifest.digests.keys() != found.keys():
            raise ArchiveError("it has other files than its manifest lists")
        if self.manifest.schema != STATE_SCHEMA:
            raise ArchiveError(
                f"another release of wiresum made it ({self.manifest.software_version!r:.60}, schema "
                f"{self.manifest.schema}; this one knows {STATE_SCHEMA}): restore it with that release, and upgrade "
                f"then"
            )
        if wrong := sorted(name for name in found if found[name] != self.manifest.digests[name]):
            raise ArchiveError(f"it is damaged: {wrong[0]} has not the digest that its manifest has")

    def __contains__(self, name: str) -> bool:
        return name in self.manifest.digests

    def read(self, name: str) -> bytes:
        """The content of a small file. Raises `ArchiveError` or `OSError`."""
        content = self._content(name)
        if hashlib.sha256(content).hexdigest() != self.manifest.digests[name][1]:
            raise ArchiveError("it has changed while it was read")
        return content

    def copy(self, name: str, to: Path) -> None:
        """Copies a file to a new file that its owner alone may read. Raises `ArchiveError` or `OSError`."""
        begin, left = self._places[name]
        self._file.seek(begin)
        digest = hashlib.sha256()
        with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            while left and (content := self._file.read(min(left, _COPY_BYTES))):
                digest.update(content)
                target.write(content)
                left -= len(content)
        if left or digest.hexdigest() != self.manifest.digests[name][1]:
            raise ArchiveError("it has changed while it was read")

    def _next(self, bytes_max: Mapping[str, int]) -> str:
        """The name in the next header; empty at the end of the archive."""
        block = self._file.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise ArchiveError("it is cut off")
        if not any(block):
            rest = self._file.read(END_BYTES_MAX)
            if any(rest) or len(rest) == END_BYTES_MAX:
                raise ArchiveError("there is something behind its end")
            if len(rest) < tarfile.BLOCKSIZE:
                raise ArchiveError("it is cut off")
            return ""
        try:
            header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise ArchiveError(f"it is no tar archive, or is damaged ({error})") from None
        if header.name not in bytes_max or header.name in self._places:
            raise ArchiveError(f"it is no backup of a controller: {header.name[:100]!r} does not belong in one")
        if header.type != tarfile.REGTYPE:
            raise ArchiveError(f"its {header.name} is no regular file")
        if not 0 <= header.size <= bytes_max[header.name]:
            raise ArchiveError(f"its {header.name} is too large")
        self._places[header.name] = self._file.tell(), header.size
        return header.name

    def _pass(self) -> tuple[int, str]:
        """Reads past the newest file. Returns its number of bytes and their digest."""
        _, size = list(self._places.values())[-1]
        digest, left = hashlib.sha256(), size
        while left:
            content = self._file.read(min(left, _COPY_BYTES))
            if not content:
                raise ArchiveError("it is cut off")
            digest.update(content)
            left -= len(content)
        padding = -size % tarfile.BLOCKSIZE
        if self._file.read(padding) != bytes(padding):
            raise ArchiveError("it is cut off, or damaged between two files")
        return size, digest.hexdigest()

    def _content(self, name: str) -> bytes:
        begin, size = self._places[name]
        self._file.seek(begin)
        return self._file.read(size)


def _manifest(content: bytes) -> Manifest:
    try:
        about: dict[str, Any] = json.loads(content)
        if about["format"] != FORMAT:
            raise ArchiveError(
                f"another release of wiresum made it (format {about['format']!r}; this one knows {FORMAT}): restore it "
                f"with that release"
            )
        return Manifest(
            made_at=float(about["made_at"]),
            software_version=str(about["software_version"]),
            schema=int(about["schema"]),
            digests={name: (int(file["bytes"]), str(file["sha256"])) for name, file in about["files"].items()},
        )
    except ArchiveError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ArchiveError(f"its manifest makes no sense ({error!r:.100})") from None


def _header(name: str, size: int, made_at: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o600, int(made_at)
    return header


def _digest(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while content := file.read(_COPY_BYTES):
            digest.update(content)
            size += len(content)
    return size, digest.hexdigest()
