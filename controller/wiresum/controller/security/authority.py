"""A cluster's own certificate authority. ECDSA on P-256, which every TLS library has.

A certificate's alternative names say what its holder may do (`names`) and where the holder may be (IP addresses, DNS
names). Only controllers, switches and hosts of fallback switches get server certificates. Renewal makes a new key in
the same directory, with the same names. Services learn of revoked certificates by a list (X.509 CRL).

Files are replaced as a whole, only their owner can read keys, and no key of another holder is overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wiresum.controller.security.names import FALLBACK, ROLES, SCHEME, SERVING_ROLES, Claims, parse
from wiresum.join.credentials import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE

AUTHORITY_KEY_FILE = "ca.key"
ISSUED_FILE = "issued.jsonl"
"""The file with a line for each certificate that the authority signed."""

AUTHORITY_DAYS = 3650
DAYS_DEFAULT = {"controller": 365, "switch": 365, "operator": 365, "worker": 90}
DAYS_MAX = 825
"""The longest validity that TLS libraries accept."""
CLOCK_SKEW = timedelta(minutes=5)
"""How far in the past the validity of a certificate begins, since clocks differ."""
COMMON_NAME_CHARACTERS_MAX = 64

T = TypeVar("T")


class AuthorityError(ValueError):
    """Raised for files that cannot be used. The text names the file, and says what to do."""


@dataclass(frozen=True)
class Holder:
    """The holder of a certificate."""

    name: str
    claims: Claims
    addresses: tuple[str, ...] = ()
    """Addresses where a server is reached; for a worker, where its data sockets may be besides its connection's
    address."""
    dns_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A certificate on disk."""

    holder: Holder
    serial: str
    begins_at: datetime
    expires_at: datetime
    signed_by: str
    path: Path = field(default_factory=Path)


@dataclass(frozen=True)
class Issued:
    """A certificate that was signed."""

    serial: str
    """The serial, hexadecimal."""
    name: str
    expires_at: datetime


class Authority:
    """An authority with its key. Use `create` or `open` to make one."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, directory: Path, name: str) -> Authority:
        """Makes a new authority. Raises `AuthorityError` if the directory has one already."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        certificate = (
            _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _make_private_directory(directory)
        _write_new(directory / AUTHORITY_KEY_FILE, _key_pem(key), 0o600)
        _write_new(directory / AUTHORITY_FILE, _pem(certificate), 0o644)
        return cls(directory, certificate, key)

    @classmethod
    def open(cls, directory: Path) -> Authority:
        key_path = directory / AUTHORITY_KEY_FILE
        certificate = _read_certificate(directory / AUTHORITY_FILE)
        try:
            key = serialization.load_pem_private_key(_read(key_path), password=None)
        except (ValueError, TypeError) as error:
            raise AuthorityError(f"{key_path} is no private key without a password: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise AuthorityError(f"{key_path} is not the key of {directory / AUTHORITY_FILE}")
        if certificate.not_valid_after_utc <= datetime.now(timezone.utc):
            raise AuthorityError(f"{directory / AUTHORITY_FILE} has expired: make another with `wiresum ca init`")
        return cls(directory, certificate, key)

    def issue(self, holder: Holder, directory: Path, days: int) -> Shown:
        """Makes a TLS directory. Raises `AuthorityError`, also if the directory has a key already."""
        if (directory / KEY_FILE).exists():
            raise AuthorityError(
                f"{directory / KEY_FILE} exists, and is not written over: name another directory, or renew what is "
                f"there with `wiresum ca renew {directory}`"
            )
        return self._write(holder, directory, days)

    def renew(self, directory: Path, days: int | None = None) -> Shown:
        """Makes a new key and certificate for the holder. Without `days`, it is valid for as long as the former one."""
        before = show(directory / CERTIFICATE_FILE)
        self._check_ours(directory, before)
        return self._write(before.holder, directory, days or max(1, (before.expires_at - before.begins_at).days))

    def issued(self, what: str) -> list[Issued]:
        """Finds certificates by the holder's name, by serial, or in a TLS directory."""
        if (Path(what) / CERTIFICATE_FILE).is_file():
            shown = show(Path(what) / CERTIFICATE_FILE)
            self._check_ours(Path(what), shown)
            return [Issued(shown.serial, shown.holder.name, shown.expires_at)]
        path = self.directory / ISSUED_FILE
        lines = _read(path).decode().splitlines() if path.exists() else []
        try:
            found = [json.loads(line) for line in lines]
            return [
                Issued(line["serial"], line["name"], datetime.fromisoformat(line["expires"]))
                for line in found
                if what in (line["name"], line["serial"])
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise AuthorityError(f"{path} has a line that makes no sense ({error!r}): mend it by hand") from None

    def revoke(self, certificates: Iterable[Issued]) -> int:
        """Adds certificates to the list. Returns how many are on the list now. Raises `AuthorityError`."""
        now = datetime.now(timezone.utc)
        path = self.directory / REVOKED_FILE
        before = _parsed(path, x509.load_pem_x509_crl, "list of revoked certificates") if path.exists() else None
        if before is not None and not before.is_signature_valid(self._key.public_key()):
            raise AuthorityError(f"{path} is another authority's: move it away")
        revoked = {} if before is None else {entry.serial_number: entry for entry in before}
        for certificate in certificates:
            serial = int(certificate.serial, 16)
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            revoked.setdefault(serial, entry)
        number = 1 + (before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number if before else 0)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now)
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for entry in revoked.values():
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self._key, hashes.SHA256())
        _replace(path, signed.public_bytes(serialization.Encoding.PEM), 0o644)
        return len(revoked)

    def _write(self, holder: Holder, directory: Path, days: int) -> Shown:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(holder, key, days)
        _make_private_directory(directory)
        shown = _shown(certificate, directory / CERTIFICATE_FILE)
        self._record(shown)  # first: a certificate that is not listed could not be revoked by its name
        # The key last: until it fits the certificate, servers keep the old pair.
        _replace(directory / AUTHORITY_FILE, _pem(self._certificate), 0o644)
        revoked = self.directory / REVOKED_FILE
        if holder.claims.roles & SERVING_ROLES and revoked.exists():
            _replace(directory / REVOKED_FILE, _read(revoked), 0o644)
        _replace(directory / CERTIFICATE_FILE, _pem(certificate), 0o644)
        _replace(directory / KEY_FILE, _key_pem(key), 0o600)
        return shown

    def _sign(self, holder: Holder, key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
        if not 1 <= days <= DAYS_MAX:
            raise AuthorityError(f"a certificate can hold for 1 to {DAYS_MAX} days, not {days}")
        _check(holder)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if holder.claims.roles & SERVING_ROLES:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _builder(_subject(holder.name), self._certificate.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(_alternative_names(holder)), critical=False)
            .add_extension(own, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _check_ours(self, directory: Path, shown: Shown) -> None:
        try:
            _read_certificate(directory / CERTIFICATE_FILE).verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            raise AuthorityError(
                f"{directory / CERTIFICATE_FILE} was signed by {shown.signed_by!r}, and not by the authority in "
                f"{self.directory}: name the right one with --ca, or issue another certificate"
            ) from None

    def _record(self, shown: Shown) -> None:
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "serial": shown.serial,
            "name": shown.holder.name,
            "names": [*shown.holder.claims.uris(), *shown.holder.addresses, *shown.holder.dns_names],
            "expires": shown.expires_at.isoformat(timespec="seconds"),
            "directory": str(shown.path.parent),
        }
        content = f"{json.dumps(line)}\n".encode()
        descriptor = os.open(self.directory / ISSUED_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            bytes_before = os.fstat(descriptor).st_size
            if os.write(descriptor, content) < len(content):
                os.ftruncate(descriptor, bytes_before)  # a part of a line would spoil the next one
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory / ISSUED_FILE))
        finally:
            os.close(descriptor)


def show(path: Path) -> Shown:
    """Reads a certificate without verifying it: `wiresum.join.credentials.load` verifies."""
    return _shown(_read_certificate(path), path)


def _shown(certificate: x509.Certificate, path: Path) -> Shown:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return Shown(
        holder=Holder(
            name=_common_name(certificate.subject),
            claims=parse(names.get_values_for_type(x509.UniformResourceIdentifier)),
            addresses=tuple(str(address) for address in names.get_values_for_type(x509.IPAddress)),
            dns_names=tuple(names.get_values_for_type(x509.DNSName)),
        ),
        serial=f"{certificate.serial_number:x}",
        begins_at=certificate.not_valid_before_utc,
        expires_at=certificate.not_valid_after_utc,
        signed_by=_common_name(certificate.issuer),
        path=path,
    )


def _check(holder: Holder) -> None:
    if not holder.claims.roles <= frozenset((*ROLES, FALLBACK)) or not holder.claims.roles & frozenset(ROLES):
        raise AuthorityError(f"a certificate needs a role: one of {', '.join(ROLES)}")
    for address in holder.addresses:
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(address)
            continue
        raise AuthorityError(f"{address!r} is no IP address: names of hosts go into --dns")
    for name in holder.dns_names:
        if not name.isascii() or not name or any(character.isspace() or character == ":" for character in name):
            raise AuthorityError(f"{name!r} is no name of a host")


def _alternative_names(holder: Holder) -> Sequence[x509.GeneralName]:
    return [
        *(x509.UniformResourceIdentifier(uri) for uri in holder.claims.uris()),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in holder.addresses),
        *(x509.DNSName(name) for name in holder.dns_names),
    ]


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    if not name or not name.isprintable() or len(name) > COMMON_NAME_CHARACTERS_MAX:
        raise AuthorityError(f"the name must be printable, of 1 to {COMMON_NAME_CHARACTERS_MAX} characters")
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, SCHEME.rstrip(":")),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _common_name(name: x509.Name) -> str:
    return str(next((part.value for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)), ""))


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# Files.


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuthorityError(f"cannot read {path}: {error.strerror}. `wiresum ca init` makes an authority") from None


def _read_certificate(path: Path) -> x509.Certificate:
    return _parsed(path, x509.load_pem_x509_certificate, "certificate")


def _parsed(path: Path, parse: Callable[[bytes], T], what: str) -> T:
    content = _read(path)
    try:
        return parse(content)
    except ValueError as error:
        raise AuthorityError(f"{path} is no {what} in PEM: {error}") from None


def _make_private_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise AuthorityError(f"cannot make the directory {path}: {error.strerror}") from None


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise AuthorityError(f"{path} exists, and is not written over: name another directory") from None
    except OSError as error:
        raise AuthorityError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, content: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        _write_new(beside, content, mode)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
