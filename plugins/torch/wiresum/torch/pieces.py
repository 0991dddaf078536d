"""Cuts long collectives into pieces, so that one is copied to or from an accelerator while another is in the network.

Each piece is a collective of its own. All workers of a group must cut alike, so the pieces depend only on what is the
same everywhere, and a group in which any worker has an accelerator also cuts the tensors that are on the CPU. The sums
have the same bits as those of the whole: a region is cut only at multiples of what packets hold, and no piece is short
enough to be rounded differently (docs/numerics.md). A piece's signature has the sizes of the whole.
"""

from __future__ import annotations

from dataclasses import replace

from wiresum.agent.session import Region
from wiresum.torch.plan import CollectivePlan

PIECE_BYTES = 4 << 20
WHOLE_BYTES_MAX = PIECE_BYTES * 3 // 2
"""Longer collectives are cut; a piece has between half of PIECE_BYTES and this many bytes."""
_ELEMENTS_PER_WORD_MAX = 4
"""The most elements in a packet's word: elements may have 8 bits on the wire."""


def cut(plan: CollectivePlan, lanes: int) -> list[CollectivePlan]:
    """The plan's pieces, in order; the plan itself if it is short. `lanes` is the number of words in a packet."""
    if plan.bytes <= WHOLE_BYTES_MAX:
        return [plan]
    unit = lanes * _ELEMENTS_PER_WORD_MAX
    piece_elements = PIECE_BYTES // plan.element_bytes
    pieces: list[list[Region]] = [[]]
    used = 0
    for region in plan.regions:
        begin = 0
        while begin < region.elements:
            if used >= piece_elements:
                pieces.append([])
                used = 0
            room = max(unit, (piece_elements - used) // unit * unit)
            count = min(room, region.elements - begin)
            pieces[-1].append(_part(region, begin, count, plan.element_bytes))
            used += count
            begin += count
    if used < piece_elements // 2:
        pieces[-2].extend(pieces.pop())
    sizes = [region.elements for region in plan.regions]
    return [
        replace(plan, regions=regions, staged=[], about=(*plan.about, "piece", number, *sizes))
        for number, regions in enumerate(pieces)
    ]


def _part(region: Region, begin: int, count: int, element_bytes: int) -> Region:
    offset = begin * element_bytes
    source = region.source + offset if region.source is not None else None
    destination = region.destination + offset if region.destination is not None else None
    return Region(source, destination, count)
