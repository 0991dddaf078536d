"""The form of a backup: a tar (ustar) of few files with known names, one of which is the manifest.

    {"format": 1, "made_at": seconds of Unix time, "software_version": "...", "schema": of the database,
     "files": {"controller.sqlite3": {"bytes": ..., "sha256": "..."}, ...}}

An archive comes from anywhere, perhaps cut off, damaged or made to do harm. So it is unpacked into a folder of its
own, and everything in it checked, before anything is restored: each header is that of a regular file with a name of
`BYTES_MAX`, no name comes twice, no file is larger than its bound, and the manifest lists exactly these files with
these digests. Names are compared before they are used as paths.
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
BYTES_MAX: Mapping[str, int] = {MANIFEST: 64 << 10, DATABASE: 1 << 30, KEYS: 4 << 10}
"""All files that a backup may have, and the most bytes of each."""
END_BYTES_MAX = tarfile.RECORDSIZE + tarfile.BLOCKSIZE
"""The most zeros behind the last file."""
_COPY_BYTES = 1 << 20


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


def unpack(file: BinaryIO, folder: Path) -> Manifest:
    """Unpacks an archive into an empty folder, each file in a folder of its own name, and checks all of it. Raises
    `ArchiveError` or `OSError`."""
    found: dict[str, tuple[int, str]] = {}
    while header := _next_header(file):
        if header.name not in BYTES_MAX or header.name in found:
            raise ArchiveError(f"it is no backup of a controller: {header.name[:100]!r} does not belong in one")
        if header.type != tarfile.REGTYPE:
            raise ArchiveError(f"its {header.name} is no regular file")
        if not 0 <= header.size <= BYTES_MAX[header.name]:
            raise ArchiveError(f"its {header.name} is too large")
        (folder / header.name).mkdir()
        found[header.name] = header.size, _unpack_next(file, header.size, folder / header.name / header.name)
    if found.pop(MANIFEST, None) is None:
        raise ArchiveError("it is no backup of a controller: it has no manifest")
    manifest = _manifest((folder / MANIFEST / MANIFEST).read_bytes())
    if manifest.digests.keys() != found.keys():
        raise ArchiveError("it has other files than its manifest lists")
    if manifest.schema != STATE_SCHEMA:
        raise ArchiveError(
            f"another release of wiresum made it ({manifest.software_version!r:.60}, schema {manifest.schema}; this "
            f"one knows {STATE_SCHEMA}): restore it with that release, and upgrade then"
        )
    if wrong := sorted(name for name in found if found[name] != manifest.digests[name]):
        raise ArchiveError(f"it is damaged: {wrong[0]} has not the digest that its manifest has")
    return manifest


def _next_header(file: BinaryIO) -> tarfile.TarInfo | None:
    """The next header; None at the end of the archive."""
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise ArchiveError("it is cut off")
    if not any(block):
        rest = file.read(END_BYTES_MAX)
        if any(rest) or len(rest) == END_BYTES_MAX:
            raise ArchiveError("there is something behind its end")
        if len(rest) < tarfile.BLOCKSIZE:
            raise ArchiveError("it is cut off")
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.TarError, ValueError) as error:
        raise ArchiveError(f"it is no tar archive, or is damaged ({error})") from None


def _unpack_next(file: BinaryIO, size: int, to: Path) -> str:
    """Copies the file behind a header to a new file. Returns its digest."""
    digest, left = hashlib.sha256(), size
    with to.open("xb") as target:
        while left:
            content = file.read(min(left, _COPY_BYTES))
            if not content:
                raise ArchiveError("it is cut off")
            digest.update(content)
            target.write(content)
            left -= len(content)
    padding = -size % tarfile.BLOCKSIZE
    if file.read(padding) != bytes(padding):
        raise ArchiveError("it is cut off, or damaged between two files")
    return digest.hexdigest()


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
