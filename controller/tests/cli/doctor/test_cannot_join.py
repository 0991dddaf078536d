"""What keeps this host from joining is a problem, and its text has the cause and the remedy: each cause, with real
certificates, a real service and a real switch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from wiresum.cli.doctor import doctor, path
from wiresum.cli.jobs import jobs as jobs_command
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.security import Security
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.switch.software_switch import SoftwareSwitch


@dataclass(frozen=True)
class Cause:
    says: tuple[str, ...]
    """The cause, and the remedy."""
    roles: tuple[str, ...] = ("worker",)
    jobs: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    check: str = "join"
    revoked: bool = False
    foreign: bool = False
    certified: bool = True


CAUSES = {
    "an operator's certificate": Cause(("the role worker", "wiresum ca issue worker"), roles=("operator",)),
    "a revoked certificate": Cause(("was revoked", "ask whoever issued it for another"), revoked=True),
    "no certificate": Cause(("cannot reach the switch", "WIRESUM_TLS"), certified=False),
    "a foreign certificate": Cause(("its certificate must be of the authority",), foreign=True),
    "single names of jobs": Cause(("is for jobs 'night', and not for 'doctor-", "--job 'doctor-*'"), jobs=("night",)),
    "several tenants": Cause(("is for 'a', 'b'", "set WIRESUM_TENANT to one of them"), tenants=("a", "b")),
    "another tenant": Cause(
        ("is for 'a', and tenant 'b' was asked for", "set WIRESUM_TENANT"), tenants=("a",),
        variables={"WIRESUM_TENANT": "b"},
    ),
    "a tenant that the certificate does not name": Cause(
        ("names no tenant, and 'b' was asked for", "issue it again with --tenant b"), variables={"WIRESUM_TENANT": "b"}
    ),
    "a quota without jobs": Cause(
        ("does not allow any job", "configuration says so, under [[tenant]]"), tenants=("none",)
    ),
    "a quota of slots": Cause(("does not allow any job", "under [[tenant]]"), tenants=("slotless",)),
    "a quota of waiting jobs": Cause(("form or wait for slots", "waiting_jobs"), tenants=("hasty",)),
}  # fmt: skip
QUOTAS = (
    Quota("none", jobs=0),
    Quota("slotless", slots=0),
    Quota("hasty", waiting_jobs=0),
)


@dataclass(frozen=True)
class Cluster:
    target: str
    authority: Authority
    stranger: Authority


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cannot-join")
    authority = Authority.create(folder / "ca", "cluster")
    tls = folder / "controller"
    authority.issue(Holder("controller", Claims(frozenset({"controller"})), ("127.0.0.1",)), tls, 10)
    revoked = Holder("revoked", Claims(frozenset({"worker"})))
    authority.issue(revoked, folder / "revoked", 10)
    authority.revoke(authority.issued("revoked"))
    shutil.copy(authority.directory / "ca.crl", tls / "ca.crl")
    security = Security(SecurityConfig(tls=tls))
    device = SoftwareSwitch(port=0, slots=256)
    server = JoinServer(device, Limits(), quotas=QUOTAS, security=security)
    stranger = Authority.create(folder / "stranger", "stranger")
    yield Cluster(f"127.0.0.1:{server.start('127.0.0.1', 0)}", authority, stranger)
    server.stop(0.2)
    security.close()
    device.close()


def examine(cluster: Cluster, folder: Path, cause: Cause) -> tuple[int, dict[str, str]]:
    """The exit status, and the first finding."""
    claims = Claims(frozenset(cause.roles), cause.jobs, cause.tenants)
    if cause.revoked:
        folder = cluster.authority.directory.parent / "revoked"
    elif cause.certified:
        (cluster.stranger if cause.foreign else cluster.authority).issue(Holder("host", claims), folder / "tls", 10)
        folder = folder / "tls"
    access = ["--tls", str(folder)] if cause.certified else ["--insecure"]
    with mock.patch.object(path, "JOIN_S_MAX", 3.0):
        result = CliRunner().invoke(
            doctor,
            ["--switch", cluster.target, "--size", "1", "--check", "path", "--json", *access],
            env=cause.variables,
        )
    return result.exit_code, json.loads(result.output)["findings"][0]


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())
def test_each_cause_is_a_problem_with_its_remedy(cluster: Cluster, tmp_path: Path, cause: Cause) -> None:
    status, finding = examine(cluster, tmp_path, cause)
    assert (status, finding["level"], finding["check"]) == (1, "problem", cause.check), finding
    text = f"{finding['what']} {finding['advice']}"
    for words in cause.says:
        assert words in text, text


def test_a_command_with_a_foreign_certificate_is_not_told_to_start_a_switch(cluster: Cluster, tmp_path: Path) -> None:
    cluster.stranger.issue(Holder("host", Claims(frozenset({"operator"}))), tmp_path / "tls", 90)
    result = CliRunner().invoke(jobs_command, ["--switch", cluster.target, "--tls", str(tmp_path / "tls")])
    assert result.exit_code == 1
    assert "must come from one authority: copy this one anew" in result.output
    assert "start a switch" not in result.output


@pytest.mark.parametrize("jobs", [(), ("doctor-*",), ("night", "vision-*"), ("*",)])
def test_a_certificate_for_names_that_the_doctor_can_take_passes(
    cluster: Cluster, tmp_path: Path, jobs: tuple[str, ...]
) -> None:
    status, finding = examine(cluster, tmp_path, Cause((), jobs=jobs))
    assert (status, finding["check"], finding["level"]) == (0, "sums", "ok"), finding


def test_nothing_is_amiss_only_where_there_is_nothing_to_say(cluster: Cluster, tmp_path: Path) -> None:
    cluster.authority.issue(Holder("host", Claims(frozenset({"worker"}))), tmp_path / "tls", 90)
    result = CliRunner().invoke(
        doctor, ["--switch", cluster.target, "--check", "job", "--tls", str(tmp_path / "tls")], catch_exceptions=False
    )
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "it works, with 1 note")
