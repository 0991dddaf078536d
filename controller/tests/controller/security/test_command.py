from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from wiresum.controller.security.command import ca
from wiresum.join.credentials import CredentialsError, load


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(ca, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    run("init", directory / "pki", "--address", "10.0.0.1", "--dns", "controller.example")
    return directory / "pki"


def test_one_command_issues_all_certificates_of_a_first_cluster(pki: Path) -> None:
    for role in ("controller", "switch"):
        assert load(pki / role, serving=True).names == (f"wiresum:role/{role}",)
    for role in ("operator", "worker"):
        assert load(pki / role).names == (f"wiresum:role/{role}",)
    shown = {item["path"]: item for item in json.loads(run("show", pki, "--json"))}
    controller = shown[str(pki / "controller" / "tls.crt")]
    assert controller["addresses"] == ["127.0.0.1", "::1", "10.0.0.1"]
    assert {"localhost", "controller.example"} <= set(controller["dns_names"])
    assert str(pki / "ca.crt") in shown


def test_an_existing_authority_is_not_overwritten(pki: Path) -> None:
    assert "exists, and is not written over" in run("init", pki, status=1)


def test_a_worker_gets_a_certificate_for_its_jobs_its_tenant_and_its_addresses(pki: Path, tmp_path: Path) -> None:
    output = run(
        "issue", "worker", "--ca", pki, "--name", "vision", "--job", "vision-*", "--tenant", "vision",
        "--address", "10.1.0.7", "--days", 3, tmp_path / "vision",
    )  # fmt: skip
    assert "wiresum:job/vision-*" in output
    (shown,) = json.loads(run("show", tmp_path / "vision", "--json"))[1:]
    assert (shown["roles"], shown["jobs"], shown["tenants"]) == (["worker"], ["vision-*"], ["vision"])
    assert shown["addresses"] == ["10.1.0.7"]


def test_a_workers_certificate_may_serve_a_fallback_at_its_address_and_a_renewed_one_too(
    pki: Path, tmp_path: Path
) -> None:
    named = ("issue", "worker", "--ca", pki, "--name", "node8", "--fallback")
    assert "--fallback needs --address" in run(*named, tmp_path / "node8", status=2)
    run(*named, "--address", "10.0.0.8", tmp_path / "node8")
    for _ in range(2):
        found = load(tmp_path / "node8", serving=True)
        assert set(found.names) == {"wiresum:role/worker", "wiresum:role/fallback"}
        assert found.addresses == ("10.0.0.8",)
        assert "cannot be used" not in run("show", tmp_path / "node8")
        run("renew", "--ca", pki, tmp_path / "node8")
    run("issue", "worker", "--ca", pki, "--name", "node9", "--address", "10.0.0.9", tmp_path / "node9")
    with pytest.raises(CredentialsError, match="not for serving"):
        load(tmp_path / "node9", serving=True)


@pytest.mark.parametrize("role", ["operator", "controller", "switch"])
def test_every_role_can_be_issued(pki: Path, tmp_path: Path, role: str) -> None:
    run("issue", role, "--ca", pki, "--name", f"another {role}", tmp_path / role)
    assert f"wiresum:role/{role}" in load(tmp_path / role).names


def test_show_reports_what_is_wrong_with_a_certificate(pki: Path, tmp_path: Path) -> None:
    run("issue", "operator", "--ca", pki, "--name", "x", tmp_path / "tls")
    assert "cannot be used" not in run("show", tmp_path / "tls")
    (tmp_path / "tls" / "tls.key").chmod(0o644)
    assert "can be read or changed by others" in run("show", tmp_path / "tls")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"there is no certificate in {empty}" in run("show", empty, status=1)


def test_one_command_renews_many_directories(pki: Path, tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("a", "b")]
    for directory in directories:
        run("issue", "worker", "--ca", pki, "--name", directory.name, directory)
    before = [load(directory).certificate for directory in directories]
    run("renew", "--ca", pki, *directories)
    assert all(load(directory).certificate != old for directory, old in zip(directories, before, strict=True))


def test_errors_name_the_file(tmp_path: Path) -> None:
    output = run("issue", "worker", "--ca", tmp_path, "--name", "x", tmp_path / "tls", status=1)
    assert f"cannot read {tmp_path / 'ca.crt'}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("arguments", [[], ["init"], ["issue"], ["issue", "worker"], ["renew"], ["show"]])
def test_help_shows_examples(arguments: list[str]) -> None:
    output = run(*arguments, "--help")
    assert "Usage:" in output
    assert "Options:" in output
