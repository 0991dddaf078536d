"""Certificates that hold no more, although they have not expired: the list `ca.crl`, which the authority has signed, in
the TLS directory of a service. `wiresum ca revoke` makes it.

gRPC for Python takes no such list into its handshakes, so whoever was revoked can still connect. He is found out at
every call instead, and the memberships that he has are ended.

A list that is replaced is read within a second. One that cannot be used, or is gone, leaves the one before in force.
When the next list is due, which a list says too, does not matter: this one is not fetched from anywhere, but put here.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from wiresum.join.credentials import AUTHORITY_FILE, REVOKED_FILE, CredentialsError

log = logging.getLogger(__name__)

LIST_BYTES_MAX = 16 << 20
"""That is some 400,000 certificates."""
SERIALS_REMEMBERED = 4096


class Revocations:
    """Of one service. Used by one thread."""

    def __init__(self, tls: Path | None = None) -> None:
        """Without a TLS directory nothing is revoked. Raises `CredentialsError` if there is a list, but of no use."""
        self._directory = tls.expanduser() if tls else None
        self._signature = self._sign()
        self._serials = self._read() if self._signature else frozenset[str]()
        self._told = False

    def refresh(self) -> bool:
        """Reads the list anew if it was replaced. Is there anything new, since this was last asked?"""
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

    @property
    def _path(self) -> Path:
        assert self._directory is not None
        return self._directory / REVOKED_FILE

    def _sign(self) -> tuple[int, int] | None:
        """Changes when the file is replaced. None: there is none."""
        if self._directory is None:
            return None
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino

    def _read(self) -> frozenset[str]:
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
            f"{path} lists revoked certificates, and to read it takes cryptography: pip install 'wiresum[controller]'"
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
    """Of a certificate in PEM that TLS has verified: its serial number, hexadecimal. Empty where it cannot be read, for
    want of the library: there no list is in force either."""
    try:
        from cryptography import x509
    except ImportError:
        return ""
    return f"{x509.load_pem_x509_certificate(certificate).serial_number:x}"
