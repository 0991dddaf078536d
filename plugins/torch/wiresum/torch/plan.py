"""What each collective of `torch.distributed` is on the wire: tensors in, regions of memory out.

Pure functions: a plan holds addresses, and the tensors that own them.

Sums travel as numbers: fp32, fp16, bf16, fp8 and int32. Copies (broadcast, all-gather) travel as raw bytes, so any
dtype passes bit for bit. Of a small all-reduce of another type or operator all contributions travel, and each worker's
engine reduces them by itself (`CollectivePlan.reduction`). All workers have the same regions, but different sources and
destinations, so one state machine serves all collectives (see collective.hpp).

A tensor whose memory is one run in row-major order is used in place. Any other is *staged*: copied into such memory on
the same device first, and copied back at the end. That includes dense tensors in another order, such as channels-last:
added in place, they would give a wrong sum, without an error, if another worker had the same tensor in row-major order.
Addresses may be those of an accelerator's memory, which accelerators.py brings to the host.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from wiresum.agent import extent
from wiresum.agent.session import Dtype, Element, Operator, Reduction, Region

Tensors: TypeAlias = list[torch.Tensor]


class CollectiveKind(IntEnum):
    """The collectives that run in the network. The values go into signatures."""

    ALL_REDUCE = 1
    REDUCE = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    ALL_GATHER = 5
    BARRIER = 6
    SPARSE_ALL_REDUCE = 7
    THROUGH_GLOO = 8
    """A barrier beside a collective of Gloo."""
    GATHERED_ALL_REDUCE = 9


SUMMING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)

SUMMED: dict[torch.dtype, Dtype] = {
    torch.float32: Dtype.F32,
    torch.float16: Dtype.F16,
    torch.bfloat16: Dtype.BF16,
    torch.float8_e4m3fn: Dtype.E4M3,
    torch.float8_e5m2: Dtype.E5M2,
    torch.int32: Dtype.I32,
}
"""The types that the network adds."""

GATHERED_BYTES_MAX = 64 << 10
"""The most bytes that all contributions to a small all-reduce may have together."""

_INTEGERS = {
    torch.int64: Element.I64,
    torch.int32: Element.I32,
    torch.int8: Element.I8,
    torch.uint8: Element.U8,
    torch.bool: Element.BOOL,
}
_NUMBERS = {
    torch.float64: Element.F64,
    torch.float32: Element.F32,
    torch.float16: Element.F16,
    torch.bfloat16: Element.BF16,
} | _INTEGERS
_OTHERS = _NUMBERS.keys() - SUMMED.keys()

_REDUCTIONS: dict[str, tuple[Operator, Set[torch.dtype]]] = {
    "SUM": (Operator.SUM, _OTHERS),
    "AVG": (Operator.SUM, _OTHERS - {torch.bool}),
    "PREMUL_SUM": (Operator.SUM, {torch.float64}),
    "PRODUCT": (Operator.PRODUCT, _NUMBERS.keys()),
    "MIN": (Operator.MIN, _NUMBERS.keys()),
    "MAX": (Operator.MAX, _NUMBERS.keys()),
    "BAND": (Operator.BAND, _INTEGERS.keys()),
    "BOR": (Operator.BOR, _INTEGERS.keys()),
    "BXOR": (Operator.BXOR, _INTEGERS.keys()),
}
"""What reduces contributions, and types that Gloo reduces and the network does not, for each operator."""

_SUMS = ("SUM", "AVG", "PREMUL_SUM")
_ELEMENT_BYTES = {network: dtype.itemsize for dtype, network in SUMMED.items()} | {Dtype.RAW: 1}
_elements: Callable[[Region], int] = attrgetter("elements")


@dataclass(slots=True)
class CollectivePlan:
    """One operation of a session."""

    kind: CollectiveKind
    dtype: Dtype
    root: int = -1
    integer_bits: int = 32
    """The size of integers on the wire."""
    regions: list[Region] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    """The owners of the regions' memory, which must live until the operation is done."""
    staged: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """(the caller's tensor, the memory whose result it gets)."""
    is_copied: bool = False
    """True if a tensor is staged, in or out."""
    factor: float | torch.Tensor | None = None
    """Contributions are multiplied by this factor, in their own type."""
    reduction: Reduction | None = None
    """Each worker reduces all contributions by this; None for sums and copies."""
    about: tuple[object, ...] = ()
    """Further values that tell one call from another. The repr() is the same in all releases of Python and PyTorch."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to do. A barrier has no elements, but is not empty."""
        return not any(map(_elements, self.regions)) and self.kind is not CollectiveKind.BARRIER

    @property
    def sums(self) -> bool:
        """True for a sum in the network, False for a copy or a reduction."""
        return self.kind in SUMMING

    @property
    def device(self) -> torch.device:
        """The memory's device. Raises ValueError if the tensors are on several devices."""
        return device_of(self.kept)

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[self.dtype]

    @property
    def may_be_sparse(self) -> bool:
        """True if blocks that are zero at all workers may be left out."""
        return self.sums

    @property
    def bytes(self) -> int:
        """Bytes of the tensors, as the caller sees them."""
        return sum(map(_elements, self.regions)) * self.element_bytes

    def signature(self, *, bits: int, average: bool, fixed_scale: float | None = None) -> int:
        """16 bits that differ, with high probability, between two calls that do not belong together."""
        sizes = tuple(map(_elements, self.regions))
        call = (int(self.kind), self.dtype.value, self.root, bits, average, fixed_scale, sizes)
        return call_signature((*call, *self.about))

    def finish(self) -> None:
        """Copies results from staging memory to the caller's tensors."""
        if self.staged:
            copy_back(self.staged)

    def source(self, tensor: torch.Tensor, *, copied: bool = False) -> int:
        """The address of memory that holds the tensor's values: a copy's if `copied`."""
        return self.address(tensor, copied_out=False, copied=copied)

    def destination(self, tensor: torch.Tensor) -> int:
        """The address of memory whose content the tensor gets."""
        return self.address(tensor, copied_in=False)

    def address(
        self, tensor: torch.Tensor, *, copied_in: bool = True, copied_out: bool = True, copied: bool = False
    ) -> int:
        """The address of memory that holds the tensor's values and whose content the tensor gets."""
        memory = tensor
        if copied or not in_place(tensor) or (copied_in and self.factor is not None):
            self.is_copied = True
            memory = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            if copied_in:
                memory.copy_(multiplied(tensor, self.factor))
            if copied_out:
                self.staged.append((tensor, memory))
        self.kept.append(memory)
        return memory.data_ptr()


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    """The tensors' device. Raises ValueError if they are on several devices."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(f"the tensors of one collective must be on one device, not on {sorted(map(str, devices))}")
    return devices.pop() if devices else torch.device("cpu")


def is_fp8(tensor: torch.Tensor) -> bool:
    """True for any float of one byte. PyTorch neither multiplies nor divides these, and Gloo does not reduce them."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def in_place(tensor: torch.Tensor) -> bool:
    """True if the tensor's own memory holds its values in row-major order."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def overlap(spans: Iterable[tuple[int, int]]) -> bool:
    """True if two spans of addresses share memory: a sum that is written to one would be added for the other again."""
    return any(begin < end for (_, end), (begin, _) in pairwise(sorted(spans)))


def overlap_with(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """True if the tensor and one of the others share memory."""
    return any(overlap([_span(tensor), _span(other)]) for other in others)


def copy_back(staged: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies results from staging memory into their tensors."""
    with torch.no_grad():
        for tensor, memory in staged:
            tensor.detach().copy_(memory)


def operator_name(operator: Any) -> str:
    """The operator's name, such as `SUM`. PyTorch passes a member of the enumeration or an object that has one."""
    return str(getattr(operator, "op", operator)).rpartition(".")[2]


def factor_of(operator: Any) -> float | torch.Tensor | None:
    """The factor of PREMUL_SUM; None for other operators."""
    is_premultiplied = operator == dist.ReduceOp.PREMUL_SUM
    return operator.__getstate__()[1] if is_premultiplied else None  # PyTorch 2.11 has the factor nowhere else


def multiplied(tensor: torch.Tensor, factor: float | torch.Tensor | None) -> torch.Tensor:
    """The tensor's values times the factor, rounded to the tensor's type."""
    values = tensor.detach()
    return values if factor is None else (values * factor).to(values.dtype)


def divide(tensors: list[torch.Tensor], divisor: int) -> None:
    """Divides in place. Integers are rounded towards zero."""
    with torch.no_grad():
        for tensor in tensors:
            exact = tensor.is_floating_point() or tensor.is_complex()
            tensor.detach().div_(divisor, rounding_mode=None if exact else "trunc")


def require_memory(tensors: Iterable[torch.Tensor]) -> None:
    """Raises ValueError if a tensor, or a part of a sparse tensor, has elements that its storage does not hold. Every
    call begins with this check, since later steps read these addresses."""
    for tensor in tensors:
        if tensor.layout is torch.strided:
            extent.require_memory(tensor)
        elif tensor.layout is torch.sparse_coo:
            require_memory((tensor._indices(), tensor._values()))


def carries(tensors: Iterable[torch.Tensor], *, summed: bool) -> bool:
    """True if the network can carry these tensors. (For sparse ones see rows.py.)"""
    for tensor in tensors:
        carried = tensor.dtype in SUMMED if summed else not tensor.is_quantized
        if not carried or tensor.layout is not torch.strided:
            return False
    return True


def all_reduce_of(tensors: Sequence[torch.Tensor], operator: Any, size: int) -> list[CollectivePlan] | None:
    """The plans of an all-reduce of dense tensors; None if Gloo has to do it, which depends only on what is the same at
    all workers."""
    name, factor = operator_name(operator), factor_of(operator)
    if name in _SUMS and carries(tensors, summed=True):
        return all_reduce(tensors, factor)
    op, dtypes = _REDUCTIONS.get(name, (None, ()))
    are_known = all(tensor.dtype in dtypes and tensor.layout is torch.strided for tensor in tensors)
    if op is None or not are_known or size * sum(map(_bytes, tensors)) > GATHERED_BYTES_MAX:
        return None
    return _by_dtype(tensors, functools.partial(_reduction_of, name=name, op=op, factor=factor))


def _reduction_of(dtype: torch.dtype, *, name: str, op: Operator, factor: Any) -> CollectivePlan:
    about, reduction = (name, str(dtype)), (_NUMBERS[dtype], op)
    return CollectivePlan(
        CollectiveKind.GATHERED_ALL_REDUCE, Dtype.RAW, factor=factor, about=about, reduction=reduction
    )


def _sum_of(kind: CollectiveKind, dtype: torch.dtype, factor: Any, root: int = -1) -> CollectivePlan:
    about = () if factor is None else ("PREMUL_SUM",)
    return CollectivePlan(kind, SUMMED[dtype], root, factor=factor, about=about)


def all_reduce(tensors: Sequence[torch.Tensor], factor: Any = None) -> list[CollectivePlan]:
    return _by_dtype(tensors, lambda dtype: _sum_of(CollectiveKind.ALL_REDUCE, dtype, factor))


def _by_dtype(
    tensors: Sequence[torch.Tensor], plan_of: Callable[[torch.dtype], CollectivePlan], *, copied: bool = False
) -> list[CollectivePlan]:
    """One plan for each dtype, in the order in which dtypes first appear. Tensors that share memory are copied."""
    plans: dict[torch.dtype, CollectivePlan] = {}
    spans = []
    for tensor in tensors:
        if (plan := plans.get(tensor.dtype)) is None:
            plan = plans[tensor.dtype] = plan_of(tensor.dtype)
        address, size = plan.address(tensor, copied=copied), _bytes(tensor)
        plan.regions.append(Region(address, address, size // plan.element_bytes))
        spans.append((address, address + size))
    if len(spans) > 1 and not copied and overlap(spans):
        return _by_dtype(tensors, plan_of, copied=True)
    return list(plans.values())


def reduce(tensor: torch.Tensor, *, root: int, rank: int, factor: Any = None) -> CollectivePlan:
    plan = _sum_of(CollectiveKind.REDUCE, tensor.dtype, factor, root)
    if rank == root:
        address = plan.address(tensor)
        plan.regions.append(Region(address, address, tensor.numel()))
    else:
        plan.regions.append(Region(plan.source(tensor), None, tensor.numel()))
    return plan


def broadcast(tensors: Sequence[torch.Tensor], *, root: int, rank: int) -> CollectivePlan:
    plan = CollectivePlan(CollectiveKind.BROADCAST, Dtype.RAW, root=root, about=_types(tensors))
    for tensor in tensors:
        if rank == root:
            plan.regions.append(Region(plan.source(tensor), None, _bytes(tensor)))
        else:
            plan.regions.append(Region(None, plan.destination(tensor), _bytes(tensor)))
    return plan


def all_gather(gathers: Sequence[tuple[Sequence[torch.Tensor], torch.Tensor]], *, rank: int) -> CollectivePlan:
    """Each gather is (a tensor for each rank's contribution, my contribution). Contributions may differ in size."""
    contributions = [contribution for _, contribution in gathers]
    plan = CollectivePlan(CollectiveKind.ALL_GATHER, Dtype.RAW, about=_types(contributions))
    for outputs, contribution in gathers:
        _require_same_dtype("all-gather", contribution, outputs)
        _require_elements("all-gather", "output", rank, outputs[rank].numel(), "my input", contribution.numel())
        copied = contribution.data_ptr() != outputs[rank].data_ptr() and overlap_with(contribution, outputs)
        for owner, output in enumerate(outputs):
            source = plan.source(contribution, copied=copied) if owner == rank else None
            plan.regions.append(Region(source, plan.destination(output), _bytes(output)))
    return plan


def all_gather_single(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], *, rank: int, size: int) -> CollectivePlan:
    """Each pair is (all contributions in one tensor, my contribution)."""
    contributions = [contribution for _, contribution in pairs]
    plan = CollectivePlan(CollectiveKind.ALL_GATHER, Dtype.RAW, about=_types(contributions))
    for output, contribution in pairs:
        _require_same_dtype("all-gather", contribution, [output])
        _require_whole("all-gather", "output", output.numel(), "input", contribution.numel(), size)
        part = _bytes(contribution)
        base = plan.destination(output)
        copied = contribution.data_ptr() != base + rank * part and overlap_with(contribution, [output])
        for owner in range(size):
            source = plan.source(contribution, copied=copied) if owner == rank else None
            plan.regions.append(Region(source, base + owner * part, part))
    return plan


def reduce_scatter(
    scatters: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]], *, rank: int, factor: Any = None
) -> list[CollectivePlan]:
    """Each scatter is (my part of the sum, a contribution to each rank's part). One plan for each dtype."""
    plans: dict[torch.dtype, CollectivePlan] = {}
    for output, contributions in scatters:
        _require_same_dtype("reduce-scatter", output, contributions)
        mine = contributions[rank].numel()
        _require_elements("reduce-scatter", "input", rank, mine, "my output", output.numel())
        plan = plans.setdefault(output.dtype, _sum_of(CollectiveKind.REDUCE_SCATTER, output.dtype, factor))
        for owner, contribution in enumerate(contributions):
            destination = plan.destination(output) if owner == rank else None
            plan.regions.append(Region(plan.source(contribution), destination, contribution.numel()))
    return list(plans.values())


def reduce_scatter_single(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], *, rank: int, size: int, factor: Any = None
) -> list[CollectivePlan]:
    """Each pair is (my part of the sum, contributions to all parts in one tensor). One plan for each dtype."""
    plans: dict[torch.dtype, CollectivePlan] = {}
    for output, contribution in pairs:
        _require_same_dtype("reduce-scatter", output, [contribution])
        _require_whole("reduce-scatter", "input", contribution.numel(), "output", output.numel(), size)
        plan = plans.setdefault(output.dtype, _sum_of(CollectiveKind.REDUCE_SCATTER, output.dtype, factor))
        base = plan.source(contribution)
        for owner in range(size):
            destination = plan.destination(output) if owner == rank else None
            plan.regions.append(Region(base + owner * _bytes(output), destination, output.numel()))
    return list(plans.values())


def barrier() -> CollectivePlan:
    return CollectivePlan(CollectiveKind.BARRIER, Dtype.I32)


def through_gloo(
    name: str, operator: str, root: int, dtypes: Iterable[torch.dtype], sizes: list[int]
) -> CollectivePlan:
    """The barrier beside a collective of Gloo. `sizes` are given if they are the same at all workers."""
    about = (name, operator, *sorted(map(str, dtypes)), *sizes)
    return CollectivePlan(CollectiveKind.THROUGH_GLOO, Dtype.I32, root=root, about=about)


def _types(tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """The dtypes, for signatures of collectives that carry bytes, which do not show the type."""
    return tuple(str(tensor.dtype) for tensor in tensors)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + _bytes(tensor)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _require_same_dtype(name: str, tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise ValueError(f"{name}: tensors of one call must have one dtype, not {tensor.dtype} and {other.dtype}")


def _require_elements(name: str, what: str, rank: int, have: int, other: str, want: int) -> None:
    if have != want:
        raise ValueError(f"{name}: the {what} for rank {rank} has {have} elements, and {other} has {want}")


def _require_whole(name: str, whole: str, whole_elements: int, part: str, part_elements: int, size: int) -> None:
    if whole_elements != size * part_elements:
        raise ValueError(
            f"{name}: the {whole} has {whole_elements} elements; with {size} workers and an {part} of "
            f"{part_elements} elements it must have {size * part_elements}"
        )


@functools.lru_cache(maxsize=1024)
def call_signature(call: tuple[object, ...]) -> int:  # R2.20
    """A signature of 16 bits. Python's hash() will not do, since workers may run different versions of Python."""
    digest = zlib.crc32(repr(call).encode())
    return (digest ^ (digest >> 16)) & 0xFFFF
