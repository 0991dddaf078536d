"""The DDP communication hook that compresses gradients: `attach(model, optimizer, method)`.

DistributedDataParallel calls the hook with each bucket of gradients during the backward pass, in the same order at all
workers. The hook passes the bucket to a thread, which averages its segments with an engine while DDP computes the next
gradients. With granularity "model", buckets are held until the last one, so that the whole model is one vector.

There is one thread, so all workers exchange buckets in the same order. In the last bucket the hook waits for the
thread, for two reasons: DDP may then issue a collective of its own (for unused parameters), and `backward()` raises the
thread's error.

A bucket on an accelerator is copied to the host, and its average back (host_copy.py). A stream that waits for the
hook's future waits for the copy back.

Memories are kept by parameter name, since DDP rebuilds its buckets after the first step. A step ends with its last
bucket. Gradients accumulated under `no_sync` are compressed once. Sparse gradients are averaged without compression.

With `find_unused_parameters` or `static_graph`, a parameter may be unused at all workers in a step. DDP leaves its
gradient as it is, and ignores the average that the hook returns for it. So before each exchange the workers count how
many of them have used each parameter, and leave out a parameter that no worker has used: its memory stays unchanged
until a step that uses it.
"""

from __future__ import annotations

import fnmatch
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from wiresum.agent.extent import require_memory
from wiresum.compress import packing
from wiresum.compress.arrays import Sparse, Vector, joined
from wiresum.compress.checkpoint import (
    described,
    differences,
    differing_tensors,
    mismatched_names,
    refuse,
    require_entries,
)
from wiresum.compress.compressor import Compressor
from wiresum.compress.engine import Engine, require_version
from wiresum.compress.groups import aggregator_of
from wiresum.compress.host_copy import Call, HostCopy, Streams
from wiresum.compress.memory import memory_of
from wiresum.compress.native import DefaultFloats
from wiresum.compress.segment import Piece, Segment
from wiresum.compress.training import (
    Report,
    arrays_of,
    require_one_momentum,
    require_trainable,
    tensors_of,
    values_of,
)

Granularity = Literal["layer", "bucket", "model"]
Bucket = Any  # dist.GradBucket, which PyTorch's stubs do not export


def attach(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    method: Compressor,
    *,
    granularity: Granularity = "layer",
    seed: int = 0,
    start_step: int = 0,
    leave_out: Sequence[str] = (),
    elements_min: int = 0,
    scaler: torch.amp.GradScaler | None = None,
) -> Attachment:
    """Makes `model` average its gradients with `method` until `detach()`. All workers call it with the same arguments,
    between two steps. They compare them: if one differs, or is refused at one worker, all of them raise the same error.

    `granularity` is what is compressed as one vector: each parameter ("layer"), each of DDP's buckets ("bucket"), or
    the whole model ("model"). Not compressed are the first `start_step` steps, parameters whose names match a shell
    pattern in `leave_out`, such as "*.bias", and those with fewer than `elements_min` elements. `scaler` is the loss
    scaler, if there is one: when its scale changes, so do the memories, which are in the units of the scaled gradients.

    RuntimeError if the model has another communication hook or compression attached, or a process group that has no
    backend for CPU tensors. ValueError if a pattern matches no parameter, if a parameter is complex, if both the
    method's memory and the optimizer have momentum, if the optimizer is LBFGS or Rprop, if there is a scaler and the
    method compares gradients with a fixed value, or if the workers' arguments or models differ. If only some workers
    refuse, all raise ValueError.
    TypeError, at this worker alone, if `model` is no DistributedDataParallel: without one there is no process group by
    which the other workers could learn of the error.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"the model must be a DistributedDataParallel, not a {type(model).__name__}: wrap it in one first (FSDP's "
            "gradients cannot be compressed)"
        )
    attachment = Attachment(
        model,
        optimizer,
        method,
        granularity=granularity,
        seed=seed,
        start_step=start_step,
        leave_out=leave_out,
        elements_min=elements_min,
        scaler=scaler,
    )
    if model not in _attached:  # a hook stays for the life of the model
        model.register_comm_hook(_Reference(model), compression_hook)
    _attached[model] = attachment
    return attachment


def compression_hook(state: Attachment | _Reference, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook itself, for use inside PyTorch's own hook wrappers in place of `attach`:
    `model.register_comm_hook(Attachment(model, optimizer, method), fp16_compress_wrapper(compression_hook))`."""
    return state.arrived(bucket)


compression_hook.__annotations__ = {}  # DDP accepts only annotations that are classes

_attached: weakref.WeakKeyDictionary[DistributedDataParallel, Attachment] = weakref.WeakKeyDictionary()


class _Reference(weakref.ref[DistributedDataParallel]):
    """The hook's state after `attach`. A pickled or copied model has its hooks and their states, so a reference is
    pickled, and refers to the copy."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Reference, (self(),)

    def arrived(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        # The model is in no variable, which the traceback of an error would keep.
        return _attached[self()].arrived(bucket)  # type: ignore[index]


class Attachment:
    """The engine of a model, its checkpoint and its report. The arguments are those of `attach`."""

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: Optimizer,
        method: Compressor,
        *,
        granularity: Granularity = "layer",
        seed: int = 0,
        start_step: int = 0,
        leave_out: Sequence[str] = (),
        elements_min: int = 0,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        # DDP's buckets have parameters that were frozen after DDP was made, too.
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._pieces = {name: Piece(name, tuple(p.shape)) for name, p in model.module.named_parameters()}
        aggregator = aggregator_of(model.process_group)

        def checked() -> dict[str, Any]:
            """The arguments and settings that must be equal at all workers. Raises an error if this worker refuses
            them."""
            if granularity not in ("layer", "bucket", "model"):
                raise ValueError(f"the granularity is layer, bucket or model, not {granularity!r}")
            _require_free(model)
            _require_every_bucket(model)
            require_trainable(optimizer)
            require_one_momentum(method, optimizer)
            if scaler is not None:
                _require_following_scale(method)
            _require_real(self._parameters)
            trainable = {name: self._pieces[name] for name in self._parameters}
            self._compressed = _compressed_of(trainable, leave_out, elements_min)
            return {
                "method": described(method),
                "granularity": granularity,
                "seed": seed,
                "start_step": start_step,
                "leave_out": list(leave_out),
                "elements_min": elements_min,
                "scaler": None if scaler is None else scaler.state_dict(),
                "optimizer": type(optimizer).__name__,
                "find_unused_parameters": model.find_unused_parameters,
                "static_graph": model.static_graph,
                "parameter": {f"{i}": f"{name}: {self._shown(name)}" for i, name in enumerate(trainable)},
            }

        aggregator.require_agreement("the arguments of attach()", checked)
        self._start_step = start_step
        self._scaler = scaler
        self._scale = self._scale_now()
        """Scale of the loss when the memories were last used."""
        self._finite = True
        """True if all values that this step averaged without compression are finite."""
        self._steps = 0
        self._plain_bytes = 0
        self.is_detached = False
        self._granularity = granularity
        self._held: list[_Held] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wiresum-compress")
        self._streams = Streams()
        self._exchanges: list[Future[None]] = []
        self._error: BaseException | None = None
        self._dense_bytes = 0
        self._group = model.process_group
        self.engine = Engine(method, aggregator, seed=seed)
        self._agreed = False
        """True if the workers have compared their states, which they do in the first pass."""
        self._use = _Use(self._parameters, model.static_graph) if _may_leave_out(model) else None

    def detach(self) -> None:
        """Ends compression and drops the memories. All workers call it between two steps. Idempotent."""
        self._forget_failed_pass()
        if self._use is not None:
            self._use.close()
        self.is_detached = True
        self._thread.shutdown()

    def report(self) -> Report:
        traffic = self.engine.aggregator.traffic
        return Report(
            self._steps,
            traffic.sent_bytes + self._plain_bytes,
            traffic.received_bytes + self._plain_bytes,
            self._dense_bytes,
            self.engine.clamped,
        )

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint with this worker's memories, as tensors. Each worker saves its own checkpoint."""
        state = {
            "engine": self.engine.state_dict(),
            "steps": self._steps,
            "scale": self._scale,
            **self._belonging(),
        }
        return tensors_of(state)

    def load_state_dict(self, state: Mapping[str, Any], *, world_size_changed: bool = False) -> None:
        """Restores a checkpoint: training continues bit for bit.

        ValueError, before anything changes, if the checkpoint is incomplete or of another method, rank, world size,
        granularity or model; the text names the differences.

        `world_size_changed=True` is for another number of workers. Then a worker may load the state of any worker of
        the former group, each at most once, or no state; and all workers call `synchronize()` before the next step.
        """
        arrays = arrays_of(state)
        if isinstance(arrays, Mapping):
            require_version(arrays.get("engine"))
        require_entries(arrays, ("engine", "steps", "scale", *self._belonging()), "the state")
        found = differences(arrays["granularity"], self._granularity, "granularity")
        found += mismatched_names(arrays["parameters"], self._compressed, "the state's model")
        found += differing_tensors(arrays["parameters"], self._belonging()["parameters"])
        refuse(found)
        steps, scale = int(arrays["steps"]), float(arrays["scale"])
        self.engine.load_state_dict(arrays["engine"], world_size_changed=world_size_changed)
        self._steps, self._scale = steps, scale

    def _belonging(self) -> dict[str, Any]:
        """The part of a state that identifies the model."""
        return {"granularity": self._granularity, "parameters": {name: self._shown(name) for name in self._compressed}}

    def _shown(self, name: str) -> str:
        dtype = str(self._parameters[name].dtype).removeprefix("torch.")
        return f"{list(self._pieces[name].shape)} of {dtype}"

    def synchronize(self) -> None:
        """Makes memories consistent after a restart in which some workers have no state, or with another number of
        workers. A collective: all workers call it, after those that have a state have loaded it. All workers take the
        step count and the scale of the worker with the most steps."""
        state = self.engine.synchronize({"steps": self._steps, "scale": self._scale}, scale=self._scale)
        self._steps, self._scale = int(state["steps"]), float(state["scale"])

    def arrived(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        """The hook of DDP: returns the future average of a bucket of gradients."""
        if self.is_detached:
            return allreduce_hook(self._group, bucket)
        buffer = bucket.buffer()
        if buffer.layout is torch.strided:
            require_memory(buffer)
        call = Call(buffer.device, self._streams)
        if bucket.index() == 0:
            self._forget_failed_pass()
            if not self._agreed:
                self._submit(self._agree_on_states)
            self._submit(lambda: self._follow_scale(call))
        future = call.future()
        if buffer.layout is torch.strided:
            # Compressors need not know empty vectors.
            pieces = [self._pieces[self._names[id(p)]] for p in bucket.parameters() if p.numel() > 0]
            used = [piece.name for piece in pieces if self._use is None or piece.name in self._use.here]
            self._held.append(_Held(call, buffer, pieces, used, future))
            self._dense_bytes += buffer.nbytes
        else:
            self._submit(lambda: self._average_rows(call, buffer, future))
        if self._held and (self._granularity != "model" or bucket.is_last()):
            together, self._held = self._held, []
            self._submit(lambda: self._average(together))
        if bucket.is_last():
            wait(self._exchanges)
            self._exchanges.clear()
        if self._use is not None and (bucket.is_last() or self._error is not None):
            self._use.here.clear()
        if self._error is not None:
            raise self._error
        if bucket.is_last():
            if self._steps >= self._start_step:
                self.engine.advance(finite=self._finite)
            self._steps += 1
        return future

    def _forget_failed_pass(self) -> None:
        """Drops the buckets of a backward pass that failed."""
        wait(self._exchanges)
        self._exchanges.clear()
        self._held = []
        self._error = None
        self._finite = True
        if self._use is not None:
            self._use.begin_count()
        self.engine.forget()

    def _agree_on_states(self) -> None:
        """Compares the engines' states among the workers. Runs in the first pass, since a state may be loaded
        before."""
        self.engine.require_agreement(lambda: {"steps": self._steps, "scale": self._scale})
        self._agreed = True

    def _scale_now(self) -> float:
        return 1.0 if self._scaler is None else self._scaler.get_scale()

    def _follow_scale(self, call: Call) -> None:
        """Rescales the memories if the loss scaler has changed its scale, in whose units this step's gradients are.

        The scale may be a tensor on the device, so it is read when the device has come to the call.
        """
        if self._scaler is None:
            return
        with call.resumed():
            scale = self._scale_now()
        if scale != self._scale:
            self.engine.rescale(scale / self._scale)
            self._scale = scale

    def _submit(self, exchange: Callable[[], None]) -> None:
        self._exchanges.append(self._thread.submit(self._attempt, exchange))

    def _attempt(self, exchange: Callable[[], None]) -> None:
        """Runs one exchange in the thread. After an error, the other exchanges of the pass are skipped."""
        if self._error is not None:
            return
        try:
            with DefaultFloats():
                exchange()
        except BaseException as error:
            self._error = error

    def _average(self, held_together: list[_Held]) -> None:
        """Averages buckets that are compressed together."""
        for held in held_together:
            held.await_values()
        pieces = [piece for held in held_together for piece in held.pieces if self._compresses(piece)]
        for held in held_together:
            self._average_plainly([held.parts[piece.name] for piece in held.pieces if not self._compresses(piece)])
        unused = self._unused(pieces, {name for held in held_together for name in held.used})
        if len(unused) < len(pieces):
            parts = {name: part for held in held_together for name, part in held.parts.items()}
            with held_together[-1].call.resumed():  # parameters are read from the device
                self._average_compressed(pieces, parts, unused)
        for held in held_together:
            held.finish()

    def _unused(self, pieces: Sequence[Piece], used_here: Set[str]) -> frozenset[str]:
        """The pieces that no worker has used in this step."""
        if self._use is None:
            return frozenset()
        asked = [piece.name for piece in pieces if piece.name not in self._use.by]
        if asked:
            aggregator = self.engine.aggregator
            mine = np.array([name in used_here for name in asked], np.int32)
            counts = aggregator.sum([mine], packing.width_for(1, aggregator.workers))
            self._use.by.update(zip(asked, counts.tolist(), strict=True))
        return frozenset(piece.name for piece in pieces if not self._use.by[piece.name])

    def _compresses(self, piece: Piece) -> bool:
        return self._steps >= self._start_step and piece.name in self._compressed

    def _average_plainly(self, parts: Sequence[Vector]) -> None:
        if parts:
            together = torch.from_numpy(joined(parts))
            self._plain_bytes += together.nbytes
            dist.all_reduce(together, group=self._group)
            _overwrite(parts, together.div_(dist.get_world_size(self._group)).numpy())
            self._note_finite(together)

    def _average_rows(self, call: Call, rows: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
        """Averages sparse gradients (of embeddings, say), which are not compressed."""
        with call.resumed():
            dist.all_reduce(rows, group=self._group)
            self._note_finite(rows.coalesce().values())
            future.set_result(rows / dist.get_world_size(self._group))

    def _note_finite(self, values: torch.Tensor) -> None:
        self._finite = self._finite and bool(values.isfinite().all())

    def _average_compressed(self, pieces: list[Piece], parts: Mapping[str, Vector], unused: frozenset[str]) -> None:
        """Overwrites the parts of all used pieces with their averages."""
        segments = self._segments(pieces, unused)
        parts = {name: np.zeros_like(part) if name in unused else part for name, part in parts.items()}
        gradients = [[parts[piece.name] for piece in segment.pieces] for segment in segments]
        parameters = {}
        if self.engine.method.uses_parameters:
            for segment in segments:
                values = [values_of(self._parameters[piece.name]) for piece in segment.pieces]
                parameters[segment.name] = joined(values)
        estimates = self.engine.estimates(segments, [gradients], parameters, unused=unused)
        for estimate, gradient in zip(estimates, gradients, strict=True):
            _overwrite(gradient, estimate)

    def _segments(self, pieces: list[Piece], unused: frozenset[str]) -> list[Segment]:
        """The segments to compress. Pieces are joined in the model's order, which does not depend on DDP's buckets.

        A segment of several pieces has the unused ones, too. So its length is the same in every step, and the
        compressor's state fits.
        """
        if self._granularity == "layer":
            return [Segment((piece,)) for piece in pieces if piece.name not in unused]
        present = {piece.name for piece in pieces}
        return [Segment(tuple(piece for name, piece in self._pieces.items() if name in present))]


def _require_free(model: DistributedDataParallel) -> None:
    before = _attached.get(model)
    if before is not None and not before.is_detached:
        raise RuntimeError("compression is attached to this model already: detach() it first")
    if before is None and (hook := model._get_ddp_logging_data().get("comm_hook")):  # PyTorch's own hooks, too
        raise RuntimeError(
            f"the model has a communication hook already ({hook}), and DDP takes only one: wrap the module in another "
            "DistributedDataParallel"
        )


def _require_every_bucket(model: DistributedDataParallel) -> None:
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise ValueError(
            "DDP with skip_all_reduce_unused_params=True does not hand all buckets to a communication hook, so "
            "compression cannot tell where a step ends: use find_unused_parameters=True alone"
        )


def _require_real(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise ValueError(
                f"'{name}' is complex, and compressed gradients are real: train torch.view_as_real of it as the "
                "parameter, and apply torch.view_as_complex in forward()"
            )


def _require_following_scale(method: Compressor | None) -> None:
    while method is not None:
        if not method.follows_scale:
            raise ValueError(
                f"{type(method).__name__} cannot be used with a loss scaler: what it sends depends on the "
                "absolute size of gradients, which the scaler changes. Train without the scaler, as in bfloat16"
            )
        if not memory_of(method.memory).follows_scale:
            raise ValueError(
                "a memory with clip= cannot be used with a loss scaler, which changes the norms of gradients: clip "
                "with torch.nn.utils.clip_grad_norm_ after scaler.unscale_(optimizer)"
            )
        method = method.down


def _may_leave_out(model: DistributedDataParallel) -> bool:
    """True if the model may be trained without some of its parameters in a step."""
    return bool(model.find_unused_parameters or model.static_graph)


class _Use:
    """The parameters that this worker has used since the last step, and how many workers have used each in this step.

    Backward passes under `no_sync` count, even if they fail later, since DDP counts in the same way.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], is_static: bool) -> None:
        self.here: set[str] = set()
        self.by: dict[str, int] = {}
        """How many workers have used each parameter in this step; parameters that were not counted yet are absent."""
        self._is_static = is_static
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, self.here, name))
            for name, parameter in parameters.items()
        ]

    def begin_count(self) -> None:
        if not self._is_static:  # in a static graph every step uses the parameters of the first
            self.by.clear()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _note(used: set[str], name: str, parameter: torch.Tensor) -> None:
    used.add(name)


class _Held:
    """A bucket whose average DDP waits for. The average overwrites the parts of its pieces."""

    def __init__(
        self,
        call: Call,
        buffer: torch.Tensor,
        pieces: list[Piece],
        used: Sequence[str],
        future: torch.futures.Future[torch.Tensor],
    ) -> None:
        self.call = call
        self.pieces = pieces
        self.used = used
        """The names of pieces that this worker has used."""
        self.parts: dict[str, Vector] = {}
        """The pieces' gradients, by name; empty before `await_values`."""
        self._future = future
        self._copy: HostCopy = call.to_host(buffer)

    def await_values(self) -> None:
        self._values = values_of(self._copy.values())
        ends = np.cumsum([piece.size for piece in self.pieces])
        parts = np.split(self._values, ends)[:-1]  # a bucket of empty parameters has no piece
        self.parts = {piece.name: part for piece, part in zip(self.pieces, parts, strict=True)}

    def finish(self) -> None:
        host = self._copy.values()
        if host.dtype not in (torch.float32, torch.float64):
            host.copy_(torch.from_numpy(self._values))
        with self.call.resumed():
            self._copy.copy_back()
            self._future.set_result(self._copy.tensor)


def _overwrite(parts: Sequence[Vector], estimate: Vector | Sparse) -> None:
    """Overwrites consecutive parts with the estimate."""
    ends = np.cumsum([len(part) for part in parts])
    if not isinstance(estimate, Sparse):
        for part, values in zip(parts, np.split(estimate, ends[:-1]), strict=True):
            np.copyto(part, values)
        return
    bounds = [0, *np.searchsorted(estimate.indices, ends)]
    for part, end, first, last in zip(parts, ends, bounds, bounds[1:], strict=False):
        part.fill(0)
        part[estimate.indices[first:last] - (end - len(part))] = estimate.values[first:last]


def _compressed_of(pieces: Mapping[str, Piece], leave_out: Sequence[str], elements_min: int) -> list[str]:
    """The names of the parameters that are compressed."""
    for pattern in leave_out:
        if not fnmatch.filter(pieces, pattern):
            known = ", ".join(pieces)
            raise ValueError(f"leave_out: no trainable parameter matches {pattern!r}; they are: {known}")
    return [
        name
        for name, piece in pieces.items()
        if piece.size >= elements_min and not any(fnmatch.fnmatchcase(name, pattern) for pattern in leave_out)
    ]
