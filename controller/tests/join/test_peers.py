"""The text that names a worker in messages."""

from __future__ import annotations

from typing import Any

import pytest

from wiresum import join


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "rank 3 (10.0.0.7, process 9 on 'node7')"),
        ({"called_from": "10.0.0.7"}, "rank 3 (10.0.0.7, process 9 on 'node7')"),
        ({"called_from": "10.1.0.7"}, "rank 3 (10.0.0.7, called from 10.1.0.7, process 9 on 'node7')"),
        ({"certificate": "vision"}, "rank 3 (10.0.0.7, certificate 'vision', process 9 on 'node7')"),
        ({"host_name": ""}, "rank 3 (10.0.0.7, process 9)"),
        ({"global_rank": 7}, "rank 3, global rank 7 (10.0.0.7, process 9 on 'node7')"),
        ({"address": ""}, "rank 3 (process 9 on 'node7')"),
    ],
)
def test_verified_facts_come_before_the_workers_own_claims(fields: dict[str, Any], named: str) -> None:
    peer = join.Peer(rank=3, process_id=9, host_name="node7", address="10.0.0.7")
    peer.MergeFrom(join.Peer(**{name: value for name, value in fields.items() if value}))
    for name in (name for name, value in fields.items() if not value):
        peer.ClearField(name)
    assert join.describe_peer(peer) == named


@pytest.mark.parametrize(
    "host_name", ["10.9.9.9, certificate 'root'", "a') was lost: b (", "\x1b[2J\n", "\u202e", "x" * 255]
)
def test_a_claimed_host_name_stays_quoted_behind_the_address(host_name: str) -> None:
    named = join.describe_peer(join.Peer(rank=3, process_id=9, host_name=host_name, address="10.0.0.7"))
    begin = "rank 3 (10.0.0.7, process 9 on "
    assert named.startswith(begin)
    said = named.removeprefix(begin).removesuffix(")")
    assert said in (repr(host_name), repr(f"{'x' * 64}..."))
    assert named.isprintable()
    assert len(named) < 120
