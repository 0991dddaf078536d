"""TLS directories, and the rule for plaintext. Certificates are from a real authority, connections over loopback."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum.controller.security import authority as authority_module
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join import credentials
from wiresum.join.credentials import CredentialsError, add_port, is_loopback, load, open_channel
from wiresum_lab.patience import PATIENCE_S

Issue = Callable[..., Path]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "test")


@pytest.fixture
def issue(authority: Authority, tmp_path: Path) -> Issue:
    def issue_one(role: str, days: int = 10) -> Path:
        holder = Holder(role, Claims(roles=frozenset({role})), addresses=("127.0.0.1",))
        return authority.issue(holder, tmp_path / role, days).path.parent

    return issue_one


@pytest.fixture
def days_ago(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the clock of the authority back by so many days."""

    def turn_back(days: int) -> None:
        class Earlier(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
                return datetime.now(timezone.utc) - timedelta(days=days)

        monkeypatch.setattr(authority_module, "datetime", Earlier)

    return turn_back


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    servers: list[grpc.Server] = []

    def serve_one(tls: Path) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Echo()])
        port = add_port(server, "127.0.0.1:0", tls=tls)
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve_one
    for server in servers:
        server.stop(0).wait()


def ask(channel: grpc.Channel) -> bytes:
    with channel:
        return bytes(channel.unary_unary("/any/Method")(b"question", timeout=PATIENCE_S))


# Directories.


def test_a_directory_is_loaded_with_the_names_in_its_certificate(issue: Issue) -> None:
    directory = issue("worker")
    loaded = load(directory)
    assert loaded.names == ("wiresum:role/worker",)
    assert loaded.certificate == (directory / "tls.crt").read_bytes()
    assert timedelta(days=9) < loaded.expires_at - datetime.now(timezone.utc) < timedelta(days=11)
    assert "PRIVATE KEY" not in repr(loaded)


def test_a_missing_directory_is_an_error_that_says_what_to_copy(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"nowhere is no directory: copy this host's"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_missing_or_invalid_file_is_named(issue: Issue, name: str) -> None:
    directory = issue("worker")
    mode = (directory / name).stat().st_mode
    (directory / name).unlink()
    with pytest.raises(CredentialsError, match=f"cannot read .*worker/{name}"):
        load(directory)
    (directory / name).write_text("nonsense")
    (directory / name).chmod(mode)
    with pytest.raises(CredentialsError, match=f"worker/{name} is not in PEM"):
        load(directory)
    (directory / name).write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with pytest.raises(CredentialsError, match=f"worker/{name}"):
        load(directory)


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_a_key_that_others_may_read_or_write_is_refused(issue: Issue, mode: int, refused: bool) -> None:
    directory = issue("worker")
    (directory / "tls.key").chmod(mode)
    if refused:
        with pytest.raises(CredentialsError, match=rf"tls.key can be read or changed by others \(mode {mode:04o}\)"):
            load(directory)
    else:
        load(directory)


def test_a_key_of_another_certificate_is_refused(issue: Issue) -> None:
    directory = issue("worker")
    shutil.copy(issue("operator") / "tls.key", directory / "tls.key")
    with pytest.raises(CredentialsError, match="do not fit each other"):
        load(directory)


def test_a_directory_whose_key_is_not_renewed_yet_is_read_again(issue: Issue, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, fresh = issue("worker"), issue("operator")
    shutil.copy(fresh / "tls.crt", directory / "tls.crt")
    monkeypatch.setattr(credentials.time, "sleep", lambda _: shutil.copy(fresh / "tls.key", directory / "tls.key"))
    assert load(directory).names == ("wiresum:role/operator",)


def test_what_is_returned_is_what_was_proven(issue: Issue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are replaced after they were read, and before they are proven, are read again."""
    directory, fresh, proven = issue("worker"), issue("operator"), []

    def prove(*arguments: Any, **options: Any) -> Any:
        if not proven:
            for name in ("tls.crt", "tls.key"):
                shutil.copy(fresh / name, directory / name)
        proven.append(real(*arguments, **options))
        return proven[-1]

    real = credentials._prove
    monkeypatch.setattr(credentials, "_prove", prove)
    loaded = load(directory)
    assert loaded.certificate == (fresh / "tls.crt").read_bytes()
    assert loaded.key == (fresh / "tls.key").read_bytes()
    assert len(proven) == 2


def test_a_certificate_of_another_authority_is_refused(issue: Issue, tmp_path: Path) -> None:
    directory = issue("worker")
    Authority.create(tmp_path / "another", "test")
    shutil.copy(tmp_path / "another" / "ca.crt", directory / "ca.crt")
    with pytest.raises(CredentialsError, match=r"worker/tls.crt is not valid under the authority in .*worker/ca.crt"):
        load(directory)


def test_a_certificate_that_is_not_yet_valid_points_to_the_clock(issue: Issue, days_ago: Callable[[int], None]) -> None:
    days_ago(-3)
    with pytest.raises(CredentialsError, match=r"not yet valid.*the clock of this host") as caught:
        load(issue("worker"))
    assert "renew" not in str(caught.value)


def test_an_expired_certificate_is_refused(issue: Issue, days_ago: Callable[[int], None]) -> None:
    days_ago(11)
    with pytest.raises(CredentialsError, match=r"certificate has expired.*wiresum ca renew"):
        load(issue("worker"))


def test_a_certificate_that_expires_soon_causes_a_warning(
    issue: Issue, days_ago: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    load(issue("worker"))
    assert caplog.text == ""
    days_ago(95)
    load(issue("operator", days=100))
    assert "operator/tls.crt expires in 4 days: renew it" in caplog.text


def test_a_server_needs_a_server_certificate(issue: Issue) -> None:
    for role in ("controller", "switch"):
        load(issue(role), serving=True)
    for role in ("worker", "operator"):
        with pytest.raises(CredentialsError, match="is for calling others, and not for serving"):
            load(issue(role), serving=True)


# Connections.


def test_both_ends_authenticate(issue: Issue, serve: Callable[[Path], str]) -> None:
    target = serve(issue("controller"))
    assert ask(open_channel(target, tls=issue("worker"))) == b"question"


def test_there_is_no_connection_without_a_certificate_of_the_same_authority(
    issue: Issue, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    target = serve(issue("controller"))
    stranger = Authority.create(tmp_path / "another", "test")
    foreign = Holder("worker", Claims(roles=frozenset({"worker"})))
    strange = stranger.issue(foreign, tmp_path / "strange", 1).path.parent
    own = load(issue("worker"))
    loaded = load(strange)
    for channel in (
        open_channel(target),
        open_channel(target, tls=strange),
        grpc.secure_channel(target, grpc.ssl_channel_credentials(own.authority)),
        grpc.secure_channel(target, grpc.ssl_channel_credentials(own.authority, loaded.key, loaded.certificate)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            ask(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class Unavailable(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.calls = 0

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(_request: bytes, context: grpc.ServicerContext) -> None:
            self.calls += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "")

        return grpc.unary_unary_rpc_method_handler(answer)


def test_grpc_itself_retries_no_call() -> None:
    """A call that it retries may hang: `CHANNEL_OPTIONS`."""
    policy: dict[str, object] = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    options = [("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]}))]
    handler = Unavailable()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[handler])
    target = f"127.0.0.1:{add_port(server, '127.0.0.1:0')}"
    server.start()
    try:
        for channel, calls in ((grpc.insecure_channel(target, options), 3), (open_channel(target, options=options), 1)):
            handler.calls = 0
            with pytest.raises(grpc.RpcError):
                ask(channel)
            assert handler.calls == calls
    finally:
        server.stop(0).wait()


def test_a_renewed_certificate_is_used_for_new_connections(
    authority: Authority, issue: Issue, serve: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    directory = issue("controller")
    target = serve(directory)
    caplog.set_level(logging.INFO)
    assert ask(open_channel(target, tls=issue("worker"))) == b"question"
    assert "renewed" not in caplog.text
    authority.renew(directory)
    assert ask(open_channel(target, tls=directory)) == b"question"
    assert f"{directory} was renewed" in caplog.text


def test_invalid_new_files_leave_the_old_certificate_in_use(
    issue: Issue, serve: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    directory = issue("controller")
    target = serve(directory)
    (directory / "tls.key").write_text("half a")
    assert ask(open_channel(target, tls=issue("worker"))) == b"question"
    assert "the certificate in use stays: " in caplog.text


def test_a_server_without_a_usable_directory_does_not_listen(issue: Issue) -> None:
    with pytest.raises(CredentialsError, match="is for calling others, and not for serving"):
        add_port(grpc.server(futures.ThreadPoolExecutor(1)), "127.0.0.1:0", tls=issue("worker"))


@pytest.mark.parametrize("misfit", ["authority", "address", ""])
def test_what_grpc_says_of_a_certificate_that_does_not_fit_is_known_as_such(
    authority: Authority, issue: Issue, tmp_path: Path, serve: Callable[[Path], str], misfit: str
) -> None:
    issuer = Authority.create(tmp_path / "another", "another") if misfit == "authority" else authority
    where = ("10.0.0.1",) if misfit == "address" else ("127.0.0.1",)
    holder = Holder("controller", Claims(roles=frozenset({"controller"})), addresses=where)
    target = serve(issuer.issue(holder, tmp_path / "served", 10).path.parent)
    worker = issue("worker")
    if not misfit:
        assert ask(open_channel(target, tls=worker)) == b"question"
        return
    with pytest.raises(grpc.RpcError) as caught:
        ask(open_channel(target, tls=worker))
    assert credentials.refuses_certificate(caught.value.details())
    assert "copy this one anew" in credentials.tls_advice(caught.value.details(), worker, "WIRESUM_SWITCH")


def test_a_renewed_certificate_that_is_not_made_for_the_address_is_warned_of(
    authority: Authority, issue: Issue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = issue("controller")
    renewed = credentials._Renewed(directory, "127.0.0.1:43487")
    assert "is not made for" not in caplog.text
    elsewhere = Holder("controller", Claims(roles=frozenset({"controller"})), addresses=("10.0.0.1",))
    shutil.copytree(authority.issue(elsewhere, tmp_path / "other", 10).path.parent, directory, dirs_exist_ok=True)
    assert renewed.fetch() is not None
    assert "is not made for 127.0.0.1, where this listens" in caplog.text


def test_a_port_in_use_is_an_error_that_says_so(issue: Issue, serve: Callable[[Path], str]) -> None:
    target = serve(issue("controller"))
    options = [("grpc.so_reuseport", 0)]
    with pytest.raises(OSError, match=f"cannot listen at {target}: does another one run there"):
        add_port(grpc.server(futures.ThreadPoolExecutor(1), options=options), target)


# Plaintext.


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:43487", True),
        ("127.8.0.1:1", True),
        ("localhost:43487", True),
        ("[::1]:43487", True),
        ("unix:/run/wiresum", True),
        ("0.0.0.0:43487", False),
        ("[::]:43487", False),
        ("10.0.0.1:43487", False),
        ("switch.example:43487", False),
        ("localhost.example:43487", False),
        ("127.0.0.1.example:43487", False),
    ],
)
def test_plaintext_is_for_loopback_unless_enabled_explicitly(target: str, local: bool) -> None:
    assert is_loopback(target) == local
    server = grpc.server(futures.ThreadPoolExecutor(1))
    if not local:
        with pytest.raises(CredentialsError, match=r"WIRESUM_TLS.*WIRESUM_INSECURE=1"):
            open_channel(target)
        with pytest.raises(CredentialsError, match=f"{re.escape(target)} can be reached from other hosts.*--insecure"):
            add_port(server, target)
    open_channel(target, insecure=True).close()


def test_importing_the_messages_does_not_import_grpc() -> None:
    code = "import sys, wiresum.join, wiresum.join.credentials; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
