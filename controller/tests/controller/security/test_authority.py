from __future__ import annotations

import json
import shutil
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from wiresum.controller.security.authority import DAYS_MAX, Authority, AuthorityError, Holder, show
from wiresum.controller.security.names import Claims
from wiresum.join.credentials import load

WORKER = Holder("node 7", Claims(frozenset({"worker"}), ("night *",), ("vision",)), addresses=("10.1.0.7", "fd00::7"))


def test_a_certificate_contains_the_claims_and_addresses_of_its_holder(authority: Authority, tmp_path: Path) -> None:
    shown = authority.issue(WORKER, tmp_path / "tls", 10)
    assert shown.holder == WORKER
    assert shown.signed_by == "test"
    assert shown == show(tmp_path / "tls" / "tls.crt")
    assert timedelta(days=9) < shown.expires_at - datetime.now(timezone.utc) < timedelta(days=11)
    assert load(tmp_path / "tls").names == tuple(WORKER.claims.uris())


def test_keys_are_on_p_256_and_serial_numbers_differ(authority: Authority, tmp_path: Path) -> None:
    certificates = []
    for name in ("a", "b"):
        authority.issue(WORKER, tmp_path / name, 1)
        certificates.append(x509.load_pem_x509_certificate((tmp_path / name / "tls.crt").read_bytes()))
    for certificate in certificates:
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
    assert certificates[0].serial_number != certificates[1].serial_number
    assert certificates[0].public_key() != certificates[1].public_key()


@pytest.mark.parametrize(("role", "serves"), [("controller", True), ("switch", True), ("operator", False)])
def test_only_controllers_and_switches_get_server_certificates(
    authority: Authority, tmp_path: Path, role: str, serves: bool
) -> None:
    authority.issue(Holder("x", Claims(frozenset({role}))), tmp_path / "tls", 1)
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls" / "tls.crt").read_bytes())
    usages = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    expected = {ExtendedKeyUsageOID.CLIENT_AUTH} | ({ExtendedKeyUsageOID.SERVER_AUTH} if serves else set())
    assert usages == expected


def test_a_holder_cannot_issue_certificates(authority: Authority, tmp_path: Path) -> None:
    authority.issue(WORKER, tmp_path / "tls", 1)
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls" / "tls.crt").read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_only_the_owner_can_read_keys(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki", "test")
    authority.issue(WORKER, tmp_path / "pki" / "worker", 1)
    for key in (tmp_path / "pki" / "ca.key", tmp_path / "pki" / "worker" / "tls.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "pki" / "worker").stat().st_mode) == 0o700
    assert not list((tmp_path / "pki").rglob(".*")), "nothing is left beside"


def test_existing_keys_are_never_overwritten(authority: Authority, tmp_path: Path) -> None:
    authority.issue(WORKER, tmp_path / "tls", 1)
    before = (tmp_path / "tls" / "tls.key").read_bytes()
    with pytest.raises(AuthorityError, match=r"tls.key exists, and is not written over.*wiresum ca renew"):
        authority.issue(WORKER, tmp_path / "tls", 1)
    assert (tmp_path / "tls" / "tls.key").read_bytes() == before
    with pytest.raises(AuthorityError, match=r"ca.key exists, and is not written over"):
        Authority.create(authority.directory, "another")


def test_a_renewal_changes_only_the_key(authority: Authority, tmp_path: Path) -> None:
    before = authority.issue(WORKER, tmp_path / "tls", 7)
    key = (tmp_path / "tls" / "tls.key").read_bytes()
    after = authority.renew(tmp_path / "tls")
    assert after.holder == before.holder
    assert after.serial != before.serial
    assert (after.expires_at - after.begins_at).days == 7
    assert (tmp_path / "tls" / "tls.key").read_bytes() != key
    load(tmp_path / "tls")
    assert (authority.renew(tmp_path / "tls", 30).expires_at - after.expires_at).days == 23


def test_a_certificate_is_renewed_only_by_its_issuer(authority: Authority, tmp_path: Path) -> None:
    authority.issue(WORKER, tmp_path / "tls", 1)
    another = Authority.create(tmp_path / "another", "test")
    with pytest.raises(AuthorityError, match=r"not by the authority in .*another"):
        another.renew(tmp_path / "tls")


def test_damaged_authority_files_are_refused(authority: Authority, tmp_path: Path) -> None:
    again = Authority.open(authority.directory)
    again.issue(WORKER, tmp_path / "tls", 1)
    load(tmp_path / "tls")
    copy = tmp_path / "copy"
    shutil.copytree(authority.directory, copy)
    Authority.create(tmp_path / "another", "test")
    shutil.copy(tmp_path / "another" / "ca.key", copy / "ca.key")
    with pytest.raises(AuthorityError, match="is not the key of"):
        Authority.open(copy)
    (copy / "ca.key").write_text("nonsense")
    with pytest.raises(AuthorityError, match=r"ca.key is no private key"):
        Authority.open(copy)
    (copy / "ca.key").unlink()
    with pytest.raises(AuthorityError, match=r"cannot read .*ca.key.*wiresum ca init"):
        Authority.open(copy)


def test_issued_certificates_are_recorded(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "test")
    shown = authority.issue(WORKER, tmp_path / "tls", 1)
    (line,) = (json.loads(line) for line in (tmp_path / "issued.jsonl").read_text().splitlines())
    assert (line["serial"], line["name"]) == (shown.serial, "node 7")
    assert "wiresum:role/worker" in line["names"]


def test_no_certificate_is_made_that_a_full_disk_leaves_unrecorded(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "test")
    (tmp_path / "issued.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        authority.issue(WORKER, tmp_path / "tls", 1)
    assert not (tmp_path / "tls" / "tls.crt").exists()
    (tmp_path / "issued.jsonl").unlink()
    authority.issue(WORKER, tmp_path / "tls", 1)
    assert len(authority.issued(WORKER.name)) == 1


@pytest.mark.parametrize(
    ("holder", "days", "problem"),
    [
        (Holder("x", Claims()), 1, "needs a role"),
        (Holder("x", Claims(frozenset({"fallback"}))), 1, "needs a role"),
        (Holder("x", Claims(frozenset({"root"}))), 1, "needs a role"),
        (Holder("", WORKER.claims), 1, "the name must be printable"),
        (Holder("x" * 65, WORKER.claims), 1, "the name must be printable"),
        (Holder("x", WORKER.claims, addresses=("node7",)), 1, "'node7' is no IP address"),
        (Holder("x", WORKER.claims, dns_names=("node 7",)), 1, "'node 7' is no name of a host"),
        (WORKER, 0, f"1 to {DAYS_MAX} days"),
        (WORKER, DAYS_MAX + 1, f"1 to {DAYS_MAX} days"),
    ],
)
def test_an_invalid_certificate_request_is_refused(
    authority: Authority, tmp_path: Path, holder: Holder, days: int, problem: str
) -> None:
    with pytest.raises(AuthorityError, match=problem):
        authority.issue(holder, tmp_path / "tls", days)
    assert not (tmp_path / "tls" / "tls.key").exists()
