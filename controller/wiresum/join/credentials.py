"""TLS directories, by which the parties to a job prove who they are.

A TLS directory holds what a party needs for mutual TLS, in PEM: `ca.crt` (whom the party trusts), `tls.crt` (who it is)
and `tls.key`, named as in a Kubernetes TLS secret. `wiresum ca` makes such directories. Plaintext is allowed on
loopback, and elsewhere only if it is asked for.

A directory is checked before use, by a TLS handshake in memory with its certificate and its authority. So a certificate
of another authority, an expired one, or one that does not fit its key is an error that names the file.

gRPC is imported only by the functions that need it: the messages are used without gRPC.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import ssl
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiresum.join import addresses

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

CERT_NOT_YET_VALID = 9
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID."""
UNSUITABLE_PURPOSE = 26
"""OpenSSL's X509_V_ERR_INVALID_PURPOSE."""
AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
REVOKED_FILE = "ca.crl"
"""A service's list of revoked certificates."""
FILE_BYTES_MAX = 1 << 20
HANDSHAKE_TURNS_MAX = 10
RENEWALS_MAX, RENEWAL_S = 3, 0.1
"""How often, and how much later, a directory that cannot be used is read again: files are replaced one after the
other."""
EXPIRY_WARNED_PART = 0.1
"""`load` warns when at most this part of a certificate's life is left."""

Options = Sequence[tuple[str, Any]]
CHANNEL_OPTIONS: Options = (("grpc.enable_retries", 0),)
"""Options of all channels: without gRPC's retries, since callers ask again as they see fit. The retries, which are on
by default, lose a part of some calls whose connection fails at once: then a reader of a stream waits for ever, also
after the call has failed (seen with 1.81.1 and 1.85.3, once in some hundred reconnections on a busy host)."""


class CredentialsError(ValueError):
    """Raised for a TLS directory that cannot be used. The text names the file, and says what to do."""


class NotForServingError(CredentialsError):
    """Raised for a certificate with which its holder may call others, and not serve."""


@dataclass(frozen=True)
class Credentials:
    """The content of a TLS directory, checked."""

    directory: Path
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    expires_at: datetime = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    """The certificate's URIs, like `wiresum:role/worker`."""
    addresses: tuple[str, ...] = field(compare=False)
    """The certificate's IP addresses."""

    def of_channel(self) -> grpc.ChannelCredentials:
        import grpc

        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


COPY_IT = "copy this host's from the machine where `wiresum ca` made it, for a worker pki/worker of `wiresum ca init`"
"""A second authority, which is as easily made, would not help."""


def load(directory: str | Path, *, serving: bool = False) -> Credentials:
    """Reads a TLS directory and checks it, for a server (`serving`) or a client. Raises `CredentialsError`. Warns if
    the certificate expires soon.
    """
    directory = Path(directory).expanduser()
    if not directory.is_dir():
        raise CredentialsError(f"{directory} is no directory: {COPY_IT}")
    for _ in range(
        0 if serving else RENEWALS_MAX
    ):  # a server keeps its certificate, and reads again for the next connection
        with contextlib.suppress(CredentialsError):
            return _load_once(directory, serving=serving)
        time.sleep(RENEWAL_S)
    return _load_once(directory, serving=serving)


def _load_once(directory: Path, *, serving: bool) -> Credentials:
    authority, certificate, key = read = _files(directory)
    _check_key_is_private(directory / KEY_FILE)
    shown = _prove(directory, serving=serving)
    if read != _files(directory):
        raise CredentialsError(f"{directory} changes while it is read: try again when it has its new files")
    begins_at, expires_at = (_moment(shown[end]) for end in ("notBefore", "notAfter"))
    left = expires_at - datetime.now(timezone.utc)
    if left < EXPIRY_WARNED_PART * (expires_at - begins_at):
        log.warning("%s expires in %s: renew it with `wiresum ca renew`", directory / CERTIFICATE_FILE, _in_words(left))
    alternatives = shown.get("subjectAltName", ())
    names = tuple(value for kind, value in alternatives if kind == "URI")
    addresses = tuple(str(ipaddress.ip_address(value.strip())) for kind, value in alternatives if kind == "IP Address")
    return Credentials(directory, authority, certificate, key, expires_at, names, addresses)


def open_channel(
    target: str, *, tls: str | Path | None = None, insecure: bool = False, options: Options = ()
) -> grpc.Channel:
    """A channel to host:port, with mutual TLS if `tls` names a directory. Raises `CredentialsError`."""
    import grpc

    options = (*CHANNEL_OPTIONS, *options)
    if tls:
        return grpc.secure_channel(target, load(tls).of_channel(), options=options)
    if not (insecure or is_loopback(target)):
        raise CredentialsError(
            f"{target} is not on this host, and no TLS directory was given: set WIRESUM_TLS to one (`wiresum ca issue` "
            f"makes it), or set WIRESUM_INSECURE=1 if everybody in that network may read and end every job"
        )
    return grpc.insecure_channel(target, options=options)


def is_about_tls(said: str) -> bool:
    """Returns whether this text of gRPC's says that TLS failed. What its "tcp handshaker" says is of TCP alone."""
    of_tls = said.lower().replace("tcp handshaker", "")
    return any(word in of_tls for word in ("ssl", "handshake")) or refuses_certificate(said)


def refuses_certificate(said: str) -> bool:
    """Returns whether this text of gRPC's says that a certificate is another authority's, has expired, or is made for
    other names."""
    return any(words in said.lower() for words in ("certificate", "verification check"))


def tls_advice(said: str, tls: str | Path, named_by: str) -> str:
    """Returns what to do if this text of gRPC's says that TLS failed; empty: TLS did not. `tls`: the caller's own
    directory; empty for none. `named_by`: what gave the service's name."""
    if not tls or not is_about_tls(said):
        return ""
    return (
        f"its certificate must be of the authority in {tls}/ca.crt and be made for the name by which {named_by} calls "
        f"it, and it must know the authority of {tls}/tls.crt. The directories of both must come from one authority: "
        f"copy this one anew from the machine where `wiresum ca` made it"
    )


def add_port(
    server: Any, address: str, *, tls: str | Path | None = None, insecure: bool = False, called_at: str = ""
) -> int:
    """Makes a gRPC server listen at host:port, with mutual TLS if `tls` names a directory; returns the TCP port. A
    renewed certificate is used from the next connection on. Warns if a certificate is not made for the address by which
    clients call, `called_at` if that is another one. Raises `CredentialsError` or `OSError`.
    """
    check_may_listen(address, tls=tls, insecure=insecure)
    try:
        port = (
            server.add_secure_port(address, _server_credentials(tls, called_at or address))
            if tls
            else server.add_insecure_port(address)
        )
    except RuntimeError:
        port = 0
    if not port:
        raise taken(address)
    return int(port)


def check_may_listen(address: str, *, tls: str | Path | None = None, insecure: bool = False) -> None:
    """Raises a `CredentialsError` for plaintext that the caller has not asked for."""
    if not (tls or insecure or is_loopback(address)):
        raise CredentialsError(
            f"{address} can be reached from other hosts, and no TLS directory was given: name one (`wiresum ca init` "
            f"makes it), listen at 127.0.0.1, or ask for --insecure if everybody there may join and end every job"
        )


def taken(address: str) -> OSError:
    return OSError(f"cannot listen at {address}: does another one run there? Stop it, or choose another port")


def is_loopback(target: str) -> bool:
    """True if only processes of this host can reach the target. Names other than localhost are not looked up."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.rpartition(":")[0].strip("[]") or target
    return host == "localhost" or addresses.is_loopback(host)


# Servers.


class _Renewed:
    """Gives each handshake the newest certificate. gRPC calls it from its own threads."""

    def __init__(self, directory: Path, called_at: str) -> None:
        self._directory, self._called_at = directory, called_at
        self._lock = threading.Lock()
        self._signature = self._sign()
        self._loaded = self._load()

    def configuration(self) -> Any:
        import grpc

        loaded = self._loaded
        return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.certificate)], loaded.authority)

    def fetch(self) -> Any:
        """Returns a new configuration; None: nothing has changed. Files that cannot be used leave the old ones in
        force."""
        with self._lock:
            try:
                signature = self._sign()
                if signature == self._signature:
                    return None
                self._loaded = self._load()
            except (CredentialsError, OSError) as error:
                log.warning("the certificate in use stays: %s", error)
                return None
            self._signature = signature
            log.info("%s was renewed, and is valid until %s", self._directory, self._loaded.expires_at)
            return self.configuration()

    def _load(self) -> Credentials:
        loaded = load(self._directory, serving=True)
        host = addresses.canonical(self._called_at.rpartition(":")[0].strip("[]"))
        if host and not ipaddress.ip_address(host).is_unspecified and host not in loaded.addresses:
            log.warning(
                "%s is not made for %s, where this listens: who calls by that address will refuse it. Issue another "
                "(`wiresum ca issue`) with `--address %s`, unless everybody calls by a name",
                self._directory / CERTIFICATE_FILE,
                host,
                host,
            )
        return loaded

    def _sign(self) -> list[tuple[int, int]]:
        """A value that changes when a file is replaced."""
        paths = [self._directory / name for name in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)]
        return [(status.st_mtime_ns, status.st_ino) for status in (path.stat() for path in paths if path.exists())]


def _server_credentials(tls: str | Path, called_at: str) -> grpc.ServerCredentials:
    import grpc

    renewed = _Renewed(Path(tls).expanduser(), called_at)
    return grpc.dynamic_ssl_server_credentials(
        renewed.configuration(), renewed.fetch, require_client_authentication=True
    )


# Proof.


def _files(directory: Path) -> list[bytes]:
    """Contents of the authority, the certificate and the key."""
    return [_read(directory / name) for name in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise CredentialsError(
            f"cannot read {path}: {error.strerror}. A TLS directory holds {AUTHORITY_FILE}, {CERTIFICATE_FILE} and "
            f"{KEY_FILE}: {COPY_IT}"
        ) from None
    if b"-----BEGIN " not in content:
        raise CredentialsError(f"{path} is not in PEM: `wiresum ca issue` makes such files")
    return content


def _check_key_is_private(path: Path) -> None:
    """Raises `CredentialsError` unless only the owner can write the key, and only the owner and its group can read the
    key."""
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise CredentialsError(
            f"{path} can be read or changed by others (mode {stat.S_IMODE(mode):04o}): run `chmod 600 {path}`, and "
            f"issue another key if somebody may have read it"
        )


def _advice(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == CERT_NOT_YET_VALID:
        return "Set the clock of this host, or of the one that issued it, right: one of them is wrong"
    return "Renew it with `wiresum ca renew`, or issue another for this purpose with `wiresum ca issue`"


def _prove(directory: Path, *, serving: bool) -> dict[str, Any]:
    """Checks a directory by a handshake. Returns what the other side of a connection sees in the certificate."""
    certificate, authority = directory / CERTIFICATE_FILE, directory / AUTHORITY_FILE
    server, client = (ssl.SSLContext(protocol) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    other = client if serving else server
    try:
        for context in (server,) if serving else (server, client):  # a server needs a certificate
            context.load_cert_chain(certificate, directory / KEY_FILE, password=lambda: "")
    except ssl.SSLError as error:
        raise CredentialsError(
            f"{certificate} and {directory / KEY_FILE} do not fit each other, or are no certificate and key without "
            f"a password ({error.reason or error}): issue both again with `wiresum ca issue`"
        ) from None
    try:
        other.load_verify_locations(authority)
        other.verify_mode = ssl.CERT_REQUIRED
        ends = _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        if serving and error.verify_code == UNSUITABLE_PURPOSE:
            raise NotForServingError(
                f"{certificate} is for calling others, and not for serving: issue one for that with `wiresum ca issue`"
            ) from None
        raise CredentialsError(
            f"{certificate} is not valid under the authority in {authority}: {error.verify_message}. {_advice(error)}"
        ) from None
    except ssl.SSLError as error:
        raise CredentialsError(f"{authority} and {certificate} cannot be used: {error.reason or error}") from None
    return ends[1 if serving else 0].getpeercert() or {}


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_side=False),
    )
    for _ in range(HANDSHAKE_TURNS_MAX):
        done = 0
        for end in reversed(ends):  # the client speaks first
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                done += 1
        if done == len(ends):
            return ends
    raise ssl.SSLError("the handshake does not come to an end")


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), timezone.utc)


def _in_words(left: timedelta) -> str:
    hours = max(0, int(left.total_seconds() // 3600))
    return f"{hours} hours" if hours < 48 else f"{hours // 24} days"
