from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

import pytest

from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security.caller import Caller, caller, identify, set_caller

PEER = "ipv4:10.0.0.7:50123"


def holder(*names: str, peer: str = PEER) -> Caller:
    return identify(
        peer,
        {
            "transport_security_type": [b"ssl"],
            "x509_common_name": [b"node 7"],
            "x509_subject_alternative_name": [name.encode() for name in names],
        },
    )


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (PEER, "10.0.0.7"),
        ("ipv6:%5B::1%5D:50123", "::1"),
        ("ipv6:[fe80::1]:5", "fe80::1"),
        ("ipv6:[::ffff:10.0.0.7]:5", "10.0.0.7"),
        ("unix:", ""),
        ("", ""),
        ("ipv4:nonsense", ""),
    ],
)
def test_the_address_is_that_of_the_connection(peer: str, address: str) -> None:
    assert identify(peer, {}).address == address


def test_a_certificate_gives_name_role_and_addresses() -> None:
    found = holder("wiresum:role/worker", "wiresum:job/night-*", "10.1.0.7", "node7.example")
    assert str(found) == "node 7 at 10.0.0.7"
    assert found.has_role("worker")
    assert not found.has_role("operator")
    assert found.addresses == {"10.1.0.7"}


def test_without_tls_everything_is_allowed_and_names_in_the_context_are_ignored() -> None:
    found = identify(PEER, {"x509_subject_alternative_name": [b"wiresum:job/a"], "x509_common_name": [b"root"]})
    assert (found.name, found.authenticated) == ("", False)
    assert found.has_role("operator")
    found.check_may_join("any job", "any tenant", IPv4Address("192.0.2.1"))


def refusal(of: Caller, job: str = "a-job", tenant: str = "", address: str = "10.0.0.7") -> str:
    with pytest.raises(Refusal) as caught:
        of.check_may_join(job, tenant, IPv4Address(address))
    assert caught.value.code == "PERMISSION_DENIED"
    return caught.value.text


def test_a_certificate_is_valid_for_the_jobs_that_it_names() -> None:
    narrow = holder("wiresum:role/worker", "wiresum:job/night-*", "wiresum:job/a-job")
    for job in ("night-1", "a-job"):
        narrow.check_may_join(job, "", IPv4Address("10.0.0.7"))
    for job in ("a jobs", "Night-1", "my night-1", ""):
        assert "is for jobs 'night-*', 'a-job', and not for" in refusal(narrow, job)
    holder("wiresum:role/worker").check_may_join("any job", "", IPv4Address("10.0.0.7"))


def test_a_certificate_is_valid_for_the_tenants_that_it_names() -> None:
    one = holder("wiresum:tenant/vision")
    assert (one.tenant(""), one.tenant("vision")) == ("vision", "vision")
    assert "WIRESUM_TENANT" in refusal(one, tenant="speech")
    two = holder("wiresum:tenant/vision", "wiresum:tenant/speech")
    assert two.tenant("speech") == "speech"
    assert "is for 'vision', 'speech', and tenant '' was asked for" in refusal(two)


def test_a_caller_without_a_tenant_in_its_certificate_is_its_own_tenant() -> None:
    plain = holder()
    name = plain.name
    assert plain.tenant("") == plain.tenant(name) != ""
    assert "names no tenant, and 'vision' was asked for" in refusal(plain, tenant="vision")
    assert identify("ipv4:10.0.0.7:50123", {}).tenant("any") == "any", "without certificates any tenant is accepted"


def test_a_worker_may_use_the_callers_address_or_those_in_its_certificate() -> None:
    found = holder("10.1.0.7")
    for address in ("10.0.0.7", "10.1.0.7"):
        found.check_may_join("a-job", "", IPv4Address(address))
    assert "names no address 10.0.0.8" in refusal(found, address="10.0.0.8")
    assert "WIRESUM_ADDRESS" in refusal(found, address="127.0.0.1")


def test_a_caller_over_loopback_may_use_the_hosts_addresses_and_those_that_it_names() -> None:
    """A process of this host, or one behind a proxy there."""
    local = holder("192.0.2.7", peer="ipv4:127.0.0.1:5")
    for address in ("127.0.0.1", "127.0.0.2", "192.0.2.7"):
        local.check_may_join("a-job", "", IPv4Address(address))
    assert "names no address 192.0.2.77" in refusal(local, address="192.0.2.77")


def test_each_call_has_a_caller_of_its_own() -> None:
    async def serve(name: str) -> str:
        set_caller(Caller(name=name))
        await asyncio.sleep(0)
        return caller().name

    async def serve_all() -> list[str]:
        return await asyncio.gather(*(serve(name) for name in "abc"))

    assert asyncio.run(serve_all()) == ["a", "b", "c"]
    assert caller() == Caller()
