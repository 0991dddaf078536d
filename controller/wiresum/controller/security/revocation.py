"""Revoked certificates: the list `ca.crl` in a service's TLS directory, which `wiresum ca revoke` makes.

gRPC for Python takes no such list, so a revoked certificate can still connect. Its calls are refused instead, and its
jobs end. A new list is read within a second. One that cannot be used, or is gone, leaves the one before in force. The
time of its next update is ignored.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from wiresum.join.credentials import AUTHORITY_FILE, REVOKED_FILE, CredentialsError
from wiresum.join.installation import how_to_install

log = logging.getLogger(__name__)

LIST_BYTES_MAX = 16 << 20
"""Some 400,000 certificates."""
SERIALS_REMEMBERED = 4096


class Revocations:
    """Of one service. Used by one thread."""

    def __init__(self, tls: Path | None = None) -> None:
        """Without a TLS directory nothing is revoked. Raises `CredentialsError` for a list that cannot be used."""
        self._path = tls.expanduser() / REVOKED_FILE if tls else None
        self._signature = self._sign()
        self._serials = self._read() if self._signature else frozenset[str]()
        self._told = False

    def refresh(self) -> bool:
        """Reads the list if it was replaced. Is there anything new since the last call?"""
        signature, told = self._sign(), self._told
        self._told = True
        if signature == self._signature:
            return not told
        self._signature = signature
        try:
            self._serials = self._read()
        except CredentialsError as error:
            log.warning("the list of revoked certificates in use stays: %s", error)
            return not told
        log.info("%d certificates are revoked now", len(self._serials))
        return True

    def has(self, serial: str) -> bool:
        """`serial` as `serial_of` gives it."""
        return serial in self._serials

    def _sign(self) -> tuple[int, int] | None:
        """Changes when the file is replaced. None: there is none."""
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


@functools.lru_cache(maxsize=SERIALS_REMEMBERED)
def serial_of(certificate: bytes) -> str:
    """The serial number, hexadecimal, of a verified certificate in PEM. Empty without the library, and then there is no
    list either."""
    try:
        from cryptography import x509
    except ImportError:
        return ""
    return f"{x509.load_pem_x509_certificate(certificate).serial_number:x}"
