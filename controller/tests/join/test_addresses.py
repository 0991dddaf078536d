"""One class of address, by which all count that count callers by address."""

from __future__ import annotations

import pytest

from wiresum.controller.jobs.job import Asker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.security.caller import identify
from wiresum.controller.security.front import _address_and_peer
from wiresum.controller.security.shares import ADDRESS, Party
from wiresum.join.addresses import counted_as
from wiresum_lab.doubles.controller import JobsHarness, join_request

SAME = [
    ("10.0.0.7", "::ffff:10.0.0.7", "10.0.0.7"),
    ("2001:db8::1:2:3:4", "2001:db8::9", "2001:db8::/64"),
    ("fd00:4::2", "fd00:4:0:0:ffff::", "fd00:4::/64"),
]


@pytest.mark.parametrize(("one", "other", "counted"), SAME)
def test_addresses_that_one_host_may_have_count_as_one_everywhere(one: str, other: str, counted: str) -> None:
    for host in (one, other):
        assert counted_as(host) == counted
        by_front, peer = _address_and_peer(host, 5)
        caller = identify(peer, {})
        assert (by_front, caller.counted_address) == (counted, counted)
        assert caller.parties == (Party(ADDRESS, counted),)
    harness = JobsHarness(limits=Limits(waiting_per_host_max=1))
    harness.jobs.ask(join_request(job_name="first", rank=0, world_size=2), harness.now, Asker("", one))
    code, text = harness.refusal_of(
        lambda: harness.jobs.ask(join_request(job_name="second", rank=0, world_size=2), harness.now, Asker("", other))
    )
    assert (code, f"1 jobs that {counted} asked for" in text) == ("RESOURCE_EXHAUSTED", True)


@pytest.mark.parametrize(("one", "other"), [("10.0.0.7", "10.0.0.8"), ("fd00:4::2", "fd00:4:0:1::2")])
def test_those_of_different_hosts_do_not(one: str, other: str) -> None:
    assert counted_as(one) != counted_as(other)


@pytest.mark.parametrize("text", ["", "nonsense", "10.0.0.300"])
def test_what_is_no_address_counts_for_nobody(text: str) -> None:
    assert counted_as(text) == ""
