"""What is believed of an archive: nothing that was not checked."""

from __future__ import annotations

import hashlib
import io
import json
import random
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from wiresum.controller.backup.archive import BYTES_MAX, MANIFEST, ArchiveError, unpack
from wiresum_lab.doubles.stored_state import StoredState

DATABASE, KEYS = "controller.sqlite3", "controller.keys"


@pytest.fixture
def contents(site: StoredState) -> dict[str, bytes]:
    """Of a good backup."""
    assert site.run("backup")[0] == 0
    with tarfile.open(site.archive) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def pack(to: Path, files: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda _header: None) -> None:
    with tarfile.open(to, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            change(header)
            archive.addfile(header, io.BytesIO(content))


def signed(files: dict[str, bytes], /, **about: Any) -> dict[str, bytes]:
    """With a manifest that fits, as somebody makes it who means harm."""
    rest = {name: content for name, content in files.items() if name != MANIFEST}
    listed = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in rest.items()
    }
    manifest = {**json.loads(files[MANIFEST]), "files": listed, **about}
    return {MANIFEST: json.dumps(manifest).encode(), **rest}


def refused(site: StoredState) -> str:
    before = site.everything()
    code, said = site.run("restore", "--force")
    assert code == 1, said
    assert said.startswith(f"Error: {site.archive} was not restored: ") or "is whole" in said.splitlines()[0]
    assert site.everything() == before, "nothing was written"
    assert not (site.folder.parent / "evil").exists()
    return said


NAMES = (
    "../evil",
    "/tmp/wiresum-evil",
    "state/../../evil",
    "evil",
    "state/",
    f"./{DATABASE}",
    f"{KEYS}/x",
    f"{KEYS} ",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_does_not_belong_there_is_refused(site: StoredState, contents: dict[str, bytes], name: str) -> None:
    pack(site.archive, signed({**contents, name: b"evil"}))
    assert "does not belong in one" in refused(site)


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"L", b"x", b"g", b"S"],
)
def test_what_is_no_regular_file_is_refused(site: StoredState, contents: dict[str, bytes], kind: bytes) -> None:
    def link(header: tarfile.TarInfo) -> None:
        if header.name == KEYS:
            header.type, header.linkname = kind, "/etc/passwd"

    pack(site.archive, signed(contents), link)
    assert "is no regular file" in refused(site)


def test_a_name_that_comes_twice_is_refused(site: StoredState, contents: dict[str, bytes]) -> None:
    with tarfile.open(site.archive, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in [*signed(contents).items(), (KEYS, contents[KEYS])]:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    assert "does not belong in one" in refused(site)


@pytest.mark.parametrize("size", [BYTES_MAX[KEYS] + 1, 1 << 62, -1])
def test_a_file_that_claims_to_be_huge_is_refused(site: StoredState, contents: dict[str, bytes], size: int) -> None:
    header = tarfile.TarInfo(KEYS)
    header.size = size
    manifest = tarfile.TarInfo(MANIFEST)
    manifest.size = len(contents[MANIFEST])
    packed = manifest.tobuf() + contents[MANIFEST] + bytes(-manifest.size % 512) + header.tobuf(tarfile.GNU_FORMAT)
    site.archive.write_bytes(packed + bytes(4096))
    assert "is too large" in refused(site)


def test_a_wrong_digest_is_refused(site: StoredState, contents: dict[str, bytes]) -> None:
    pack(site.archive, {**contents, KEYS: contents[KEYS].replace(b"reserved 64", b"reserved 65")})
    assert f"it is damaged: {KEYS} has not the digest that its manifest has" in refused(site)


def test_files_and_manifest_must_be_the_same(site: StoredState, contents: dict[str, bytes]) -> None:
    pack(site.archive, {name: content for name, content in contents.items() if name != KEYS})
    assert "other files than its manifest lists" in refused(site)
    pack(site.archive, {name: content for name, content in contents.items() if name != MANIFEST})
    assert "it has no manifest" in refused(site)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"format": 2}, "another release of wiresum made it (format 2; this one knows 1)"),
        ({"schema": 99}, "schema 99; this one knows"),
        ({"schema": "\x1b[31m"}, "its manifest makes no sense"),
        ({"files": []}, "its manifest makes no sense"),
        ({"made_at": None}, "its manifest makes no sense"),
        ({"schema": 1e999}, "its manifest makes no sense"),
    ],
)
def test_a_manifest_of_another_release_or_without_sense_is_refused(
    site: StoredState, contents: dict[str, bytes], about: dict[str, Any], said: str
) -> None:
    pack(site.archive, signed(contents, **about))
    assert said in refused(site)


def test_a_manifest_that_is_nested_deeply_is_refused(site: StoredState, contents: dict[str, bytes]) -> None:
    pack(site.archive, {**contents, MANIFEST: b"[" * 60_000})
    assert "its manifest makes no sense" in refused(site)


def test_what_a_manifest_says_cannot_colour_the_terminal(site: StoredState, contents: dict[str, bytes]) -> None:
    pack(site.archive, signed(contents, schema=99, software_version="\x1b[31m" + 999 * "v"))
    assert "\x1b" not in refused(site)


def database(contents: dict[str, bytes], folder: Path, *statements: str) -> bytes:
    path = folder / "made.sqlite3"
    path.write_bytes(contents[DATABASE])
    with sqlite3.connect(path, isolation_level=None) as made:
        for statement in statements:
            made.execute(statement)
    made.close()
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["CREATE TRIGGER evil AFTER INSERT ON jobs BEGIN DELETE FROM jobs; END"], "other tables than a controller's"),
        (
            ["DROP TABLE ended", "CREATE VIEW ended AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) "
             "SELECT x AS sequence, x AS body FROM c"],
            "other tables than a controller's",
        ),
        (["DROP TABLE draining"], "other tables than a controller's"),
        (["CREATE TABLE later (a, b GENERATED ALWAYS AS (zeroblob(a)))"], "other tables than a controller's"),
        (["CREATE TABLE later (a)"], "other tables than a controller's"),
        (["CREATE VIRTUAL TABLE later USING fts5(a)"], "other tables than a controller's"),
        (["PRAGMA user_version = 3"], "was written by another release"),
        (["PRAGMA application_id = 1"], "is another program's file"),
        (["UPDATE epoch SET number = 9223372036854775807"], "its counts make no sense"),
        (["UPDATE epoch SET number = 'many'"], "its counts make no sense"),
        (["DELETE FROM epoch"], "cannot be used"),
    ],
)  # fmt: skip
def test_a_database_that_no_controller_made_is_refused(
    site: StoredState, contents: dict[str, bytes], statements: list[str], said: str
) -> None:
    pack(site.archive, signed({**contents, DATABASE: database(contents, site.folder, *statements)}))
    assert said in refused(site)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", bytes(8192)])
def test_what_is_no_database_is_refused(site: StoredState, contents: dict[str, bytes], content: bytes) -> None:
    pack(site.archive, signed({**contents, DATABASE: content}))
    assert "the database in the backup" in refused(site)


@pytest.mark.parametrize("line", [b"epoch 9999999999999999999", b"epoch -1", b"reserved 9999999999"])
def test_keys_that_make_no_sense_are_refused(site: StoredState, contents: dict[str, bytes], line: bytes) -> None:
    body = contents[KEYS].partition(b"sha256")[0].splitlines()
    changed = [line if each.split()[0] == line.split()[0] else each for each in body]
    text = b"\n".join(changed) + b"\n"
    pack(
        site.archive, signed({**contents, KEYS: text + b"sha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"})
    )
    assert "the keys in the backup cannot be used" in refused(site)


def test_a_truncated_archive_is_refused_wherever_it_ends(site: StoredState, contents: dict[str, bytes]) -> None:
    whole = site.archive.read_bytes()
    assert len(contents) == 3
    end = len(whole.rstrip(b"\0"))
    for length in {0, 1, 511, 512, 513, *range(1024, end, 4096), end - 1}:
        site.archive.write_bytes(whole[:length])
        with site.archive.open("rb") as file, TemporaryDirectory() as folder, pytest.raises(ArchiveError):
            unpack(file, Path(folder))
    site.archive.write_bytes(whole[: end // 2])
    assert "it is cut off" in refused(site)
    site.archive.write_bytes(whole + b"more")
    assert "something behind its end" in refused(site)


def test_whatever_bytes_change_an_archive_is_refused_or_says_the_same(
    site: StoredState, contents: dict[str, bytes]
) -> None:
    """Bytes that are flipped, removed, inserted and copied within it; the seed is in the failure."""
    whole = site.archive.read_bytes()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    places = [0, *(at for at in range(0, len(whole), 512) if whole[at : at + 512].strip(b"\0"))]
    there = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if name != MANIFEST}
    refusals = 0
    for _ in range(1500):
        changed = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3))):
            at = min(chance.choice(places) + chance.randrange(520), len(changed) - 1)
            match chance.randrange(5):
                case 0:
                    changed[at] ^= 1 << chance.randrange(8)
                case 1:
                    changed[at] = chance.choice(b"\0\xff\x80 0179-/.LSx")
                case 2:
                    del changed[at : at + chance.choice((1, 512, 1024))]
                case 3:
                    changed[at:at] = chance.randbytes(chance.choice((1, 512)))
                case _:
                    source = chance.choice(places)
                    changed[at : at + 512] = changed[source : source + 512]
        try:
            with TemporaryDirectory() as folder:
                for name in unpack(io.BytesIO(changed), Path(folder)).digests:
                    copied = (Path(folder) / name / name).read_bytes()
                    assert hashlib.sha256(copied).hexdigest() == there[name], f"seed {seed}"
        except ArchiveError:
            refusals += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
    assert refusals > 1000, f"seed {seed}"
