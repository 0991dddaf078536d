"""`DistributedOptimizer`: reduces each gradient as soon as it is computed, and waits for all of them in `step`.

`DistributedOptimizer` makes the optimizer an instance of a subclass of its class, in place. So a learning rate
scheduler, a loss scaler or a hook that was made for the optimizer before refers to the optimizer that steps, with its
groups and its state. (Horovod makes another optimizer of the same groups.) A wrapper around a method of the optimizer
object, such as a scheduler's that counts steps, is kept, and called in place of the method of the class.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import torch

from wiresum.agent.agreement import require_agreement
from wiresum.horovod.torch import runtime
from wiresum.horovod.torch.compression import Compression, Compressor
from wiresum.horovod.torch.execution import scattered
from wiresum.horovod.torch.functions import broadcast_object, gather_bytes
from wiresum.horovod.torch.mpi_ops import (
    Adasum,
    Average,
    Sum,
    allreduce,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from wiresum.horovod.torch.process_sets import ProcessSet, global_process_set
from wiresum.horovod.torch.request import Op
from wiresum.torch.plan import require_memory

_Group: TypeAlias = tuple[torch.Tensor, ...]
_Wait: TypeAlias = Callable[[], None]
"""Waits for the reduced gradients of a group, and stores them in the parameters."""


@dataclass(eq=False)
class _Reduction:
    """The reduction of the gradients of an optimizer's parameters: its options, and the collectives under way."""

    names: dict[torch.Tensor, str]
    groups: list[_Group]
    compression: type[Compressor]
    op: Op
    passes_per_step: int
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet
    alone: bool
    """True if there are no other ranks, so that nothing is reduced."""

    def __post_init__(self) -> None:
        self._group_of = {parameter: group for group in self.groups for parameter in group}
        self._passes_left = dict.fromkeys(self._group_of, self.passes_per_step)
        self._under_way: dict[_Group, _Wait] = {}
        self._passed: set[torch.Tensor] = set()
        """Parameters whose gradients wait for others in their group."""
        self._sparse_dims: dict[torch.Tensor, int] = {}
        """How many sparse dimensions a parameter's gradient has, 0 if dense; absent before any rank has a gradient."""
        self._hooks: list[Any] = []

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Reduces the gradients of these parameters from now on."""
        if not self.alone:
            self._hooks += [p.register_post_accumulate_grad_hook(self.gradient_is_there) for p in parameters]

    def knows(self, parameter: torch.Tensor) -> bool:
        return parameter in self._passes_left

    def add(self, named: Mapping[str, torch.Tensor]) -> None:
        """Adds parameters that are trained from now on. The gradient of each is reduced by itself."""
        for name, parameter in named.items():
            self.names[parameter] = name
            if not self.alone:
                self.groups.append((parameter,))
            self._group_of[parameter] = (parameter,)
            self._passes_left[parameter] = self.passes_per_step
        self.watch(named.values())

    def close(self) -> None:
        """Stops the reduction of gradients."""
        for hook in self._hooks:
            hook.remove()

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way or self._passed)

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.passes_per_step = passes
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def forget(self) -> None:
        """Drops the reductions of the current step, in the middle of which a state may be loaded."""
        self._under_way, self._passed = {}, set()
        self.set_backward_passes_per_step(self.passes_per_step)

    def gradient_is_there(self, parameter: torch.Tensor) -> None:
        """The hook that a backward pass calls when it has added to the parameter's gradient."""
        group = self._group_of[parameter]
        if group in self._under_way or self._passes_left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally."
            )
        self._passes_left[parameter] -= 1
        self._passed.add(parameter)
        if all(self._passes_left[member] == 0 for member in group):
            self._begin(group)

    def synchronize(self) -> None:
        """Starts the reductions that this rank's backward passes left out, since other ranks may take part in them, and
        waits for all reductions."""
        self._agree_on_layouts()
        for group in self.groups:
            if group not in self._under_way and any(parameter.requires_grad for parameter in group):
                self._begin(group)
        under_way, self._under_way, self._passed = self._under_way, {}, set()
        self._passes_left = dict.fromkeys(self._passes_left, self.passes_per_step)
        for wait in under_way.values():
            wait()

    def _agree_on_layouts(self) -> None:
        """Learns from the other ranks which parameters have sparse gradients.

        A rank has no gradient of an embedding if no row of it was in the rank's batch, but must take part in the sparse
        reduction. The ranks compare layouts until each parameter has had a gradient, mostly in the first step only.
        They use sums, from which ranks that have joined may be absent.
        """
        parameters = sorted(
            (parameter for group in self.groups for parameter in group if parameter.requires_grad),
            key=self.names.__getitem__,
        )
        if self.sparse_as_dense or all(parameter in self._sparse_dims for parameter in parameters):
            return
        seen = torch.zeros(len(parameters), 3, dtype=torch.int32, device="cpu")
        for row, parameter in zip(seen, parameters, strict=True):
            if (gradient := parameter.grad) is not None:
                layout = [1, gradient.sparse_dim()] if gradient.is_sparse else [0, 0]
                row[:] = torch.tensor([1, *layout], device="cpu")
        agreed = allreduce(seen, name="DistributedOptimizer.layouts", op=Sum, process_set=self.process_set)
        for parameter, (any_layout, sparse, dims) in zip(parameters, agreed.tolist(), strict=True):
            if any_layout:
                self._sparse_dims[parameter] = dims // sparse if sparse else 0

    def _zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """A zero gradient in the layout that the parameter's gradients have at other ranks."""
        zeros = torch.zeros_like(parameter)
        dims = self._sparse_dims.get(parameter, 0)
        return zeros.to_sparse(dims) if dims else zeros

    def _begin(self, group: _Group) -> None:
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = self._zeros(parameter)
        name = self.names[group[0]]
        if len(group) == 1 and _gradient(group[0]).is_sparse and not self.sparse_as_dense:
            self._under_way[group] = self._begin_sparse(group[0], name)
        else:
            self._under_way[group] = self._begin_dense(group, name)

    def _begin_dense(self, group: _Group, name: str) -> _Wait:
        gradients = [_gradient(parameter) for parameter in group]
        require_memory(gradients)
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
        compressed = [self.compression.compress(gradient) for gradient in dense]
        handle = grouped_allreduce_async_(
            [tensor for tensor, _ in compressed],
            name=name,
            op=self.op,
            prescale_factor=1.0 / self.predivide,
            postscale_factor=self.predivide,
            process_set=self.process_set,
        )

        def wait() -> None:
            for parameter, result, (_, context) in zip(group, synchronize(handle), compressed, strict=True):
                _store_gradient(parameter, self.compression.decompress(result, context))

        return wait

    def _begin_sparse(self, parameter: torch.Tensor, name: str) -> _Wait:
        wait = sparse_allreduce_async(_gradient(parameter), name, self.op, self.process_set)
        return lambda: _store_gradient(parameter, wait())


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None, "set by the backward pass, or to zeros by _begin"
    return parameter.grad


def _store_gradient(parameter: torch.Tensor, reduced: torch.Tensor) -> None:
    gradient = _gradient(parameter)
    if gradient.is_sparse:
        parameter.grad = reduced if reduced.is_sparse else reduced.to_sparse(gradient.sparse_dim())
    elif reduced.data_ptr() != gradient.data_ptr():
        with torch.no_grad():
            gradient.copy_(reduced)


class _DistributedOptimizer(torch.optim.Optimizer):
    """A mixin that comes before the optimizer's own class among the bases."""

    _reduction: _Reduction
    _patched: Mapping[str, Callable[..., Any]]
    """Wrappers that others have put around methods of the optimizer object, by name of the method."""
    _synchronized = False
    _should_synchronize = True

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The names of parameters. Horovod's users read this attribute."""
        return self._reduction.names

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._reduction.set_backward_passes_per_step(passes)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, so that they can be changed before `step`, which is then called
        within `skip_synchronize`."""
        self._reduction.add(_unknown(self))
        self._reduction.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Context manager in which `step` does not reduce gradients."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def _before(self, name: str) -> Callable[..., Any]:
        """The method that the optimizer had before it became distributed."""
        method: Callable[..., Any] = self._patched.get(name) or getattr(super(), name)
        return method

    def _reduce(self) -> None:
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=3,
                )
            self.synchronize()
        self._synchronized = False

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure that also reduces the gradients and the loss that `closure` computes."""

        def reducing() -> Any:
            loss, reduction = closure(), self._reduction
            self._reduce()
            if reduction.is_under_way:
                raise AssertionError(
                    "The closure computed gradients within optimizer.skip_synchronize(), and did not call "
                    "optimizer.synchronize() after loss.backward()."
                )
            if reduction.alone or not isinstance(loss, (torch.Tensor, float)):
                return loss
            # By the loss L-BFGS decides how far to go and how often to call the closure, as it must at all ranks alike.
            mine = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(loss, device="cpu")
            return allreduce(mine, name="DistributedOptimizer.loss", op=reduction.op, process_set=reduction.process_set)

        return reducing

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Takes a step with the reduced gradients. The loss that a closure returns is reduced in the same way."""
        if arguments and callable(arguments[0]):
            arguments = (self._reducing(arguments[0]), *arguments[1:])
        elif callable(options.get("closure")):
            options["closure"] = self._reducing(options["closure"])
        else:
            self._reduce()
        return self._before("step")(*arguments, **options)

    step.hooked = True  # type: ignore[attr-defined]
    """Keeps PyTorch from calling step hooks here: the optimizer's own step calls them, with reduced gradients."""

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        if self._reduction.is_under_way and not self._synchronized:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        self._before("zero_grad")(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._reduction.forget()
        self._synchronized, self._should_synchronize = False, True
        self._before("load_state_dict")(*arguments, **options)

    def add_param_group(self, *arguments: Any, **options: Any) -> None:
        self._before("add_param_group")(*arguments, **options)
        self._reduction.add(_unknown(self))


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Makes the optimizer reduce each gradient over all ranks as soon as it is computed; its `step` waits for all of
    them. Returns the optimizer itself, now an instance of a subclass of its class. In a second call, the new arguments
    replace the earlier ones.

    All ranks call this function with the same arguments and trained parameters, which they compare.

    - `named_parameters`: names under which ranks match gradients; `model.named_parameters()`.
    - `compression`: `Compression.fp16` halves the bytes of float32 gradients.
    - `backward_passes_per_step`: how many passes add to gradients locally before they are reduced.
    - `op`: Average or Sum. Adasum is refused.
    - `gradient_predivide_factor`: with Average, divides gradients by the factor before the sum, by size / factor after.
    - `groups`: a number of groups, or lists of parameters, that are reduced together; `num_groups` is its older name.
    - `sparse_as_dense`: sparse gradients are reduced as dense ones.

    Raises a `ValueError`, at all ranks, for names that are missing or not unique, and for arguments that differ.
    """
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = None if named_parameters is None else list(named_parameters)
    names: dict[torch.Tensor, str] = {}

    def checked() -> dict[str, Any]:
        """The arguments, which must be the same at all ranks. ValueError if this rank refuses them."""
        if Op(op) is Adasum:
            raise ValueError("op=Adasum is not supported: it is no sum, and the network only adds. Use op=Average")
        if gradient_predivide_factor != 1.0 and Op(op) is not Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        names.update(_names(optimizer, named))
        _require_groups(groups)
        return {
            "op": Op(op).value,
            "compression": getattr(compression, "__qualname__", type(compression).__qualname__),
            "backward_passes_per_step": backward_passes_per_step,
            "gradient_predivide_factor": gradient_predivide_factor,
            "groups": groups if groups is None or isinstance(groups, int) else _named_groups(groups, names),
            "sparse_as_dense": sparse_as_dense,
            "parameter": {names[p]: f"{list(p.shape)} of {p.dtype}" for p in _trained(optimizer)},
        }

    alone = runtime.current().place.size == 1 or not process_set.included()  # the first raises before init()

    def gather(message: bytes) -> list[bytes]:
        return [message] if alone else gather_bytes(message, "DistributedOptimizer.arguments", process_set)

    require_agreement("the arguments of DistributedOptimizer", checked, gather, process_set.ranks or ())
    reduction = _Reduction(
        names,
        [] if alone else _groups(optimizer, names, groups, process_set),
        compression,
        Op(op),
        backward_passes_per_step,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        alone,
    )
    distributed: Any = optimizer
    if isinstance(optimizer, _DistributedOptimizer):
        distributed._reduction.close()
    else:
        _subclass(optimizer)
    distributed._reduction = reduction
    reduction.watch(_trained(optimizer))
    return optimizer


def _subclass(optimizer: torch.optim.Optimizer) -> None:
    """Changes the optimizer's class to a subclass in which the methods of _DistributedOptimizer come first."""
    methods = ("step", "zero_grad", "load_state_dict", "add_param_group")
    patched = {name: vars(optimizer).pop(name) for name in methods if name in vars(optimizer)}

    def step(self: Any, *arguments: Any, **options: Any) -> Any:
        return _DistributedOptimizer.step(self, *arguments, **options)

    # A scheduler looks for the attribute that it has set on the optimizer's step.
    marks = {name: mark for name, mark in getattr(patched.get("step"), "__dict__", {}).items() if name != "__wrapped__"}
    vars(step).update({**marks, **vars(_DistributedOptimizer.step)})
    own = type(optimizer)
    members = {"__module__": __name__, "_patched": patched, "step": step}
    optimizer.__class__ = type(own.__name__, (_DistributedOptimizer, own), members)


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def _unknown(optimizer: _DistributedOptimizer) -> dict[str, torch.Tensor]:
    """Trained parameters that the reduction does not know: they were added to the optimizer later, or were frozen."""
    reduction = optimizer._reduction
    if all(reduction.knows(parameter) for parameter in _trained(optimizer)):
        return {}  # nearly every step ends here, without making a text for each parameter
    return {
        reduction.names.get(parameter, name): parameter
        for name, parameter in _unnamed(optimizer)
        if parameter.requires_grad and not reduction.knows(parameter)
    }


def _unnamed(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters with the names that they get if the user gives none."""
    return [
        (f"allreduce.noname.{i}.{j}", parameter)
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    ]


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    mine = _unnamed(optimizer)
    named = list(named_parameters) if named_parameters is not None else mine
    if any(not isinstance(item, tuple) for item in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if duplicates:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    names = {parameter: name for name, parameter in named}
    unnamed = [name for name, parameter in mine if parameter not in names]
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but one or more model parameters were not named: {len(unnamed)} of "
            f"{len(mine)} have no name there"
        )
    return names


def _groups(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    process_set: ProcessSet,
) -> list[_Group]:
    parameters = _trained(optimizer)
    if groups is None:
        return [(parameter,) for parameter in parameters]
    if isinstance(groups, int):
        order = broadcast_object(
            [names[parameter] for parameter in parameters], _root(process_set), "groups", process_set
        )
        parameters.sort(key=lambda parameter: order.index(names[parameter]))
        return _split(parameters, groups or len(parameters))
    listed = {parameter for group in groups for parameter in group}
    grouped = [tuple(parameter for parameter in group if parameter.requires_grad) for group in groups]
    return [group for group in grouped if group] + [(p,) for p in parameters if p not in listed]


def _require_groups(groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
    if isinstance(groups, int) and groups < 0:
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if groups is None or isinstance(groups, int):
        return
    listed = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in listed):
        raise ValueError("groups must consist of torch.Tensor.")
    if len(set(listed)) < len(listed):
        raise ValueError("A parameter can only appear once in groups.")


def _named_groups(groups: Sequence[Sequence[torch.Tensor]], names: Mapping[torch.Tensor, str]) -> list[list[str]]:
    return [[names.get(parameter, "no parameter of the optimizer") for parameter in group] for group in groups]


def _split(parameters: Sequence[torch.Tensor], count: int) -> list[_Group]:
    """Splits parameters into `count` groups of sizes as equal as possible; the first groups get one more."""
    remaining = iter(parameters)
    groups = [tuple(islice(remaining, size)) for size in scattered(len(parameters), count)]
    return [group for group in groups if group]


def _root(process_set: ProcessSet) -> int:
    return process_set.ranks[0] if process_set.ranks else 0
