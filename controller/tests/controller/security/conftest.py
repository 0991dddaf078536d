"""A real certificate authority, and a TLS directory for each role."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims

Issue = Callable[..., Path]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), "test")


@pytest.fixture(scope="session")
def issue(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Issue:
    """Makes a TLS directory for a role, with the given claims."""

    def issue_one(role: str, name: str = "", days: int = 10, **fields: tuple[str, ...]) -> Path:
        claims = Claims(frozenset({role}), fields.get("jobs", ()), fields.get("tenants", ()))
        holder = Holder(name or f"test {role}", claims, fields.get("addresses", ()), fields.get("dns_names", ()))
        directory = tmp_path_factory.mktemp(role)
        authority.issue(holder, directory, days)
        return directory

    return issue_one


@pytest.fixture(scope="session")
def controller_tls(issue: Issue) -> Path:
    return issue("controller", addresses=("127.0.0.1",))


@pytest.fixture(scope="session")
def worker_tls(issue: Issue) -> Path:
    return issue("worker")


@pytest.fixture(scope="session")
def operator_tls(issue: Issue) -> Path:
    return issue("operator")
