"""Where a job goes on while none of its switches serves: a software switch at rank 0's host (docs/operations.md,
"Without any switch").

When a job begins rank 0 reserves a TCP port, so that all workers know where that switch would be. Nothing listens
there until a worker has halted and finds no service. Then rank 0's process starts `wiresum switch` as a child, which
looks like any other service to workers and operators.

A thread attends to the child. Once a service of the job's own has been ready for a while it tells the child to end,
which tells the workers that their switch is gone: they ask for a place again, at their own services first. A child
outlives the jobs of its parent for some seconds, in which workers may still ask for the last RESULTs, and outlives the
parent itself for as long, to tell the others that it was lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from wiresum.agent.config import AUTO, OFF, AgentConfig
from wiresum.agent.control import Control
from wiresum.agent.errors import WiresumError
from wiresum.agent.way_out import way_out
from wiresum.join import JoinReply, credentials
from wiresum.join.constants import SWITCH_SLOTS_MAX, THREADS_MAX
from wiresum.join.credentials import CredentialsError

log = logging.getLogger(__name__)

CONNECT_S_MAX = 0.25
LOOK_S, LOOK_S_MAX = 0.25, 1.0
"""Between two questions whether a service of the job's own is ready, and how long an answer may take."""
RETURN_AFTER_S = 1.0
"""So long it must have been ready."""
RETURN_DOUBLINGS_MAX = 8
"""Whenever a job comes back at once, since it found no place there, the time above is doubled: up to 256 s."""
UNUSED_S_MAX = 5.0
"""How long a child goes on without a job of this process."""
START_S_MAX, STOP_S_MAX = 30.0, 10.0
START_PAUSE_S = 5.0
"""After a child that could not start."""
SLOTS = 4096
JOBS_AS_LARGE = 4
"""So many jobs of the size of the first have room."""
LINES_KEPT = 5

_READY = re.compile(r"^ready: .* data (\S+):(\d+)-")
_OF_THE_SUPERVISOR = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables that are meant for the worker, not for its child."""


class Fallback:
    """Of one job's membership. Any thread may call any method."""

    def __init__(self, config: AgentConfig, home: Home | None) -> None:
        """`home`: if this worker starts the switch; it is given back by `give_back`."""
        self.target = config.fallback
        """Its control endpoint, host:port."""
        self._config = config
        self._home = home
        self._given_back = threading.Lock()

    @classmethod
    def of(cls, config: AgentConfig, rank: int) -> Fallback | None:
        """None: there is none. That of `auto` is agreed on before, by `reserve` at rank 0."""
        if config.fallback == AUTO or not config.may_fall_back:
            return None
        return cls(config, Home.at(config) if rank == 0 else None)

    def open(self, grant: JoinReply) -> None:
        """No service of the job's own serves it. Starts the switch, if this worker is the one and it does not run.
        Returns at once, and does not raise. `grant`: the job's newest."""
        if self._home is not None:
            self._home.open(self, self._config, grant)

    def serves(self) -> bool:
        """Does something listen there?"""
        return _listens(self.target)

    def close(self) -> None:
        """The job goes on elsewhere, or is over: the switch ends soon, unless other jobs need it. Idempotent."""
        if self._home is not None:
            self._home.close(self)

    def give_back(self) -> None:
        """The job is over. Idempotent."""
        self.close()
        if self._given_back.acquire(blocking=False) and self._home is not None:
            self._home.give_back()


def reserve(config: AgentConfig) -> Home | None:
    """For rank 0, where `auto` can be agreed on: a home at this worker's own address, to be given back. None: there can
    be none, and a warning has said why, once in a process, if that can be mended."""
    if config.fallback != AUTO or not config.may_fall_back:
        return None
    try:
        address = way_out(config)[0]
    except WiresumError:  # joining will say so
        return None
    return None if _warned(_why_not(config, address)) else Home.reserve(address)


class Home:
    """Where this process can start a switch, and that switch while it is needed. One for each endpoint: all jobs of the
    process share it. Any thread may call any method."""

    def __init__(self, endpoint: str, reserved: socket.socket | None) -> None:
        self.endpoint = endpoint
        self._reserved = reserved
        """Holds the port: what it is bound to can still be listened at, as both set SO_REUSEADDR."""
        self._holders = 0
        self._users: set[Fallback] = set()
        """Who has opened it."""
        self._unused_since = 0.0
        self._thread: threading.Thread | None = None
        self._next: tuple[AgentConfig, list[str]] | None = None
        """The child to start when this one has ended."""
        self._start_at = 0.0
        self._data: set[tuple[str, int]] = set()
        """Address and first port of each child so far."""
        self._returned = False
        self._returns_in_vain = 0

    @classmethod
    def reserve(cls, address: str) -> Home | None:
        """At some port; the same one again if this process has one there."""
        with _registry.lock:
            for home in _registry.homes.values():
                if home._reserved is not None and home._reserved.getsockname()[0] == address:
                    return home._use()
            reserved = socket.socket()
            try:
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserved.bind((address, 0))
            except OSError as error:
                reserved.close()
                log.warning("no port can be reserved for a fallback switch at %s: %s", address, error)
                return None
            return cls(f"{address}:{reserved.getsockname()[1]}", reserved)._use()

    @classmethod
    def at(cls, config: AgentConfig) -> Home | None:
        """At the configuration's fallback; None if that is not on this host, or if it cannot serve."""
        endpoint = config.fallback
        with _registry.lock:
            if endpoint in _registry.homes:
                return _registry.homes[endpoint]._use()
        host = endpoint.rpartition(":")[0]
        if not _is_here(host) or _warned(_why_not(config, host)):
            return None
        with _registry.lock:
            return _registry.homes.get(endpoint, cls(endpoint, None))._use()

    def _use(self) -> Home:
        self._holders += 1
        return _registry.homes.setdefault(self.endpoint, self)

    def give_back(self) -> None:
        with _registry.lock:
            self._holders -= 1
            if not self._holders and self._thread is None:
                self._forget()

    def close(self, user: Fallback) -> None:
        with _registry.lock:
            if user in self._users:
                self._users.discard(user)
                self._unused_since = time.monotonic()

    def open(self, user: Fallback, config: AgentConfig, grant: JoinReply) -> None:
        with _registry.lock:
            self._users.add(user)
            if time.monotonic() < self._start_at:
                return
            if self._returned:
                self._returns_in_vain = self._returns_in_vain + 1 if self._is_ours(grant) else 0
                self._returned = False
            self._next = (config, self._command(config, grant))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="wiresum-fallback", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the process ends, or may have no more threads
                    self._thread = None
                    log.warning("the fallback switch at %s cannot be started: %s", self.endpoint, error)

    def _is_ours(self, grant: JoinReply) -> bool:
        """Is it of one of the children, so that the job has been nowhere else since?"""
        at = grant.switch_endpoint
        return any(at.address == address and 0 <= at.port - first < THREADS_MAX for address, first in self._data)

    def _command(self, config: AgentConfig, grant: JoinReply) -> list[str]:
        slots = min(max(SLOTS, JOBS_AS_LARGE * grant.slots), SWITCH_SLOTS_MAX)
        data_port = 0 if self._reserved is not None else int(self.endpoint.rpartition(":")[2]) + 1
        options = {
            "--control": self.endpoint,
            "--port": data_port,
            "--lanes": grant.lanes,
            "--slots": slots,
            "--parent": os.getpid(),
        } | ({"--tls": Path(config.tls).expanduser().absolute()} if config.tls else {})
        flags = ["--insecure"] * config.insecure + ["--no-offload"] * (not config.offload)
        words = [word for option, value in options.items() for word in (option, str(value))]
        return [sys.executable, "-m", "wiresum.cli", "switch", *words, *flags]

    def _serve(self) -> None:
        """Runs in the thread that attends to children, one after the other."""
        while True:
            with _registry.lock:
                wanted, self._next = self._next, None
                if wanted is None or not self._users:
                    self._thread = None
                    if not self._holders:
                        self._forget()
                    return
            try:
                self._attend(*wanted)
            except Exception:  # the system has no process or no thread left
                log.exception("the fallback switch at %s cannot be started", self.endpoint)
                self._start_at = time.monotonic() + START_PAUSE_S

    def _attend(self, config: AgentConfig, command: list[str]) -> None:
        if _listens(self.endpoint):  # another process of this host has started one
            return
        child = _Child(command)
        lookout = _Lookout(config)
        try:
            give_up_at = time.monotonic() + START_S_MAX
            while not child.is_ready and child.runs and time.monotonic() < give_up_at:
                time.sleep(LOOK_S)
            if not child.is_ready:
                self._start_at = time.monotonic() + START_PAUSE_S
                log.warning("the fallback switch at %s does not start: %s", self.endpoint, child.said())
                return
            self._data.add(child.data)
            log.warning(
                "no switch of %s serves: the job goes on at a software switch of this host (%s), which is slower. It "
                "returns when one serves again", config.switch, self.endpoint,
            )  # fmt: skip
            while child.runs and not self._is_over(config, lookout):
                time.sleep(LOOK_S)
            if not child.runs:
                log.warning("the fallback switch at %s has ended by itself: %s", self.endpoint, child.said())
        finally:
            lookout.close()
            child.stop()

    def _is_over(self, config: AgentConfig, lookout: _Lookout) -> bool:
        with _registry.lock:
            if not self._users and time.monotonic() > self._unused_since + UNUSED_S_MAX:
                return True
            if self._users and self._next is not None:
                self._next = None  # it runs already
            return_after_s = RETURN_AFTER_S * 2 ** min(self._returns_in_vain, RETURN_DOUBLINGS_MAX)
        if lookout.ready_s() < return_after_s:
            return False
        log.warning("a switch of %s serves again: the job returns to it from %s", config.switch, self.endpoint)
        self._returned = True
        return True

    def _forget(self) -> None:
        _registry.homes.pop(self.endpoint, None)
        if self._reserved is not None:
            self._reserved.close()


class _Child:
    """A process, until `stop`. What it says goes to our log at level debug."""

    def __init__(self, command: list[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_SUPERVISOR}
        self._process = subprocess.Popen(
            command,
            cwd="/",  # Python looks for modules in the folder that it is started in
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the worker, which says when to end
        )
        self.data = ("", 0)
        """Address and first port; 0 until it serves."""
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader = threading.Thread(target=self._read, name="wiresum-fallback-log", daemon=True)
        self._reader.start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self.data[1] != 0

    def said(self) -> str:
        """The end of it."""
        self._reader.join(LOOK_S)
        ended = "it still starts" if self.runs else f"status {self._process.returncode}"
        return " / ".join(self._said) or ended

    def stop(self) -> None:
        """Its workers are told. Idempotent, bounded."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(LOOK_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.append(line.rstrip())
                log.debug("fallback switch: %s", line.rstrip())
                if (ready := _READY.match(line)) is not None:
                    self.data = ready[1], int(ready[2])


class _Lookout:
    """Looks whether one of the job's own services could take a job. Used by one thread."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = replace(config, fallback=OFF)
        self._control: Control | None = None
        self._ready_since: float | None = None

    def ready_s(self) -> float:
        """For how long without a break; 0: it is not."""
        ready = False
        with contextlib.suppress(CredentialsError):  # files are being replaced
            self._control = self._control or Control(self._config)
            turns = self._control.turns
            ready = self._control.is_ready(LOOK_S_MAX)
            if not ready:
                self._control.move_on(turns)
        if not ready:
            self._ready_since = None
            return 0.0
        if self._ready_since is None:
            self._ready_since = time.monotonic()
        return time.monotonic() - self._ready_since

    def close(self) -> None:
        if self._control is not None:
            self._control.close()


def _why_not(config: AgentConfig, host: str) -> str:
    """Why this worker cannot serve at this host, and what to do; empty: it can."""
    if not config.tls:
        may = config.insecure or credentials.is_loopback(f"{host}:0")
        return "" if may else "set WIRESUM_INSECURE=1, or WIRESUM_TLS"
    try:
        addresses = credentials.load(config.tls, serving=True).addresses
    except CredentialsError as error:
        problem = str(error)
    else:
        if host in addresses or not _is_address(host):
            return ""
        problem = f"{config.tls} names {', '.join(addresses) or 'no address'}, and not {host}"
    return f"{problem}. `wiresum ca issue worker --fallback --address {host}` issues one that can serve there"


def _warned(why_not: str) -> bool:
    """Was there something to warn of? It is said once."""
    if why_not and why_not not in _registry.warned_of:
        _registry.warned_of.add(why_not)
        log.warning("this worker can start no fallback switch (WIRESUM_FALLBACK=off does without): %s", why_not)
    return bool(why_not)


def _is_address(host: str) -> bool:
    with contextlib.suppress(OSError):
        socket.inet_aton(host)
        return True
    return False


def _is_here(host: str) -> bool:
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), CONNECT_S_MAX):
        return True
    return False


class _Registry:
    """The homes of this process, by endpoint."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Also of all that changes in a home."""
        self.homes: dict[str, Home] = {}
        self.warned_of: set[str] = set()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child starts and stops nothing. Its copies of reserved sockets keep nobody from listening there."""
        self.lock = threading.RLock()
        self.homes = {}


_registry = _Registry()
