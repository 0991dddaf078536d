"""Revoked certificates: the list `ca.crl` in a service's TLS directory, which `wiresum ca revoke` makes.

gRPC for Python takes no such list, so a revoked certificate can still connect. Its calls are refused instead, and its
jobs, calls and connections end. A new list is read within a second. If the new list cannot be used, or is gone, the
former list stays in force. The time of a list's next update is ignored.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from pathlib import Path

from wiresum.join.credentials import AUTHORITY_FILE, REVOKED_FILE, CredentialsError
from wiresum.join.installation import how_to_install

log = logging.getLogger(__name__)

LIST_BYTES_MAX = 16 << 20
"""The largest list that is read: some 400,000 certificates."""
SERIALS_REMEMBERED = 4096
LOOK_S = 1.0
"""Time between two checks for a new list."""
TELL_S = 0.5
"""Time between telling workers why their jobs end, and the end of their calls and connections."""


class Revocations:
    """The revoked certificates that one service knows of. Used by one thread."""

    def __init__(self, tls: Path | None = None) -> None:
        """`tls`: the TLS directory; None: nothing is revoked. Raises `CredentialsError` for a list that cannot be
        used."""
        self._path = tls.expanduser() / REVOKED_FILE if tls else None
        self._signature = self._sign()
        self._serials = self._read() if self._signature else frozenset[str]()
        self._warned = ""
        """What was said of a list that cannot be used, which is said once."""

    def refresh(self) -> bool:
        """Reads the list if it was replaced. True if the list is a new one."""
        signature = self._sign()
        if signature == self._signature:
            return False
        try:
            self._serials = self._read()
        except CredentialsError as error:  # it is read again: whatever keeps it from being read may pass
            if str(error) != self._warned:
                log.warning("the list of revoked certificates in use stays: %s", error)
            self._warned = str(error)
            return False
        self._signature, self._warned = signature, ""
        log.info("%d certificates are revoked now", len(self._serials))
        return True

    async def watch(self, tell: Callable[[], None], end: Callable[[], None]) -> None:
        """Watches the list for ever. Calls `tell`, and `end` when the callers that were told have had time to hear:
        first for the present list, and then whenever the list has changed."""
        due = True
        while True:
            try:
                due = self.refresh() or due
                if due:
                    tell()
                    await asyncio.sleep(TELL_S)
                    end()
                    tell()  # those that were let in before their calls ended
                    due = False
            except Exception:  # the next list must still be seen
                log.exception("holders of revoked certificates could not be turned out; it is tried again")
            await asyncio.sleep(LOOK_S)

    def has(self, serial: str) -> bool:
        """True if the certificate is revoked; `serial` in the form of `serial_of`."""
        return serial in self._serials

    def _sign(self) -> tuple[int, int] | None:
        """A value that changes when the file is replaced. None: there is no file."""
        if self._path is None or not self._path.exists():
            return None
        status = self._path.stat()
        return status.st_mtime_ns, status.st_ino

    def _read(self) -> frozenset[str]:
        assert self._path is not None
        try:
            with self._path.open("rb") as file:
                content = file.read(LIST_BYTES_MAX)
            authorities = (self._path.parent / AUTHORITY_FILE).read_bytes()
        except OSError as error:
            raise CredentialsError(f"cannot read {error.filename}: {error.strerror}") from None
        return _serials_in(content, authorities, self._path)


def _serials_in(content: bytes, authorities: bytes, path: Path) -> frozenset[str]:
    try:
        from cryptography import x509
    except ImportError:
        raise CredentialsError(
            f"{path} lists revoked certificates, and to read it takes cryptography: {how_to_install('controller')}"
        ) from None
    try:
        revoked = x509.load_pem_x509_crl(content)
        keys = [certificate.public_key() for certificate in x509.load_pem_x509_certificates(authorities)]
        is_ours = any(revoked.is_signature_valid(key) for key in keys)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise CredentialsError(f"{path} is no list of revoked certificates in PEM: {error}") from None
    if not is_ours:
        raise CredentialsError(
            f"{path} was not signed by the authority in {path.parent / AUTHORITY_FILE}: copy the {REVOKED_FILE} that "
            f"`wiresum ca revoke` made there"
        )
    return frozenset(f"{certificate.serial_number:x}" for certificate in revoked)


def serial_of(certificate: bytes) -> str:
    """The serial number, hexadecimal, of a verified certificate in PEM. Empty without the library, and then there is no
    list of revoked certificates either."""
    return _serial_and_expiry(certificate)[0]


def expiry_of(certificate: bytes) -> float:
    """When a verified certificate in PEM expires, in Unix time. 0 without the library."""
    return _serial_and_expiry(certificate)[1]


@functools.lru_cache(maxsize=SERIALS_REMEMBERED)
def _serial_and_expiry(certificate: bytes) -> tuple[str, float]:
    try:
        from cryptography import x509
    except ImportError:
        return "", 0.0
    read = x509.load_pem_x509_certificate(certificate)
    return f"{read.serial_number:x}", read.not_valid_after_utc.timestamp()
