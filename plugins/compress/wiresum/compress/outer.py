"""Outer steps: workers train alone, and average only after many steps how their parameters have changed.

This is DiLoCo (arXiv 2311.08105), and with fragments, delay and alpha Streaming DiLoCo (arXiv 2501.18512). After each
`every` inner steps, worker i has parameters x_i, and all workers know the same x, that of the last outer step:

    g_i = x - x_i                       the pseudo-gradient, in place of the gradient of a step
    g = the mean of all g_i             by an engine, with any compressor and memory; the same bits at all workers
    x = outer optimizer(x, g)           on the host, at each worker
    x_i = x                             with a delay: alpha x_i + (1 - alpha) x

Fragments are groups of layers that take turns. With a delay, a thread exchanges g during so many further inner steps,
and its result is applied after exactly so many, so that no result depends on when the network answers.

A processor may round the outer optimizer's step differently. So in each exchange workers compare digests of x, and
their counts of steps: workers that have come apart all raise the same error.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Bytes, Vector, is_finite
from wiresum.compress.checkpoint import (
    NAMES_SHOWN_MAX,
    described,
    description_of,
    differences,
    digest_of,
    refuse,
    require_entries,
)
from wiresum.compress.compressor import Compressor
from wiresum.compress.engine import Engine, require_version
from wiresum.compress.groups import aggregator_of
from wiresum.compress.native import WORD_BITS, DefaultFloats
from wiresum.compress.segment import Piece, Segment
from wiresum.compress.training import (
    Report,
    arrays_of,
    require_one_momentum,
    require_trainable,
    tensors_of,
    values_of,
)

STATE_ENTRIES = ("steps", "parameters", "optimizer", "engine", "in_flight", "options")


@dataclass(frozen=True)
class _Flight:
    """A sum that travels, or has arrived and is not yet due."""

    fragment: int
    due: int
    """The inner step after which the mean is applied."""
    means: Future[list[Vector]]
    """The mean pseudo-gradients of the fragment's parameters."""


class OuterSteps:
    """Trains `model` alone between outer steps, with an inner optimizer of the caller's, who calls `step()` after each
    inner step. All workers create it with the same arguments, and begin with the parameters and buffers of rank 0.

    `optimizer_of` makes the outer optimizer of a list of parameters, as in `lambda p: SGD(p, 0.7, 0.9, nesterov=True)`.
    `method` is the compressor of pseudo-gradients, by parameter. Each of the `fragments` groups of layers takes an
    outer step after each `every` inner ones, in turn. Its mean is applied `delay` inner steps later; then each worker
    keeps the part `alpha` of its own parameters. `group` is the process group, by default the default one; with a delay
    no other collective may use it. For a simulation, `group` is an aggregator with several local workers, and `model`
    the list of their models.

    Buffers, such as BatchNorm's, and frozen parameters are equal at the beginning only. ValueError at all workers, if
    an argument or a parameter is refused at one of them, or differs: trainable parameters are float32 or float64, and
    not sharded; 0 <= delay < every // fragments; 0 <= alpha < 1.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer_of: Callable[[list[nn.Parameter]], Optimizer],
        method: Compressor,
        *,
        every: int,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.5,
        group: dist.ProcessGroup | Aggregator | None = None,
        seed: int = 0,
    ) -> None:
        aggregator = group if isinstance(group, Aggregator) else aggregator_of(group)
        models = [model] if isinstance(model, nn.Module) else list(model)
        if len(models) != len(aggregator.local):
            raise ValueError(f"there are {len(models)} models for {len(aggregator.local)} local workers")
        self._local = [{name: p for name, p in one.named_parameters() if p.requires_grad} for one in models]
        states = [{**dict(one.named_parameters()), **dict(one.named_buffers())} for one in models]
        self._every, self._delay, self._alpha = every, delay, alpha
        self.steps = 0
        """Inner steps so far."""
        self.parameters: dict[str, nn.Parameter] = {}
        """The parameters after the last outer step, by name, on the host. They have the same bits at all workers."""
        self._pieces: dict[str, Piece] = {}
        self._fragments: list[list[str]] = []

        def checked() -> dict[str, Any]:
            """The arguments that must be equal at all workers. Raises an error if this worker refuses them."""
            _require_schedule(every, fragments, delay, alpha)
            for mine in self._local:
                _require_summable(mine)
            # Compressors need not know empty vectors.
            self._pieces = {name: Piece(name, tuple(p.shape)) for name, p in self._local[0].items() if p.numel() > 0}
            self._fragments = _fragments(self._pieces, fragments)
            self.parameters = {
                name: nn.Parameter(p.detach().to("cpu", copy=True, memory_format=torch.contiguous_format))
                for name, p in self._local[0].items()
            }
            self.optimizer = optimizer_of(list(self.parameters.values()))
            _require_outer(self.optimizer, self.parameters, method)
            return {
                **self._options(),
                "method": described(method),
                "seed": seed,
                "settings": description_of(self.optimizer.state_dict()["param_groups"]),
                "tensor": {f"{i}": f"{name}: {_shown(t)}" for i, (name, t) in enumerate(states[0].items())},
            }

        aggregator.require_agreement("the arguments of OuterSteps()", checked)
        self.engine = Engine(method, aggregator, seed=seed)
        self._flight: _Flight | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wiresum-outer")
        content = self._from(0, _bytes_of(states[0].values()))
        for state in states:
            _overwrite(state.values(), content)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self._local[0][name])

    def step(self) -> bool:
        """Counts an inner step, and makes the outer steps that are due. All workers call it after each inner step.
        Returns whether the model has changed.

        FloatingPointError at all workers, if a parameter is not finite at one: no outer step is made, and `restore()`
        goes back to the last one. ValueError at all, if parameters of the last outer step, or the number of steps,
        differ, or a parameter has another shape or type than before. Errors of the group: `parameters`, `optimizer` and
        `engine` are those of the last outer step.
        """
        self.steps += 1
        changed = self._land_if_due()
        for i, names in enumerate(self._fragments):
            if self.steps % self._every == i * self._every // len(self._fragments):
                self._flight = _Flight(i, self.steps + self._delay, self._thread.submit(self._exchange(names)))
                changed = self._land_if_due() or changed
        return changed

    def restore(self) -> None:
        """Gives the model the parameters of the last outer step, and drops a sum in flight. All workers call it between
        the same two steps."""
        self._drop()
        with torch.no_grad():
            for mine in self._local:
                for name, parameter in mine.items():
                    parameter.copy_(self.parameters[name])

    def report(self) -> Report:
        """This worker's traffic so far, beside that of an uncompressed sum in each inner step."""
        traffic = self.engine.aggregator.traffic
        dense_bytes = self.steps * sum(parameter.nbytes for parameter in self.parameters.values())
        return Report(self.steps, traffic.sent_bytes, traffic.received_bytes, dense_bytes, self.engine.clamped)

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint without the model's and the inner optimizer's own states. Each worker saves its own. Waits for a
        sum in flight, and raises its error."""
        flight = None
        if self._flight is not None:
            means = [torch.from_numpy(mean.copy()) for mean in self._arrived(self._flight)]
            flight = {"fragment": self._flight.fragment, "due": self._flight.due, "means": means}
        return {
            "steps": self.steps,
            "parameters": {name: parameter.detach().clone() for name, parameter in self.parameters.items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "engine": tensors_of(self.engine.state_dict()),
            "in_flight": flight,
            "options": self._options(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, world_size_changed: bool = False) -> None:
        """Restores a checkpoint: with the model's and the inner optimizer's states, training continues bit for bit.

        ValueError, before anything changes, if the checkpoint is incomplete or of other options, another method, rank,
        world size or model; the text names the differences. `world_size_changed=True` is that of
        `Engine.load_state_dict`: then all workers call `synchronize()` before the next step.
        """
        if isinstance(state, Mapping):
            require_version(state.get("engine"))
        require_entries(state, STATE_ENTRIES, "the state")
        refuse(differences(state["options"], self._options(), "outer steps"))
        steps, engine, flight = int(state["steps"]), arrays_of(state["engine"]), None
        if (saved := arrays_of(state["in_flight"])) is not None:
            means: Future[list[Vector]] = Future()
            means.set_result(saved["means"])
            flight = _Flight(int(saved["fragment"]), int(saved["due"]), means)
        if self._flight is not None:
            wait([self._flight.means])  # the thread changes the engine
        self.engine.require_loadable(engine, world_size_changed=world_size_changed)
        self._take(state)
        self.engine.load_state_dict(engine, world_size_changed=world_size_changed)
        self.steps, self._flight = steps, flight

    def synchronize(self) -> None:
        """Lets workers go on together after a restart in which some have no state, or with another group. A collective:
        all workers call it, after those that have a state have loaded it. All take the parameters and the outer
        optimizer's state of the worker with the most outer steps, and restore the model."""
        self._drop()
        content = io.BytesIO()
        torch.save({"parameters": dict(self.parameters), "optimizer": self.optimizer.state_dict()}, content)
        mine = np.frombuffer(content.getvalue(), np.uint8)
        source = self.engine.synchronize(
            {"worker": self.engine.aggregator.local[0], "steps": self.steps, "nbytes": len(mine)}
        )
        padded = np.zeros(source["nbytes"], np.uint8)
        padded[: len(mine)] = mine[: len(padded)]
        payload = self._from(source["worker"], padded)
        self._take(torch.load(io.BytesIO(payload.tobytes()), weights_only=True))
        self.steps = int(source["steps"])
        self.restore()

    def _options(self) -> dict[str, Any]:
        """The options that a checkpoint must share."""
        return {
            "every": self._every,
            "delay": self._delay,
            "alpha": self._alpha,
            "fragments": [list(names) for names in self._fragments],
            "optimizer": [type(self.optimizer).__name__, *(len(g["params"]) for g in self.optimizer.param_groups)],
            "parameter": {name: _shown(parameter) for name, parameter in self.parameters.items()},
        }

    def _take(self, state: Mapping[str, Any]) -> None:
        """Takes the parameters and the outer optimizer's state. An error changes neither."""
        with torch.no_grad():
            taken = {name: torch.empty_like(p).copy_(state["parameters"][name]) for name, p in self.parameters.items()}
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
            for name, parameter in self.parameters.items():
                parameter.copy_(taken[name])

    def _from(self, source: int, content: Bytes) -> Bytes:
        """The content of worker `source`, to which the others add zeros. All have the same length."""
        words = np.zeros(-(-8 * len(content) // WORD_BITS), np.int32)
        words.view(np.uint8)[: len(content)] = content
        aggregator = self.engine.aggregator
        terms = [words if worker == source else np.zeros_like(words) for worker in aggregator.local]
        return aggregator.sum(terms, WORD_BITS).view(np.uint8)[: len(content)]

    def _exchange(self, names: list[str]) -> Callable[[], list[Vector]]:
        """The function that sums the pseudo-gradients of now in the thread."""
        steps, segments = self.steps, [Segment((self._pieces[name],)) for name in names]
        before = {name: self.parameters[name].detach() for name in names}
        now = [{name: mine[name].detach().to("cpu", copy=True) for name in names} for mine in self._local]

        def run() -> list[Vector]:
            with DefaultFloats():
                values = {name: values_of(x) for name, x in before.items()}
                self.engine.require_agreement(
                    lambda: {
                        "steps": steps,
                        "parameter": {name: _shown(x) for row in now for name, x in row.items()},
                        "parameters of the last outer step": digest_of(values),
                    }
                )
                gradients = [[values_of(before[name] - row[name]) for name in names] for row in now]
                means = self.engine.average(segments, gradients, values if self.engine.method.uses_parameters else None)
                self.engine.advance()
                _require_finite(names, means, gradients, steps)
                return means

        return run

    def _land_if_due(self) -> bool:
        """Applies the mean in flight if it is due. Returns whether it was."""
        flight = self._flight
        if flight is None or flight.due != self.steps:
            return False
        names, means = self._fragments[flight.fragment], self._arrived(flight)
        self._flight = None
        with DefaultFloats(), torch.no_grad():
            for name, mean in zip(names, means, strict=True):
                self.parameters[name].grad = torch.from_numpy(mean).reshape(self._pieces[name].shape)
            self.optimizer.step()
            self.optimizer.zero_grad()
            for mine in self._local:
                for name in names:
                    x = self.parameters[name].to(mine[name].device)
                    mine[name].copy_(torch.lerp(x, mine[name], self._alpha) if self._delay and self._alpha else x)
        return True

    def _arrived(self, flight: _Flight) -> list[Vector]:
        """The means of the sum in flight, or its error, after which none is in flight."""
        wait([flight.means])
        if (error := flight.means.exception()) is not None:
            self._drop()
            raise error
        return flight.means.result()

    def _drop(self) -> None:
        """Waits for the sum in flight, if there is one, and drops it with its error."""
        if self._flight is not None:
            wait([self._flight.means])
            self._flight = None


def _require_schedule(every: int, fragments: int, delay: int, alpha: float) -> None:
    if every < 1 or fragments < 1:
        raise ValueError(f"every ({every}) and fragments ({fragments}) are at least 1")
    if not 0 <= delay < every // fragments:
        raise ValueError(
            f"the delay is at least 0 and below every // fragments, {every} // {fragments}, so that one sum at a time "
            f"is in flight; it is {delay}"
        )
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha, the part of a worker's own parameters, is at least 0 and below 1, not {alpha}")


def _require_summable(parameters: Mapping[str, nn.Parameter]) -> None:
    if not any(parameter.numel() for parameter in parameters.values()):
        raise ValueError("the model has no trainable parameter with a value")
    for name, parameter in parameters.items():
        if hasattr(parameter, "to_local"):  # a DTensor
            raise ValueError(f"'{name}' is sharded (FSDP): outer steps need whole parameters")
        if parameter.dtype not in (torch.float32, torch.float64) or parameter.layout is not torch.strided:
            raise ValueError(
                f"'{name}' is {_shown(parameter)} ({parameter.layout}): keep dense parameters in float32 or float64, "
                "and train in bfloat16 or float16 with torch.autocast"
            )


def _require_outer(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], method: Compressor) -> None:
    require_trainable(optimizer)
    require_one_momentum(method, optimizer)
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if given != {id(parameter) for parameter in parameters.values()}:
        raise ValueError("the outer optimizer must have the parameters that optimizer_of is called with, and no other")


def _require_finite(
    names: Sequence[str], means: Sequence[Vector], gradients: Sequence[Sequence[Vector]], steps: int
) -> None:
    if bad := [name for name, mean in zip(names, means, strict=True) if not is_finite(mean)]:
        more = f" and {len(bad) - NAMES_SHOWN_MAX} more" if len(bad) > NAMES_SHOWN_MAX else ""
        is_here = not all(is_finite(gradient) for row in gradients for gradient in row)
        raise FloatingPointError(
            f"{', '.join(bad[:NAMES_SHOWN_MAX])}{more} have values that are not finite after inner step {steps}, at "
            f"{'this' if is_here else 'another'} worker: no outer step was made. restore() at all workers goes back to "
            "the last one; the inner optimizer's state may need it, too"
        )


def _fragments(pieces: Mapping[str, Piece], count: int) -> list[list[str]]:
    """Deals layers (the parameters of one module) to fragments, the largest first, each to the smallest fragment."""
    layers: dict[str, list[str]] = {}
    for name in pieces:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    if count > len(layers):
        raise ValueError(f"{len(layers)} layers with parameters do not make {count} fragments")
    sizes, dealt = [0] * count, [list[str]() for _ in range(count)]
    of_layer = {layer: 1 + sum(pieces[name].size for name in names) for layer, names in layers.items()}
    for layer in sorted(layers, key=lambda layer: -of_layer[layer]):
        smallest = sizes.index(min(sizes))
        dealt[smallest] += layers[layer]
        sizes[smallest] += of_layer[layer]
    return dealt


def _shown(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _bytes_of(tensors: Iterable[torch.Tensor]) -> Bytes:
    """The tensors' bytes, one after another."""
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    content: Bytes = torch.cat(parts).numpy()
    return content


def _overwrite(tensors: Iterable[torch.Tensor], content: Bytes) -> None:
    """The inverse of `_bytes_of`."""
    left = torch.from_numpy(content.copy())
    with torch.no_grad():
        for tensor in tensors:
            part, left = left[: tensor.nbytes], left[tensor.nbytes :]
            tensor.copy_(part.clone().view(tensor.dtype).reshape(tensor.shape))
