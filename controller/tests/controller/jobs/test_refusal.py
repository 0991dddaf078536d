from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal, check_join, data_address
from wiresum_lab import lookups
from wiresum_lab.doubles.controller import join_request


def endpoint(address: str = "10.0.0.1", port: int = 5000) -> join.Endpoint:
    return join.Endpoint(address=address, port=port)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"job_name": ""}, "job_name"),
        ({"job_name": "x" * 129}, "job_name"),
        ({"job_name": "ä"}, "job_name"),
        ({"job_name": "aa$(touch x)"}, "job_name"),
        ({"job_name": "-rf"}, "job_name"),
        ({"job_name": "two words"}, "job_name"),
        ({"tenant": "a b"}, "tenant"),
        ({"job_name": "two\nlines"}, "job_name"),
        ({"host_name": "x" * 256}, "host_name"),
        ({"host_name": "\x1b[2J"}, "host_name"),
        ({"software_version": "1" * 65}, "software_version"),
        ({"agreed": {f"WIRESUM_{number}": "1" for number in range(17)}}, "agreed"),
        ({"agreed": {"WIRESUM_BITS": "1" * 65}}, "agreed"),
        ({"agreed": {"WIRESUM\tBITS": "1"}}, "agreed"),
        ({"attempt": "a" * 65}, "attempt"),
        ({"tenant": "t" * 65}, "tenant"),
        ({"tenant": "a\tb"}, "tenant"),
        ({"job_token": "j" * 257}, "job_token"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 4097}, "world_size"),
        ({"world_size": 4, "rank": 4}, "rank"),
        ({"world_size": 4, "rank": 2**32 - 1}, "rank"),
        ({"threads_max": 0}, "threads_max"),
        ({"threads_max": 17}, "threads_max"),
        ({"lanes_max": 0}, "lanes_max"),
        ({"lanes_max": 16371}, "lanes_max"),
        ({"slots": 32769}, "slots"),
        ({"endpoint": endpoint("")}, "endpoint.address"),
        ({"endpoint": endpoint("10.0.0")}, "endpoint.address"),
        ({"endpoint": endpoint("10.0.0.256")}, "endpoint.address"),
        ({"endpoint": endpoint("::1")}, "endpoint.address"),
        ({"endpoint": endpoint("localhost")}, "endpoint.address"),
        ({"endpoint": endpoint("0.0.0.0")}, "endpoint.address"),
        ({"endpoint": endpoint("224.0.0.1")}, "endpoint.address"),
        ({"endpoint": endpoint("255.255.255.255")}, "endpoint.address"),
        ({"endpoint": endpoint(port=0)}, "endpoint.port"),
        ({"endpoint": endpoint(port=65533), "threads_max": 4}, "endpoint.port"),
        ({"endpoint": endpoint(port=2**32 - 1)}, "endpoint.port"),
    ],
)
def test_an_invalid_request_is_refused_with_the_name_of_its_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_join(join_request(**fields))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert caught.value.text.startswith(named + " ")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"job_name": "x" * 128, "host_name": "h" * 255},
        {"world_size": 32, "rank": 31},
        {"threads_max": 16, "lanes_max": 16370, "slots": 32768},
        {"endpoint": endpoint(port=65532), "threads_max": 4},
        {"host_name": "", "software_version": ""},
        {"attempt": "a" * 64, "tenant": "t" * 64, "job_token": "j" * 256},
    ],
)
def test_extreme_but_valid_values_are_accepted(fields: dict[str, object]) -> None:
    check_join(join_request(**fields))


@pytest.mark.parametrize("version", [0, 1, join.PROTOCOL_VERSION - 1, join.PROTOCOL_VERSION + 1, 2**32 - 1])
def test_another_protocol_version_is_refused_with_both_versions(version: int) -> None:
    with pytest.raises(Refusal) as caught:
        check_join(join_request(protocol_version=version, software_version="9.9"))
    assert caught.value.code == "FAILED_PRECONDITION"
    assert f"wiresum 9.9) speaks version {version}" in caught.value.text
    assert "install the same release" in caught.value.text


@given(address=st.one_of(st.sampled_from(lookups.ODD_ADDRESSES), st.text(max_size=300), st.text("0123456789.:%x\0")))
def test_an_address_is_one_that_the_worker_could_have_or_is_refused(address: str) -> None:
    endpoint_there = endpoint(address)
    with lookups.noted() as names:
        try:
            found = str(data_address(endpoint_there))
        except Refusal as refusal:
            assert refusal.code == "INVALID_ARGUMENT"
            assert len(refusal.text) < 1000
        else:
            assert found == address, "one address has one form, by which workers are compared"
            assert socket.inet_pton(socket.AF_INET, address)
    assert names == []


@given(raw=st.binary(max_size=200), version=st.booleans())
def test_any_parsable_request_is_accepted_or_refused(raw: bytes, version: bool) -> None:
    request = join.JoinRequest()
    try:
        request.ParseFromString(raw)
    except Exception as error:
        assert type(error).__name__ == "DecodeError"
        return
    if version:
        request.protocol_version = join.PROTOCOL_VERSION
    try:
        check_join(request)
    except Refusal as refusal:
        assert refusal.text
        assert len(refusal.text) < 1000
