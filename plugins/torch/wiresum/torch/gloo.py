"""The group's Gloo, which runs what the network does not, over the same rendezvous."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from wiresum.agent import own_switch
from wiresum.agent.config import LOCAL, AgentConfig
from wiresum.agent.errors import SessionClosedError, WorkerLeftError
from wiresum.agent.polling import sleep_until
from wiresum.join import hosts
from wiresum.torch import waits
from wiresum.torch.accelerators import refuse_capture, synchronize
from wiresum.torch.calls import Call, kinds_of
from wiresum.torch.errors import STILL_GOES_ON, WiresumTimeoutError, as_torch_error, timed_out
from wiresum.torch.names import installed_name
from wiresum.torch.network import Network
from wiresum.torch.plan import (
    Tensors,
    copy_back,
    divide,
    factor_of,
    in_place,
    is_fp8,
    multiplied,
    operator_name,
    through_gloo,
)
from wiresum.torch.work import Callbacks, GlooWork, NetworkWork

log = logging.getLogger("wiresum")

POINT_TO_POINT = ("send", "recv")
LAST_LOOKS, LAST_LOOK_S = 5, 0.01
"""How often, and for how many seconds each, a thread of Gloo's may take the interpreter's lock to drop an ended
callback."""
BREAK_TIMEOUT = timedelta(milliseconds=1)
BREAK_TAG, PROBE_TAG = 0x7FFFFFFF, 0x7FFFFFFE
"""No user's receive has these tags."""
_PLAIN = ("gather",)
"""Gloo's collectives that move numbers, and take neither complex ones nor fp8."""
_MOVING = ("broadcast", "allgather", "all_gather_single_coalesced")
"""Gloo's collectives that do in a group without a job what the network does in others, with all types."""
_AS_BYTES = {torch.int16, torch.uint16, torch.uint32, torch.uint64}
"""Types that travel as bytes in `_MOVING`, since Gloo lacks them."""


@dataclass(frozen=True)
class GlooCall:
    """The facts that explain a call's failure. Gloo's own error has the same type for everything."""

    said: Call
    number: int | None = None
    """A collective's number, as in its work (work.py)."""
    peer: int | None = None
    """The peer of a send or receive; None for a receive from any worker."""
    is_collective: bool = True
    check: NetworkWork | None = None
    """The barrier beside a collective, which fails if the workers have called different ones."""

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {dtype for dtype, *_ in self.said.kinds}

    def in_full(self) -> str:
        return f"{self.said} ({self.said.elements()}), which goes through Gloo"


class Gloo:
    """A group's Gloo. `network` is the same group's Network, if it has one: the two fail together. `device` is what
    `device_of` returned, kept alive here. `name` is this worker's, for people."""

    def __init__(self, backend: ProcessGroupGloo, device: Any, store: Store, rank: int, size: int, name: str) -> None:
        self.backend: ProcessGroupGloo | None = backend
        """None once it has ended."""
        self._device = device
        self.network: Network | None = None
        self.collectives: Counter[str] = Counter()
        self.bytes = 0
        """Bytes of all tensors that Gloo got, dense."""
        self._rank, self._name = rank, name
        self._options = backend.options
        self._group: Any = group_of(backend, dist.ProcessGroup.BackendType.GLOO, store, rank, size)
        self._size = size
        self._failure: Exception | None = None
        self._under_way: dict[GlooWork, None] = {}
        """Collectives, oldest first, until they are settled, or found complete at the next call."""
        self._callbacks = Callbacks()

    def __del__(self) -> None:
        """Hands PyTorch's object to another thread, since the last reference must be dropped neither by one of Gloo's
        threads nor by C++ that holds the interpreter's lock, such as DDP's reducer, which holds a group without the C++
        part by itself."""
        backend = self.__dict__.get("backend")
        is_ours = not isinstance(backend, PlainGloo)
        if backend is not None and not sys.is_finalizing() and (not is_ours or _is_gloos_thread()):
            self._let_go(list(self._under_way))

    def end(self) -> None:
        """Makes every pending and later operation fail, and ends Gloo's threads, although the group's object may be
        kept. PyTorch's object of a group without the C++ part has Gloo, too, and so keeps the threads."""
        works = list(self._under_way)
        self.break_connections()
        if self.backend is None or isinstance(self.backend, PlainGloo):
            return
        if self._failure is None:
            self._failure = dist.DistBackendError(f"{self._name} has left its process group, which can do no more")
        self._let_go(works)

    def _let_go(self, works: list[GlooWork]) -> None:
        """Drops PyTorch's object in another thread, once Gloo's threads have ended the callbacks of these works: its
        destructor waits for them, and they may need the interpreter's lock, or wait for our caller."""
        held = [self._group, self.backend]
        self._group = self.backend = None
        arguments = (held, works, self._callbacks)
        try:
            # No daemon thread, which Python's end could interrupt.
            threading.Thread(target=_drop, args=arguments, name="wiresum-gloo-end", daemon=False).start()
        except RuntimeError:  # the process ends, and may have no more threads
            _kept.append(held)

    @property
    def calls(self) -> int:
        return self.collectives.total()

    @property
    def timeout(self) -> timedelta:
        """The timeout of all of the group's collectives, the network's too: PyTorch's own functions set it here."""
        timeout: timedelta = self._options._timeout
        return timeout

    @timeout.setter
    def timeout(self, timeout: timedelta) -> None:
        if self.backend is not None:
            self.backend._set_default_timeout(timeout)

    def run(
        self,
        name: str,
        method: str,
        *arguments: Any,
        written: Tensors,
        finish: Callable[[], None] | None = None,
        operator: Any = None,
        factor: float | torch.Tensor | None = None,
    ) -> GlooWork:
        """Starts a collective. Gloo writes to the tensors in `written`; `finish` is called at the end. `operator` is
        the caller's, if the options have another one. Gloo gets the tensors multiplied by `factor`."""
        call = self._call(name, method, arguments, operator)
        self._require(call)
        if self.collectives[name] == 0 and self.network is not None:
            log.info("wiresum: %s goes through Gloo: the network does not do that", call.said)  # R6.2
        self.collectives[name] += 1
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(arguments))
        arguments_staged, staged = staged_for_gloo(arguments, written, factor)
        steps: list[Callable[[], None]] = [partial(copy_back, staged)] if staged else []
        steps += [finish] if finish else []
        steps += [partial(synchronize, written)] if staged else []
        if method in (*_PLAIN, *_MOVING) or self._size == 1:
            arguments_staged = as_plain(arguments_staged, _AS_BYTES if method in _MOVING else set())
        began = time.monotonic()
        try:
            inner = getattr(self._open_group(), installed_name(method))(*arguments_staged)
        except RuntimeError as error:  # a send or receive whose connection is known to be closed fails at once
            if call.peer is None or self._is_connected([call.peer]):
                raise
            explained = self._explain(call, error, None)
            raise explained from explained.__cause__
        call = self._checked(call)  # a call that Gloo refuses has no check: the others wait for the right one
        work = GlooWork(
            inner,
            written,
            finish=steps,
            explain=partial(self._explain, call),
            late=partial(self._late, call),
            confirm=partial(self._confirm, call),
            timeout_s=call.said.timeout_s,
            began=began if call.is_collective else None,
            forget=lambda settled: self._under_way.pop(settled, None),
            callbacks=self._callbacks,
        )
        if call.is_collective:
            for earlier in list(self._under_way):  # works that nobody waits for
                if not earlier.is_completed():
                    break
                self._under_way.pop(earlier, None)
            self._under_way[work] = None
        if self.network is not None:
            self.network.watch_gloo(work, is_collective=call.is_collective)
        return work

    def run_sum(
        self,
        name: str,
        method: str,
        tensors: tuple[Any, ...],
        opts: Any,
        *,
        summed: Tensors,
        written: Tensors | None = None,
    ) -> GlooWork:
        """`summed` will hold the sum (or mean). At some workers Gloo writes to more tensors, all in `written`."""
        finish, operator = None, opts.reduceOp
        for tensor in tensors_in(tensors) if self._size > 1 else ():
            if is_fp8(tensor):
                raise TypeError(
                    f"{name}: there is no {operator_name(operator)} of {tensor.dtype}: convert the tensors to float32. "
                    "The network has SUM and AVG of float8_e4m3fn and float8_e5m2, in groups with a job"
                )
        if operator == dist.ReduceOp.AVG:  # Gloo has no AVG
            if any(tensor.dtype == torch.bool for tensor in summed):  # checked before Gloo changes the tensors
                raise TypeError(f"{name}: bool has no mean: take SUM, which is 'or', or convert the tensors")
            opts, finish = as_sum(opts), partial(divide, summed, self._size) if self._size > 1 else None
        if (factor := factor_of(operator)) is not None:  # Gloo has no PREMUL_SUM either
            opts, written = as_sum(opts), summed
        written = summed if written is None else written
        return self.run(name, method, *tensors, opts, written=written, finish=finish, operator=operator, factor=factor)

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Runs Gloo's monitored barrier. An error has Gloo's text, which names missing workers, even if another worker
        has ended the job by then."""
        timeout = timeout if timeout >= timedelta(0) else self.timeout
        call = GlooCall(Call(0, "monitored_barrier", None, [], timeout.total_seconds()))
        self._require(call)
        self.collectives["monitored_barrier"] += 1
        began = time.monotonic()
        try:
            self._open_group().monitored_barrier(timeout, wait_all_ranks)
        except RuntimeError as error:
            limit_s = call.said.timeout_s
            explained = self._explain(call, error, limit_s if time.monotonic() - began >= limit_s else None)
            if str(error) in str(explained):
                raise explained from explained.__cause__
            raise type(explained)(f"{explained}. Gloo says: {error}") from explained.__cause__

    def require_connected(self) -> None:
        """Raises the error that broke the connections, if they are broken."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure.__cause__

    def _open_group(self) -> Any:
        """Returns PyTorch's object. Another thread may have ended the group since `_require`: raises its error then."""
        if (group := self._group) is None:
            self.require_connected()
        return group

    def end_pending(self, works: Sequence[GlooWork]) -> bool:
        """Makes pending operations fail after the session has failed. Returns False if all may still complete."""
        assert self.network is not None
        if (left := self.network.left) is not None:
            numbers = [work.number for work in works if work.number is not None]
            if not any(self.network.lacks_for_gloo(number, left, wait_s=0.0) for number in numbers):
                return False
            self._failure = as_torch_error(left, "A collective of Gloo's that needs it was under way")
        self.break_connections()
        return True

    def drain(self) -> list[GlooWork]:
        """Waits a moment for pending collectives, and returns those still pending, oldest first."""

        def pending() -> list[GlooWork]:
            return [work for work in list(self._under_way) if not work.is_completed()]

        def is_over() -> bool:
            return not pending() or (self.network is not None and self.network.session.failure is not None)

        sleep_until(is_over, time.monotonic() + waits.DRAIN_S)
        return pending()

    def break_connections(self) -> None:
        """Makes every pending and later operation fail at once.

        Gloo closes all connections only when a receive times out. A receive from a worker whose connection is closed
        already fails without closing others, so every worker is tried.
        """
        self._under_way.clear()
        backend: Any = self.backend
        for peer in set(range(self._size)) - {self._rank} if backend is not None else ():
            with contextlib.suppress(RuntimeError):  # the receive is meant to fail
                backend.recv([torch.empty(1, device="cpu")], peer, BREAK_TAG).wait(BREAK_TIMEOUT)

    def _is_connected(self, peers: Iterable[int] | None = None) -> bool:
        """True if the connections to these workers, or to all, are whole, which Gloo's error does not say. A receive
        from a worker whose connection is broken fails at once; any other one begins, and is dropped."""
        backend: Any = self.backend
        if backend is None:
            return False
        try:
            for peer in set(range(self._size) if peers is None else peers) - {self._rank}:
                backend.recv([torch.empty(1, device="cpu")], peer, PROBE_TAG)
        except RuntimeError:
            return False
        return True

    def _call(self, name: str, method: str, arguments: tuple[Any, ...], operator: Any) -> GlooCall:
        options = arguments[-1]
        # The last argument before the options is summed.
        tensors = tensors_in(arguments if operator is None else arguments[-2])
        is_collective = name not in POINT_TO_POINT
        said = Call(
            0,
            name,
            operator,
            kinds_of(tensors),
            self._timeout_of(options).total_seconds(),
            root=getattr(options, "rootRank", -1),
            through_gloo=True,
        )
        number = self.network.gloo_calls if self.network is not None and is_collective else None
        return GlooCall(said, number, arguments[1] if method in POINT_TO_POINT else None, is_collective)

    def _checked(self, call: GlooCall) -> GlooCall:
        """The call with its check, if there is a network and no worker has left."""
        if not call.is_collective or self.network is None or self.network.left is not None:
            return call
        said = call.said
        sizes = [math.prod(shape) for _, shape, _ in said.kinds] if said.operator is not None else []
        plan = through_gloo(said.name, operator_name(said.operator), said.root, call.dtypes, sizes)
        return replace(call, check=self.network.check(said, plan))

    def _confirm(self, call: GlooCall) -> Exception | None:
        """Returns the error of a collective that Gloo has completed although the workers have called different ones.
        Waits for the others only where the result is their sum, which nobody can have without them."""
        said, check = call.said, call.check
        if check is None or said.operator is None or said.root not in (-1, self._rank):
            return None
        try:
            check.wait()
        except Exception as error:
            return None if isinstance(error.__cause__, WorkerLeftError) else error
        return None

    def _require(self, call: GlooCall) -> None:
        """Raises if the call cannot be done: a worker that it needs has left, or the connections are broken."""
        if (network := self.network) is not None and (left := network.left) is not None and self._needs(call, left):
            raise network.translate(left)
        self.require_connected()

    def _needs(self, call: GlooCall, left: WorkerLeftError) -> bool:
        """True if the call needs the worker that has left."""
        assert self.network is not None
        if not call.is_collective:
            return call.peer == left.rank or self._size == 2
        return call.number is None or self.network.lacks_for_gloo(call.number, left)

    def _timeout_of(self, options: Any) -> timedelta:
        timeout: timedelta = getattr(options, "timeout", timedelta(0))
        return timeout if timeout > timedelta(0) else self.timeout

    def _late(self, call: GlooCall, waited_s: float) -> WiresumTimeoutError:
        return WiresumTimeoutError(timed_out(self._name, waited_s, call.in_full(), STILL_GOES_ON))

    def _await_end(self, check: NetworkWork) -> None:
        """Waits until the check has ended, after a time-out, which ends both: then the session knows who lags."""
        deadline = time.monotonic() + waits.CAUSE_S
        while not check.is_completed() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _explain(self, call: GlooCall, error: Exception, limit_s: float | None) -> Exception:
        """Says why a call that had begun failed: at a time-out of `limit_s`, or for another reason. After a time-out,
        or with a broken connection, the group has failed, and the others must be told. Otherwise Gloo has refused the
        call, and the group goes on."""
        text = f"{self._name}: {call.in_full()}, failed: {error}"
        if limit_s is not None:
            text = timed_out(self._name, limit_s, call.in_full(), str(error))
        if limit_s is None and self._is_connected():
            return _caused(dist.DistBackendError(text), error)
        if (network := self.network) is not None:
            session = network.session
            if call.check is not None and limit_s == call.said.timeout_s:
                self._await_end(call.check)
            deadline = time.monotonic() + (waits.CAUSE_S if limit_s is None else 0)
            while session.failure is None and time.monotonic() < deadline:
                time.sleep(0.01)
            left = network.left
            if left is not None and not self._needs(call, left):
                text += f". Before that, {left.reason}"
                if limit_s is None:  # after a time-out Gloo has closed all connections, not only the lost worker's
                    return _caused(dist.DistBackendError(text), error)
            elif session.failure is not None and not isinstance(session.failure, SessionClosedError):
                return network.translate(session.failure)
            else:
                session.abort(text)
        self._failure = _caused((dist.DistBackendError if limit_s is None else WiresumTimeoutError)(text), error)
        return self._failure


_kept: list[list[Any]] = []
"""What an ending process could not drop."""


def _is_gloos_thread() -> bool:
    return isinstance(threading.current_thread(), threading._DummyThread)  # not started by Python


def _drop(held: list[Any], works: list[GlooWork], callbacks: Callbacks) -> None:
    """Drops the objects once Gloo's threads have nothing left to do in Python, or after waits.DRAIN_S."""
    deadline = time.monotonic() + waits.DRAIN_S
    sleep_until(lambda: all(work.is_completed() for work in works) and callbacks.have_ended(), deadline)
    for _ in range(LAST_LOOKS):
        time.sleep(LAST_LOOK_S)
    works.clear()
    held.clear()


class PlainGloo(ProcessGroupGloo):
    """The Gloo of a group without the C++ part. PyTorch asks the backend of CPU tensors whether the group can shrink;
    this one raises an error that says what is missing."""

    supports_shrinking = True

    def shrink(self, *_: object) -> Any:
        raise without_extension("shrink_group")


def without_extension(what: str) -> TypeError:
    return TypeError(
        f"{what} needs the C++ part of the wiresum backend, which this group does without, since one of its "
        "ranks has none: `python -m wiresum.torch.extension` compiles it there, or says what is missing"
    )


def make_gloo(
    store: Store, rank: int, size: int, timeout: timedelta, device: Any, kind: type[ProcessGroupGloo]
) -> ProcessGroupGloo:
    """Connects all workers with each other now: at the first use, a send would have to wait for all workers. `device`
    is what `device_of` returned."""
    if device is None:
        return kind(store, rank, size, timeout)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [device]
    options._timeout = timeout
    return kind(store, rank, size, options)


def device_of(config: AgentConfig) -> Any:
    """The device that Gloo listens with; it has a thread and sockets.

    Gloo listens at the data path's address, since a host's name often resolves to an address that other hosts cannot
    reach. None if GLOO_SOCKET_IFNAME is set, which takes precedence.
    """
    return None if os.environ.get("GLOO_SOCKET_IFNAME") else _device_at(address_of(config))


def _device_at(address: str) -> Any:
    """The device at an address, which all groups of a process share while one of them keeps it. A forked child, which
    lacks its parent's threads, makes another."""
    device = _devices.get((os.getpid(), address))
    if device is None:
        device = _devices[os.getpid(), address] = ProcessGroupGloo.create_device(hostname=address)
    return device


_devices: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()


def tensors_in(arguments: Any) -> Tensors:
    """All tensors in the arguments and in nested lists."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    return [tensor for part in arguments for tensor in tensors_in(part)] if isinstance(arguments, (list, tuple)) else []


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def group_of(backend: Any, kind: Any, store: Store, rank: int, size: int) -> dist.ProcessGroup:
    """A ProcessGroup around this backend, which by itself lacks the coalesced forms and the profiler's records."""
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, backend)
    return group


def staged_for_gloo(
    arguments: tuple[Any, ...], written: list[torch.Tensor], factor: float | torch.Tensor | None = None
) -> tuple[list[Any], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Replaces each tensor that is not in row-major order, or not on the CPU, by a copy that is; with a factor, each
    tensor by a copy multiplied by it.

    Gloo ignores strides, mostly without an error when the result is wrong. Also returns pairs for the copied tensors in
    `written`: (the caller's tensor, the memory whose result it gets).
    """
    outputs = {id(tensor) for tensor in written}
    staged: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stage(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [stage(item) for item in argument]
        if not isinstance(argument, torch.Tensor) or argument.layout is not torch.strided:
            return argument
        if argument.is_cpu and in_place(argument) and factor is None:
            return argument
        refuse_capture(argument.device)
        memory = torch.empty(argument.shape, dtype=argument.dtype, device="cpu").copy_(multiplied(argument, factor))
        if id(argument) in outputs:
            staged.append((argument, memory))
        return memory

    return [stage(argument) for argument in arguments], staged


def as_plain(argument: Any, as_bytes: Set[torch.dtype] = frozenset()) -> Any:
    """The same memory as pairs of real numbers in place of complex ones, and bytes in place of fp8 and `as_bytes`."""
    if isinstance(argument, list):
        return [as_plain(item, as_bytes) for item in argument]
    if not isinstance(argument, torch.Tensor):
        return argument
    if is_fp8(argument) or argument.dtype in as_bytes:
        return argument.detach().reshape(-1).view(torch.uint8)
    return torch.view_as_real(argument.detach()) if argument.is_complex() else argument


def as_sum(options: Any) -> Any:
    """A copy of the options, for a SUM."""
    summing = type(options)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(options, name):
            setattr(summing, name, getattr(options, name))
    summing.reduceOp = dist.ReduceOp.SUM
    return summing


def address_of(config: AgentConfig) -> str:
    """This host's on the data path: the one that is set, or that routes to the switch."""
    if config.address or config.switch == LOCAL:
        return config.address or own_switch.HOST
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((hosts.addresses_of(config.switch_host, socket.AF_INET)[0], config.switch_port))
        except OSError:
            return "127.0.0.1"  # one worker, and no switch: no other host has to reach this one
        return str(probe.getsockname()[0])
