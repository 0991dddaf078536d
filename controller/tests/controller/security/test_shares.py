"""Room that callers share: what one party can get, and what is left for others."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from wiresum.controller.security.front import FrontLimits
from wiresum.controller.security.interceptor import CALLS_AT_ONCE_MAX
from wiresum.controller.security.shares import ADDRESS, CERTIFICATE, TENANT, Party, Shares
from wiresum.join.constants import JOB_WORKERS_MAX

ROOMS = (CALLS_AT_ONCE_MAX, FrontLimits().proven)


def parties(name: str, *, tenant: str = "", address: str = "") -> tuple[Party, ...]:
    return (Party(ADDRESS, address or f"10.0.0.{name}"), Party(CERTIFICATE, name), Party(TENANT, tenant or name))


def take_all(shares: Shares, of: Iterable[Party], most: int = 1 << 20) -> int:
    """As many as it can have, up to `most`."""
    of = tuple(of)
    taken = 0
    while taken < most and shares.full(of) is None:
        shares.take(of)
        taken += 1
    return taken


@pytest.mark.parametrize("room", ROOMS)
def test_the_largest_job_finds_room_behind_one_address_and_with_one_certificate(room: int) -> None:
    """Some workers have two for a moment."""
    assert take_all(Shares(room), parties("all", address="10.0.0.1")) >= 1.8 * JOB_WORKERS_MAX


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("behind", ["10.0.0.1", "10.0.0.66"])
def test_it_also_does_after_another_tenant_has_taken_all_that_it_can(room: int, behind: str) -> None:
    """`behind`: the address of the attacker, or another."""
    shares = Shares(room)
    for address in range(60, 100):
        take_all(shares, parties("mallory", address=f"10.0.0.{address}"))
    assert take_all(shares, parties("all", address=behind)) >= JOB_WORKERS_MAX


def test_a_tenant_that_has_all_that_it_can_leaves_as_much_for_others_however_many_certificates_it_has() -> None:
    shares = Shares(1000)
    taken = sum(take_all(shares, parties(f"c{number}", tenant="mallory")) for number in range(50))
    assert taken == shares.held(Party(TENANT, "mallory")) == 500
    assert take_all(shares, parties("other")) >= 200


def test_a_certificate_leaves_room_for_others_of_its_tenant() -> None:
    shares = Shares(1000)
    take_all(shares, parties("lost", tenant="vision"))
    assert take_all(shares, parties("kept", tenant="vision")) >= 20


def test_a_caller_without_a_certificate_leaves_a_quarter_for_other_addresses() -> None:
    shares = Shares(1000)
    assert take_all(shares, [Party(ADDRESS, "10.0.0.66")]) == 750
    assert take_all(shares, [Party(ADDRESS, "10.0.0.7")]) > 100


def test_a_certificate_of_several_tenants_counts_for_each() -> None:
    shares = Shares(1000)
    take_all(shares, (*parties("both", tenant="vision"), Party(TENANT, "speech")))
    before = Shares(1000)
    assert take_all(shares, parties("one", tenant="speech")) < take_all(before, parties("one", tenant="speech")) // 4


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_a_newcomer_finds_room(seed: int) -> None:
    """Of several tenants at several addresses, at any time, as long as there is one free place for each."""
    chance, shares = random.Random(seed), Shares(500)
    held: list[tuple[Party, ...]] = []
    for _ in range(3000):
        tenant = str(chance.randrange(6))
        one = parties(f"{tenant}-{chance.randrange(3)}", tenant=tenant, address=str(chance.randrange(4)))
        if held and chance.random() < 0.2:
            shares.give_back(held.pop(chance.randrange(len(held))))
        elif shares.full(one) is None:
            shares.take(one)
            held.append(one)
        assert shares.taken == len(held) < shares.room
        assert shares.full(parties("new")) is None
    for one in held:
        shares.give_back(one)
    assert (shares.taken, len(shares)) == (0, 0)


def test_the_refusal_says_who_has_how_many() -> None:
    shares = Shares(8)
    take_all(shares, parties("mallory"))
    full = shares.full(parties("mallory"))
    assert full is not None
    assert shares.why_full(full, "calls in progress") == (
        "certificate 'mallory' has 4 calls in progress, and no more while 4 of 8 are free for others"
    )
