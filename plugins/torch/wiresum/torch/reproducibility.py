"""`wiresum.torch.reproducible`: mean gradients that have the same bits for any number of workers.

Each backward pass is a micro-batch. Its gradients are added to sums of digits (host_agent/src/numeric/digit_sums.hpp),
as integers that no order and no split of the micro-batches changes. `reduce` lets the workers agree on the largest
magnitude of each block of 256 elements, adds the words of all workers as int32, and rounds once. Both are plain
all-reduces, so any backend of torch.distributed does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from wiresum.agent._native import DigitSums
from wiresum.agent.agreement import ranks_text, require_agreement
from wiresum.torch.plan import require_memory

BUCKET_BYTES = 25_000_000
"""Bytes of words in a bucket, as in DDP; the next bucket is packed while one is on its way."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.int32]
_Extents: TypeAlias = tuple[_Bytes, _Bytes]
_Bucket: TypeAlias = "list[tuple[_Gradient, _Extents]]"

_FAILED = 255
"""Stands for a failure in place of a count of micro-batches."""
_NO_COUNTS = np.empty(0, np.int32)


class _Gradient:
    """The sum of one parameter's gradients over micro-batches."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, sums: DigitSums) -> None:
        self.name = name
        self.parameter = parameter
        self._sums = sums
        self.elements = parameter.numel()
        self.blocks = -(-self.elements // DigitSums.BLOCK)
        self.lanes = np.empty(sums.lanes(self.elements), np.int32)
        self.counts = _NO_COUNTS
        self.extents: _Extents = (np.zeros(self.blocks, np.uint8), np.zeros(self.blocks, np.uint8))
        self.seen = False

    def clear(self) -> None:
        for extents in self.extents:
            extents[:] = 0
        self.counts = _NO_COUNTS
        self.seen = False

    def add(self, gradient: torch.Tensor) -> None:
        self.seen = True
        part = gradient.detach().contiguous().view(-1).numpy()
        if self._sums.add(part, self.extents[0], self.extents[1], self.lanes):
            self.require_counts()
            self._sums.count_special(part, self.counts)

    def require_counts(self) -> None:
        if not self.counts.size:
            self.counts = np.zeros(self.elements, np.int32)


class Reproducible:
    """The result of `reproducible`: takes gradients from backward passes, and gives back their mean."""

    def __init__(
        self, model: torch.nn.Module, microbatches: int, group: dist.ProcessGroup | None, words: int | None
    ) -> None:
        self.microbatches = microbatches
        self._group = group
        alone = group is None and not (dist.is_available() and dist.is_initialized())
        self._rank, self._size = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        if self._rank < 0:
            raise ValueError("reproducible: this process is not in the group that was given")
        self._global_ranks = [0] if alone else dist.get_process_group_ranks(group)
        self._require_agreement(model, words)
        self._sums = DigitSums(microbatches, words or 0)
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._gradients = [_Gradient(name, parameter, self._sums) for name, parameter in named]
        self._frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        self._broadcast(model)
        self._backwards = 0
        self._open: int | None = None
        self._failure = ""
        self._hooks = [
            gradient.parameter.register_post_accumulate_grad_hook(self._hook(gradient)) for gradient in self._gradients
        ]

    def mine(self) -> range:
        """The indices of this worker's micro-batches among all of a step: a contiguous share, perhaps empty."""
        return range(self.microbatches * self._rank // self._size, self.microbatches * (self._rank + 1) // self._size)

    def reduce(self) -> None:
        """Ends a step: every parameter's `.grad` becomes the mean over all micro-batches, the same bits everywhere.

        A parameter without a gradient in any micro-batch has None; one without a gradient in some counts as 0 there.
        All workers must call `reduce`. Raises RuntimeError at all of them, and forgets the step's gradients, if a
        worker has not done its micro-batches.
        """
        try:
            seen, extents = self._agree()
            self._exchange(seen, extents)
        finally:
            self._backwards, self._open, self._failure = 0, None, ""
            for gradient in self._gradients:
                gradient.clear()

    def close(self) -> None:
        """Leaves the model as it was: gradients stay where backward passes put them."""
        for hook in self._hooks:
            hook.remove()

    # ---- backward passes

    def _hook(self, gradient: _Gradient) -> Callable[[torch.Tensor], None]:
        def take(parameter: torch.Tensor) -> None:
            try:
                self._begin_backward()
                value, parameter.grad = parameter.grad, None
                _require_dense(gradient.name, value)
                gradient.add(value)  # type: ignore[arg-type]
            except Exception as error:
                self._failure = self._failure or str(error)
                raise

        return take

    def _begin_backward(self) -> None:
        """Called at a parameter's gradient: notes a new backward pass, and has it counted when it ends."""
        task = torch._C._current_graph_task_id()
        if task == self._open:
            return
        if self._open is not None:
            raise RuntimeError("reproducible: a backward pass did not end: it raised, or was nested in another one")
        if self._backwards == len(self.mine()):
            raise RuntimeError(
                f"reproducible: a backward pass too many: this worker has {len(self.mine())} micro-batches a step. "
                "Call reduce() after the last; of several losses of a micro-batch, call backward() on the sum"
            )
        self._open = task
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._open = None
        self._backwards += 1

    # ---- reduce

    def _agree(self) -> tuple[_Bytes, list[_Extents]]:
        """Returns, for each parameter, whether anybody saw a gradient (1) or an Inf or NaN (2); and the extents of all
        blocks.

        Takes one all-reduce of the maximum of bytes: 1 for 256 elements, or 2 with all words.
        """
        if self._open is not None:
            self._failure = self._failure or "a backward pass did not end: it raised"
        if any(parameter.requires_grad for parameter in self._frozen):
            self._failure = "a parameter was frozen when reproducible() was called: close(), and call it again"
        rows = 2 if self._sums.exact else 1
        blocks = sum(gradient.blocks for gradient in self._gradients)
        message = np.zeros(self._size + len(self._gradients) + rows * blocks, np.uint8)
        counts, seen, rest = np.split(message, [self._size, self._size + len(self._gradients)])
        counts[self._rank] = _FAILED if self._failure else self._backwards
        at = 0
        extents: list[_Extents] = []
        for index, gradient in enumerate(self._gradients):
            seen[index] = 2 if gradient.counts.size else int(gradient.seen)
            part = rest[at : at + rows * gradient.blocks].reshape(rows, gradient.blocks)
            part[:] = gradient.extents[:rows]
            extents.append((part[0], part[-1]))  # only sums of all words use the second
            at += part.size
        mine = message.copy()
        if work := self._all_reduce(message, dist.ReduceOp.MAX):
            work.wait()
        self._require_all(counts)
        if (message < mine).any() or (seen > 2).any():
            raise RuntimeError(
                "reproducible: a maximum over all workers came back below this worker's own, or as none that a worker "
                "has: something on the way alters what workers send, or not all of them run the same version"
            )
        return seen, extents

    def _require_all(self, counts: _Bytes) -> None:
        wrong = []
        for rank, count in enumerate(counts):
            named = ranks_text([rank], [self._global_ranks[rank]])
            share = self.microbatches * (rank + 1) // self._size - self.microbatches * rank // self._size
            if count == _FAILED:
                wrong.append(f"{named} failed" + (f" ({self._failure})" if rank == self._rank else ""))
            elif count != share:
                wrong.append(f"{named} did {count} instead of {share}")
        if wrong:
            raise RuntimeError(
                f"reproducible: not all {self.microbatches} micro-batches are there: {'; '.join(wrong)}. "
                "Each worker calls backward() once for each index in mine(), and then reduce()"
            )

    def _exchange(self, seen: _Bytes, extents: list[_Extents]) -> None:
        sent: list[tuple[_Bucket, _Words, Any]] = []
        bucket: _Bucket = []
        size = 0
        for gradient, found, agreed in zip(self._gradients, seen, extents, strict=True):
            if not found:
                gradient.parameter.grad = None
                continue
            if found == 2:
                gradient.require_counts()
            bucket.append((gradient, agreed))
            size += self._size_of(gradient, agreed)
            if 4 * size >= BUCKET_BYTES:
                sent.append(self._send(bucket, size))
                bucket, size = [], 0
        sent.append(self._send(bucket, size))
        for bucket, words, work in sent:
            if work:
                work.wait()
            self._receive(bucket, words)

    def _size_of(self, gradient: _Gradient, agreed: _Extents) -> int:
        return self._sums.packed(agreed[0], agreed[1], gradient.elements) + gradient.counts.size

    def _send(self, bucket: _Bucket, size: int) -> tuple[_Bucket, _Words, Any]:
        words = np.empty(size, np.int32)
        at = 0
        for gradient, agreed in bucket:
            end = at + self._size_of(gradient, agreed)
            middle = end - gradient.counts.size
            self._sums.pack(
                agreed[0],
                agreed[1],
                gradient.extents[0],
                gradient.extents[1],
                gradient.lanes,
                gradient.elements,
                words[at:middle],
            )
            words[middle:end] = gradient.counts
            at = end
        return bucket, words, self._all_reduce(words, dist.ReduceOp.SUM)

    def _receive(self, bucket: _Bucket, words: _Words) -> None:
        at = 0
        for gradient, agreed in bucket:
            end = at + self._size_of(gradient, agreed)
            middle = end - gradient.counts.size
            mean = torch.empty(gradient.parameter.shape, dtype=torch.float32, device="cpu")
            self._sums.join(
                agreed[0], agreed[1], words[at:middle], words[middle:end], self.microbatches, mean.view(-1).numpy()
            )
            gradient.parameter.grad = mean
            at = end

    def _all_reduce(self, numbers: _Bytes | _Words, operation: Any) -> Any:
        """Sums in place; returns the work to wait for, or None if there is nothing to do."""
        if self._size == 1 or not numbers.size:
            return None
        return dist.all_reduce(torch.from_numpy(numbers), operation, self._group, async_op=True)

    # ---- start

    def _require_agreement(self, model: torch.nn.Module, words: int | None) -> None:
        def checked() -> dict[str, Any]:
            _require_plain(model, self.microbatches, words)
            return {
                "microbatches": self.microbatches,
                "words": words,
                "tensor": {name: _shown(tensor) for name, tensor in _tensors(model)},
                # Other values of these settings give a micro-batch's gradient other bits.
                "PyTorch": torch.__version__,
                "instructions": torch.backends.cpu.get_cpu_capability(),
                "threads": torch.get_num_threads(),
                "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            }

        what = "reproducible: arguments, models and settings of PyTorch"
        require_agreement(what, checked, self._gather, self._global_ranks)

    def _gather(self, message: bytes) -> list[bytes]:
        if self._size == 1:
            return [message]
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        everybody = [torch.empty_like(mine) for _ in range(self._size)]
        dist.all_gather(everybody, mine, group=self._group)
        return [other.numpy().tobytes() for other in everybody]

    def _broadcast(self, model: torch.nn.Module) -> None:
        if self._size == 1:
            return
        for _, tensor in _tensors(model):
            dist.broadcast(tensor.detach(), group=self._group, group_src=0)


def reproducible(
    model: torch.nn.Module,
    microbatches: int = 8,
    group: dist.ProcessGroup | None = None,
    words: int | None = 1,
) -> Reproducible:
    """Takes over how `model`'s gradients are averaged, so that any number of workers gives the same bits.

    A step has `microbatches` (1..128), the same ones at any number of workers. Each worker calls backward() once for
    each index in `mine()`, with a loss that is a mean over that micro-batch, and then `reduce()`. Rank 0's parameters
    and buffers are sent to all workers. `group` is a group of any backend; by default the default group, or none.

    `words` is how many 32-bit words of each element are kept and sent. With 1, an element of the mean is off by less
    than 2^-21 of the largest magnitude among the micro-batches of its block of 256 elements (2^-18 with more than 8
    micro-batches); with 2 by less than 2^-49 (2^-42). With None the mean is the exact one, rounded once.

    Parameters must be fp32 tensors on the CPU. Raises TypeError for a model in DistributedDataParallel or FSDP, and
    ValueError if the arguments or models of the workers differ. docs/reproducible.md says what else must be the same.
    """
    return Reproducible(model, microbatches, group, words)


def _tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _shown(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{list(tensor.shape)} of {dtype}, {'' if tensor.requires_grad else 'not '}trained"


def _require_plain(model: torch.nn.Module, microbatches: int, words: int | None) -> None:
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError("reproducible: pass the module itself (model.module): reproducible does what DDP would do")
    if not 1 <= microbatches <= DigitSums.PARTS_MAX:
        raise ValueError(f"reproducible: microbatches is {microbatches} instead of 1 to {DigitSums.PARTS_MAX}")
    if words is not None and words < 1:
        raise ValueError(f"reproducible: words is {words} instead of 1, 2 or more, or None for exact means")
    for name, parameter in model.named_parameters():
        plain = type(parameter) in (torch.nn.Parameter, torch.Tensor)
        if parameter.requires_grad and not (
            plain and parameter.dtype == torch.float32 and parameter.device.type == "cpu"
        ):
            raise TypeError(
                f"reproducible: {name} is a {type(parameter).__name__} of {parameter.dtype} on {parameter.device}; it "
                "must be a whole fp32 parameter on the CPU (use torch.autocast for bf16 arithmetic, and no FSDP)"
            )


def _require_dense(name: str, gradient: torch.Tensor | None) -> None:
    if gradient is None or gradient.layout != torch.strided or gradient.dtype != torch.float32:
        what = "none" if gradient is None else f"of {gradient.dtype} and {gradient.layout}"
        raise TypeError(f"reproducible: the gradient of {name} is {what}; it must be dense and fp32 (sparse=False)")
    require_memory([gradient])  # without the check, NumPy would make memory of its own, with anything in it
