"""Reads a host's certificate from a folder, or from a tar archive on standard input: so a key can come over SSH and is
stored nowhere in between."""

from __future__ import annotations

import contextlib
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from wiresum.cli.setup.steps import SetupError
from wiresum.join.credentials import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    FILE_BYTES_MAX,
    KEY_FILE,
    Credentials,
    CredentialsError,
    load,
)

NAMES = (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)
STDIN = "-"
MEMBERS_MAX = 64
ROLE = "wiresum:role/"


def read(source: str, role: str, address: str) -> dict[str, bytes]:
    """The three files by name. Raises a `SetupError` if they do not belong together, or are not a certificate for this
    role and, if it is a server's, for this address. `source`: a folder, or - for standard input."""
    with _folder(source) as folder:
        try:
            loaded = load(folder, serving=bool(address))
        except CredentialsError as error:
            raise SetupError(str(error).replace(str(folder), "the archive" if source == STDIN else source)) from None
        check(loaded, role, address)
        return {name: (folder / name).read_bytes() for name in NAMES}


def check(loaded: Credentials, role: str, address: str) -> None:
    """Raises a `SetupError` if it is not for this role or address."""
    roles = [name.removeprefix(ROLE) for name in loaded.names if name.startswith(ROLE)]
    if role not in roles:
        raise SetupError(
            f"the certificate is a {' and '.join(roles) or 'nobody'}'s, and this host is to be a {role}: take "
            f"pki/{role}, or make one with `wiresum ca issue {role}`"
        )
    if address and address not in loaded.addresses:
        raise SetupError(
            f"the certificate is for {', '.join(loaded.addresses) or 'no address'}, and not for {address}, so nobody "
            f"would trust this host: `wiresum ca issue {role} --ca pki --name NAME --address {address} DIRECTORY`"
        )


@contextlib.contextmanager
def _folder(source: str) -> Iterator[Path]:
    if source != STDIN:
        yield Path(source).expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="wiresum-setup-") as made:  # only its owner can read it
        _unpack(Path(made))
        yield Path(made)


def _unpack(folder: Path) -> None:
    """Takes only the wanted files out of the archive, by name and size."""
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            for count, member in enumerate(archive):
                name = PurePosixPath(member.name).name
                if count >= MEMBERS_MAX:
                    raise SetupError(
                        f"the archive on standard input has over {MEMBERS_MAX} files: is it a TLS directory?"
                    )
                if name in NAMES and member.isfile() and member.size <= FILE_BYTES_MAX:
                    content = archive.extractfile(member)
                    assert content is not None, "it is a file"
                    (folder / name).touch(mode=0o600)
                    (folder / name).write_bytes(content.read())
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SetupError(f"what comes on standard input is no tar archive of a TLS directory: {error}") from None
