"""Cutting of long collectives into pieces. These tests need no network and no device."""

from __future__ import annotations

import pytest
import torch

from wiresum.agent.session import Dtype, Region
from wiresum.torch import plan as plans
from wiresum.torch.pieces import PIECE_BYTES, WHOLE_BYTES_MAX, cut
from wiresum.torch.plan import CollectiveKind, CollectivePlan

LANES = 360
EXACT_ELEMENTS_MAX = 4096


def plan_of(dtype: Dtype, sizes: list[int]) -> CollectivePlan:
    plan = CollectivePlan(CollectiveKind.ALL_REDUCE, dtype)
    address = 1 << 30
    for number, elements in enumerate(sizes):
        plan.regions.append(Region(address if number % 3 else None, address if number % 2 else None, elements))
        address += elements * plan.element_bytes + 64
    return plan


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16, Dtype.RAW])
@pytest.mark.parametrize(
    "megabytes", [[6.1], [64.0], [5.0, 0.0, 0.3, 9.7], [0.5] * 40, [6.0, 2.01], [8.0001], [0.001] * 7000]
)
def test_pieces_are_the_whole_in_order_cut_where_packets_end(dtype: Dtype, megabytes: list[float]) -> None:
    element_bytes = plan_of(dtype, []).element_bytes
    whole = plan_of(dtype, [int(size * 2**20) // element_bytes for size in megabytes])
    pieces = cut(whole, LANES)
    assert len(pieces) > 1
    parts = iter([region for piece in pieces for region in piece.regions])
    for region in whole.regions:
        done = 0
        while done < region.elements:
            part = next(parts)
            assert part.source == (None if region.source is None else region.source + done * element_bytes)
            assert part.destination == (
                None if region.destination is None else region.destination + done * element_bytes
            )
            done += part.elements
            assert done == region.elements or done % (4 * LANES) == 0
        assert done == region.elements
    assert next(parts, None) is None
    for piece in pieces:
        assert PIECE_BYTES // 2 <= piece.bytes <= WHOLE_BYTES_MAX + 4 * LANES * element_bytes
        assert sum(region.elements for region in piece.regions) > EXACT_ELEMENTS_MAX


def test_what_is_short_stays_whole() -> None:
    for tensor in (torch.zeros(1), torch.zeros(WHOLE_BYTES_MAX // 4)):
        (plan,) = plans.all_reduce([tensor])
        assert cut(plan, LANES) == [plan]
    assert cut(plans.barrier(), LANES)[0].kind is CollectiveKind.BARRIER


def test_a_piece_of_one_call_does_not_match_that_of_a_longer_one() -> None:
    shorter, longer = (cut(plan_of(Dtype.F32, [elements]), LANES) for elements in (4 << 20, 5 << 20))
    signatures = [piece.signature(bits=32, average=False) for piece in (*shorter, *longer)]
    assert shorter[0].regions == longer[0].regions and len(set(signatures)) == len(signatures)
