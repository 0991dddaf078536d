"""Workers as processes, for tests.

`Cluster.run(function)` runs a function of a test module in every worker at once, inside the process group that the
workers made at their start, and returns all results. `runs_in` makes such a function a test. The workers start once for
many tests, and are always ended. Nothing waits for ever: a run that takes too long fails with the logs of all workers,
to which they first dump their stacks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from wiresum_lab.patience import PATIENCE_S, TimedOutError
from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks import cluster_worker

STRAGGLER_TIMEOUT_S = PATIENCE_S / 4
"""How long the other workers may take after one worker's function has failed."""
STOP_TIMEOUT_S = PATIENCE_S / 4
MARKS_TIMEOUT_S = PATIENCE_S * 3 / 4
"""How long a worker waits for marks, less than a run may take, so that its error names them."""
LOG_CHARACTERS_MAX = 6000


# Workers are forked from a process that has imported slow modules of PyTorch, of wiresum and of tests, and has started
# nothing. Modules that are not installed are left out.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        "wiresum.torch.creation",
        "wiresum.compress",
        "wiresum.controller",
        "wiresum.horovod.torch",
        "wiresum.switch",
        "wiresum_lab.ranks.cluster_worker",
        "hypothesis",
        "pytest",
    ]
)


def runs_in(fixture: str, *size: int, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test of a function with parameters `(rank, size, ...)`, which runs in every worker of the fixture's
    cluster. Its other parameters are fixtures. With a size, the fixture is a function that makes a cluster of `size`
    and `options`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, _, *others = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def test(**values: Any) -> None:
            cluster = values[fixture](*size, **options) if size else values[fixture]
            cluster.run(function, *(values[parameter.name] for parameter in others))

        own = inspect.Parameter(fixture, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([own, *others])  # type: ignore[attr-defined]
        return test

    return decorate


class WorkerFailedError(AssertionError):
    """A worker's function raised an error. The text has the logs. (A function that does not return in time is a
    TimedOutError with the logs.)"""


class Cluster:
    """`size` workers of one process group. With `grouped=False` they make no group at their start, for functions that
    make groups themselves; with `regroups` they make a new group for each function, which may end it.

    After a failed run the workers are ended, and the next run starts new ones.
    """

    def __init__(
        self,
        switch: SwitchProcess | None,
        size: int,
        folder: Path,
        *,
        grouped: bool = True,
        regroups: bool = False,
        backend: str = "wiresum",
        timeout_s: float = PATIENCE_S,
        variables: Mapping[str, str] | None = None,
        prepare: str = "",
    ) -> None:
        """Each worker calls `load()` of the module `prepare`, if given, before it makes the group."""
        self.size = size
        self._folder = folder
        self._setup = {
            "grouped": grouped and not regroups,
            "regroups": regroups,
            "backend": backend,
            "timeout_s": timeout_s,
            "prepare": prepare,
        }
        self._variables = {"WIRESUM_SWITCH": switch.endpoint if switch else "127.0.0.1:1", **(variables or {})}
        self._store: TCPStore | None = None
        self.processes: list[BaseProcess] = []
        self._channels: list[Any] = []
        self.answers: dict[int, tuple[str, Any]] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = PATIENCE_S) -> list[Any]:
        """Calls `function(rank, size, *arguments)` in every worker. Returns the results in order of ranks."""
        self.start(function, *arguments)
        return self.collect(timeout_s=timeout_s)

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        if not self.processes:
            self._boot()
        self.answers = {}
        for rank in range(self.size):
            self._tell(rank, (function.__code__.co_filename, function.__name__, arguments))

    def collect(self, *, ranks: Sequence[int] | None = None, timeout_s: float = PATIENCE_S) -> list[Any]:
        """The results of `start`, of all workers or of `ranks` (when a test has killed the others)."""
        wanted = list(range(self.size) if ranks is None else ranks)
        deadline = time.monotonic() + timeout_s
        while missing := [rank for rank in wanted if rank not in self.answers]:
            if any(kind == "error" for kind, _ in self.answers.values()):
                deadline = min(deadline, time.monotonic() + STRAGGLER_TIMEOUT_S)
            if not self._receive(missing, deadline):
                break
        failed = [rank for rank in wanted if self.answers.get(rank, ("missing", None))[0] != "result"]
        if failed:
            kinds = {_kind(*self.answers[rank]) if rank in self.answers else TimedOutError for rank in failed}
            text = self._post_mortem(failed)
            raise TimedOutError(text) if kinds == {TimedOutError} else WorkerFailedError(text)
        return [self.answers[rank][1] for rank in wanted]

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join(STOP_TIMEOUT_S)

    def log(self, rank: int) -> str:
        return (self._folder / f"rank{rank}.log").read_text(errors="replace")

    def stop(self) -> None:
        """Lets the workers leave in order, and kills workers that have not ended after STOP_TIMEOUT_S."""
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send(None)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(STOP_TIMEOUT_S)
        for channel in self._channels:
            channel.close()
        self.processes, self._channels, self._store = [], [], None

    def _boot(self) -> None:
        self.answers = {}
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.size):
            ours, theirs = _processes.Pipe()
            setup = {"rank": rank, "size": self.size, "store_port": self._store.port, **self._setup}
            variables = environment({"LOCAL_WORLD_SIZE": str(self.size), **self._variables})
            process = _processes.Process(
                target=cluster_worker.main, args=(theirs, setup, variables, str(self._folder / f"rank{rank}.log"))
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._channels.append(ours)
        self.collect()

    def _tell(self, rank: int, message: object) -> None:
        with contextlib.suppress(OSError):  # collect() finds a dead worker
            self._channels[rank].send(message)

    def _receive(self, ranks: Sequence[int], deadline: float) -> bool:
        """Waits for one more answer. Returns False if none comes in time."""
        channels = {self._channels[rank]: rank for rank in ranks}
        ready = multiprocessing.connection.wait(list(channels), max(0.0, deadline - time.monotonic()))
        for channel in ready:
            rank = channels[channel]
            try:
                self.answers[rank] = self._channels[rank].recv()
            except (EOFError, OSError):
                self.answers[rank] = ("error", "the worker's process has ended")
        return bool(ready)

    def _post_mortem(self, failed: Sequence[int]) -> str:
        """Ends the workers. Returns the answers of the failed ones, and the logs of all."""
        for rank in failed:
            pid = self.processes[rank].pid
            if rank not in self.answers and pid is not None and self.processes[rank].is_alive():
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        text = []
        for rank in failed:
            kind, what = self.answers.get(rank, ("missing", "no answer in time; its log shows where it is"))
            text.append(f"--- rank {rank}: {kind}\n{what}")
        text += [f"--- log of rank {rank}\n{self.log(rank)[-LOG_CHARACTERS_MAX:]}" for rank in range(self.size)]
        for process in self.processes:
            process.kill()
        self.stop()
        return "\n".join(text)


def _kind(_: str, text: str) -> type[AssertionError]:
    """The class of an error, by the last line of its traceback."""
    waited = text.rstrip().rpartition("\n")[2].startswith(f"{TimedOutError.__module__}.{TimedOutError.__qualname__}: ")
    return TimedOutError if waited else WorkerFailedError


def await_marks(folder: Path, count: int) -> None:
    """Waits for `count` files in a folder, by which workers tell each other and the test of their progress."""
    wait_until(lambda: len(list(folder.iterdir())) >= count, f"{count} workers got that far", MARKS_TIMEOUT_S)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, without the variables of a surrounding job, and with the packages of this tree."""
    foreign = ("WIRESUM_", "TORCHELASTIC_", "GLOO_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    paths = [str(path) for path in sys.path if path and Path(path, "wiresum").is_dir()]
    clean["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [clean.get("PYTHONPATH")])])
    return {**clean, "OMP_NUM_THREADS": "1", **(variables or {})}
