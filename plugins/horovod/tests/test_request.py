"""Encoding of requests: a request survives the round trip, and any other message is refused as malformed."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiresum.horovod.torch.request import MalformedMessageError, Op, Request, RequestType, decode, encode

few = settings(max_examples=40)
counts = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
requests = st.integers(0, 3).flatmap(
    lambda tensors: st.builds(
        Request,
        kind=st.sampled_from(RequestType),
        name=st.text(),
        dtypes=st.tuples(*[st.text(max_size=8)] * tensors),
        shapes=st.tuples(*[counts] * tensors),
        op=st.sampled_from(Op),
        root=st.integers(-1, 2**20),
        prescale=st.floats(allow_nan=False),
        postscale=st.floats(allow_nan=False),
        splits=counts,
        members=counts,
        named=st.booleans(),
    )
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=3),
)


@few
@given(st.lists(requests, max_size=3))
def test_requests_survive_encoding(sent: list[Request]) -> None:
    assert decode(encode(sent)) == sent


@few
@given(st.binary(min_size=1) | anything.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_a_malformed_message(message: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        decode(message)


@few
@given(requests, st.integers(0, 10), anything)
def test_a_field_of_another_type_is_decoded_or_refused_as_malformed(
    request: Request, field: int, value: object
) -> None:
    row = json.loads(encode([request]))
    row[0][field] = value
    with contextlib.suppress(MalformedMessageError):
        assert isinstance(decode(json.dumps(row).encode())[0], Request)


def test_a_malformed_message_says_what_to_do() -> None:
    with pytest.raises(MalformedMessageError, match="run one version of wiresum at all ranks"):
        decode(b"[[1]]")
