"""A job goes on, while none of its switches serves, at a software switch on rank 0's host (docs/operations.md, "Without
any switch").

When a job begins rank 0 takes a TCP port, so that all workers know where that switch would be, and holds it until the
job is over: no other process can listen there. Nothing listens until a worker has halted and finds no service. Then
rank 0's process starts `wiresum switch` as a child, and passes the port on to it. To operators the child looks like any
other service. It serves only the jobs of this process, which it is told over a socket that no other process has.

The port may be another process's already when a job begins. So before a worker says anything there it asks for a proof
that the switch was told the job's secret (join/served.py).

A thread attends to the child. Once a service of the job's own has been ready for a while the thread tells the child to
end, which tells the workers that their switch is gone: they ask for a place again, at their own services first. A child
outlives the jobs of its parent for some seconds, in which workers may still ask for the last RESULTs, and outlives the
parent itself for as long, to tell the others that the parent was lost.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from wiresum.agent.child_switch import START_S_MAX, Child, end_listening, hold_port, start_switch, take_port
from wiresum.agent.config import AUTO, OFF, AgentConfig
from wiresum.agent.control import Control, details, grpc
from wiresum.agent.errors import WiresumError
from wiresum.agent.way_out import way_out
from wiresum.agent.world import WORLD, World
from wiresum.join import Challenge, JoinReply, credentials, hosts
from wiresum.join.constants import SWITCH_SLOTS_MAX, THREADS_MAX
from wiresum.join.credentials import CredentialsError, NotForServingError
from wiresum.join.served import NONCE_BYTES, ServedJob, pack, proof

log = logging.getLogger(__name__)

PROVE_S_MAX = 1.0
LOOK_S, LOOK_S_MAX = 0.25, 1.0
"""The pause between two checks that a service of the job's own is ready, and the longest wait for an answer."""
RETURN_AFTER_S = 1.0
"""A service must have been ready for so long before a job returns to it."""
RETURN_DOUBLINGS_MAX = 8
"""Whenever a job comes back at once, since it found no place there, the time above is doubled: up to 256 s."""
UNUSED_S_MAX = 5.0
"""A child without a job of this process ends after so long."""
START_PAUSE_S = 5.0
"""The pause after a child that could not start."""
LEASES = 2
"""The room for each job, in leases: a job that comes back may find its last lease still taken."""


class Fallback:
    """The fallback of one job's membership. Any thread may call any method."""

    def __init__(self, config: AgentConfig, job_name: str, home: Home | None, world: World = WORLD) -> None:
        """`home` is given if this worker starts the switch; `give_back` gives it back."""
        self.target = config.fallback
        """The fallback's control endpoint, host:port."""
        self.trouble = ""
        """A sentence on why `serves` did not believe the listener there; empty: nothing listens, or the fallback
        serves."""
        self._config = config
        self._job_name = job_name
        self._secret = b""
        self._home, self._world = home, world
        self._given_back = threading.Lock()

    @classmethod
    def of(cls, config: AgentConfig, job_name: str, rank: int) -> Fallback | None:
        """Returns None if there is no fallback. An `auto` fallback is agreed on before, by `reserve` at rank 0."""
        if config.fallback == AUTO or not config.may_fall_back:
            return None
        return cls(config, job_name, Home.at(config) if rank == 0 else None)

    def know(self, grant: JoinReply) -> None:
        """Notes that the job has begun, so that the switch may serve it. `grant`: any of the job's."""
        self._secret = grant.members_secret
        if self._home is not None and self._secret:
            secret = self._secret.hex()
            job = ServedJob(self._job_name, self._config.tenant, secret, grant.workers, grant.slots)
            self._home.know(self, job, grant.lanes)

    def open(self, grant: JoinReply) -> None:
        """Starts the switch, if this worker is to and no switch runs: no service of the job's own serves it. Returns at
        once, and does not raise. `grant`: the job's newest."""
        self.know(grant)
        if self._home is not None and self._secret:
            self._home.open(self, self._config, grant)

    def serves(self) -> bool:
        """Returns whether the switch of this job's rank 0 listens there, by its proof; this worker says nothing
        before."""
        self.trouble = ""
        if not self._secret or not self._world.listens(self.target):
            return False
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            here = replace(self._config, switch=self.target, fallback=OFF)
            with contextlib.closing(Control(here, self._world)) as control:
                challenge = Challenge(job_name=self._job_name, nonce=nonce)
                said = control.stub().Prove(challenge, timeout=PROVE_S_MAX).mac
            found = "its proof is wrong"
        except (grpc.RpcError, CredentialsError) as error:
            said, found = b"", details(error)
        if hmac.compare_digest(said, proof(self._secret, nonce)):  # R7.28
            return True
        self.trouble = (
            f"what listens at {self.target} does not prove that it is the fallback switch of job '{self._job_name}', "
            f"and was told nothing: another process of that host may have taken the port ({found})"
        )
        return False

    def close(self) -> None:
        """The job goes on elsewhere, or is over: the switch ends soon, unless other jobs need it. Idempotent."""
        if self._home is not None:
            self._home.close(self)

    def give_back(self) -> None:
        """Call when the job is over. Idempotent."""
        self.close()
        if self._given_back.acquire(blocking=False) and self._home is not None:
            self._home.give_back(self)


def reserve(config: AgentConfig) -> Home | None:
    """Returns rank 0's home for `auto`, at this worker's own address, to be given back. None: a home is impossible, and
    a warning has said why, once in a process, if the cause can be mended. A certificate without --fallback is none."""
    if config.fallback != AUTO or not config.may_fall_back:
        return None
    try:
        address = way_out(config)[0]
    except WiresumError:  # joining reports the same
        return None
    if config.tls and _calls_alone(config.tls):
        return None
    return None if _warned(_why_not(config, address)) else Home.reserve(address)


class Home:
    """A place where this process can start a switch, and that switch while it is needed. All jobs of the process share
    one for each endpoint. Any thread may call any method."""

    def __init__(
        self,
        endpoint: str,
        data_port: int,
        world: World = WORLD,
        start: Callable[[list[str], socket.socket, bytes], Child] | None = None,
    ) -> None:
        """`data_port`: the switch's first UDP port; 0: any. `start`: as `start_switch` does."""
        self.endpoint = endpoint
        self.unused_s_max = UNUSED_S_MAX
        self._world, self._clock, self._start = world, world.clock, start or start_switch
        self._data_port = data_port
        self._held: socket.socket | None = None
        """This socket has the TCP port, so that nobody else can listen there, but a child that has the socket too."""
        self._holders = 0
        self._jobs: dict[Fallback, tuple[ServedJob, int]] = {}
        """The jobs that a child serves, with their lanes."""
        self._users: set[Fallback] = set()
        """Fallbacks that have opened this home."""
        self._unused_since = 0.0
        self._thread: threading.Thread | None = None
        self._next: AgentConfig | None = None
        """The configuration of the child to start when this one has ended."""
        self._start_at = 0.0
        self._data: set[tuple[str, int]] = set()
        """Address and first port of each child so far."""
        self._returned = False
        self._returns_in_vain = 0

    @classmethod
    def reserve(cls, address: str) -> Home | None:
        """Reserves some port; the same one again if this process has one there."""
        with _registry.lock:
            for home in _registry.homes.values():
                if home._data_port == 0 and home.endpoint.rpartition(":")[0] == address:
                    return home._use()
            try:
                held = hold_port(address)
            except OSError as error:
                log.warning("no port can be had for a fallback switch at %s: %s", address, error)
                return None
            home = cls("{}:{}".format(*held.getsockname()), 0)
            home._held = held
            return home._use()

    @classmethod
    def at(cls, config: AgentConfig) -> Home | None:
        """Returns the home at the configured fallback; None if this process cannot serve there, and a warning has said
        why."""
        endpoint = config.fallback
        with _registry.lock:
            if endpoint in _registry.homes:
                return _registry.homes[endpoint]._use()
        host, _, port = endpoint.rpartition(":")
        if _warned("" if _is_here(host) else f"{host} is not on this host, where rank 0 is") or _warned(
            _why_not(config, host)
        ):
            return None
        hosts.warn_if_only_here("WIRESUM_FALLBACK", host)
        with _registry.lock:
            home = _registry.homes.get(endpoint, cls(endpoint, int(port) + 1))
            home._has_port()  # logs at once why not
            return home._use()

    def _use(self) -> Home:
        self._holders += 1
        return _registry.homes.setdefault(self.endpoint, self)

    def know(self, user: Fallback, job: ServedJob, lanes: int) -> None:
        with _registry.lock:
            self._jobs[user] = job, lanes

    def give_back(self, user: Fallback | None = None) -> None:
        with _registry.lock:
            if user is not None:
                self._jobs.pop(user, None)
            self._holders -= 1
            if not self._holders and self._thread is None:
                self._forget()

    def close(self, user: Fallback) -> None:
        with _registry.lock:
            if user in self._users:
                self._users.discard(user)
                self._unused_since = self._clock.now()

    def open(self, user: Fallback, config: AgentConfig, grant: JoinReply) -> None:
        with _registry.lock:
            self._users.add(user)
            if self._clock.now() < self._start_at:
                return
            if self._returned:
                self._returns_in_vain = self._returns_in_vain + 1 if self._is_ours(grant) else 0
                self._returned = False
            self._next = config
            if self._thread is None:
                try:
                    self._thread = self._clock.start(self._serve, "wiresum-fallback")
                except RuntimeError as error:  # the process ends, or may have no more threads
                    log.warning("the fallback switch at %s cannot be started: %s", self.endpoint, error)

    def _is_ours(self, grant: JoinReply) -> bool:
        """True for a grant by one of the children: then the job has been nowhere else since."""
        at = grant.switch_endpoint
        return any(at.address == address and 0 <= at.port - first < THREADS_MAX for address, first in self._data)

    def _needs(self) -> _Sizes:
        with _registry.lock:
            jobs = list(self._jobs.values())
        return _Sizes(sum(job.slots for job, _ in jobs), max((lanes for _, lanes in jobs), default=1))

    def _served(self) -> bytes:
        with _registry.lock:
            return pack(job for job, _ in self._jobs.values())

    def _command(self, config: AgentConfig, sizes: _Sizes) -> list[str]:
        options = {
            "--control": self.endpoint,
            "--port": self._data_port,
            "--lanes": sizes.lanes,
            "--slots": sizes.slots,
            "--transport": config.transport,
        } | ({"--tls": Path(config.tls).expanduser().absolute()} if config.tls else {})
        return [*(word for each in options.items() for word in map(str, each)), *["--insecure"] * config.insecure]

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
                self._attend(wanted)
            except Exception:  # the system has no process or no thread left
                log.exception("the fallback switch at %s cannot be started", self.endpoint)
                self._start_at = self._clock.now() + START_PAUSE_S

    def _has_port(self) -> bool:
        """Takes the port, if another process does not have it."""
        if self._held is None:
            try:
                self._held = take_port(self.endpoint)
            except OSError as error:
                log.warning(
                    "no fallback switch can be started at %s: another process of this host has that port (%s), and "
                    "this job will not go on there. End it (`ss -ltnp` shows it), or choose another WIRESUM_FALLBACK",
                    self.endpoint, error.strerror,
                )  # fmt: skip
        return self._held is not None

    def _attend(self, config: AgentConfig) -> None:
        if not self._has_port():
            self._start_at = self._clock.now() + START_PAUSE_S
            return
        assert self._held is not None
        needs = self._needs()
        sizes = _Sizes(min(LEASES * needs.slots, SWITCH_SLOTS_MAX), needs.lanes)
        child = self._start(self._command(config, sizes), self._held, self._served())
        lookout = _Lookout(config, self._world)
        try:
            give_up_at = self._clock.now() + START_S_MAX
            while not child.is_ready and child.runs and self._clock.now() < give_up_at:
                self._clock.sleep(LOOK_S)
            if not child.is_ready:
                self._start_at = self._clock.now() + START_PAUSE_S
                log.warning("the fallback switch at %s does not start: %s", self.endpoint, child.said())
                return
            self._data.add(child.data)
            log.warning(
                "no switch of %s serves: the job goes on at a software switch of this host (%s), which is slower. It "
                "returns when one serves again", config.switch, self.endpoint,
            )  # fmt: skip
            while child.runs and not self._is_over(config, lookout, sizes):
                child.tell(self._served())
                self._clock.sleep(LOOK_S)
            if not child.runs:
                log.warning("the fallback switch at %s has ended by itself: %s", self.endpoint, child.said())
        finally:
            lookout.close()
            child.stop()
            end_listening(self._held)

    def _is_over(self, config: AgentConfig, lookout: _Lookout, sizes: _Sizes) -> bool:
        with _registry.lock:
            if not self._users and self._clock.now() > self._unused_since + self.unused_s_max:
                return True
            if self._users and self._next is not None:
                needs = self._needs()
                if needs.slots > sizes.slots or needs.lanes > sizes.lanes:
                    return True  # a larger one starts
                self._next = None  # the child runs already
            return_after_s = RETURN_AFTER_S * 2 ** min(self._returns_in_vain, RETURN_DOUBLINGS_MAX)
        if lookout.ready_s() < return_after_s:
            return False
        log.warning("a switch of %s serves again: the job returns to it from %s", config.switch, self.endpoint)
        self._returned = True
        return True

    def _forget(self) -> None:
        _registry.homes.pop(self.endpoint, None)
        self.let_go()

    def let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


class _Sizes(NamedTuple):
    """A switch's size."""

    slots: int
    lanes: int


class _Lookout:
    """Looks for one of the job's own services that could take a job. Used by one thread."""

    def __init__(self, config: AgentConfig, world: World) -> None:
        self._config, self._world = replace(config, fallback=OFF), world
        self._control: Control | None = None
        self._ready_since: float | None = None

    def ready_s(self) -> float:
        """Returns the seconds for which a service has been ready without a break; 0: none is."""
        ready = False
        with contextlib.suppress(CredentialsError):  # files are being replaced
            self._control = self._control or Control(self._config, self._world)
            ready = self._control.is_ready(LOOK_S_MAX)
            if not ready:
                self._control.reconnect()
        if not ready:
            self._ready_since = None
            return 0.0
        if self._ready_since is None:
            self._ready_since = self._world.clock.now()
        return self._world.clock.now() - self._ready_since

    def close(self) -> None:
        if self._control is not None:
            self._control.close()


def _why_not(config: AgentConfig, host: str) -> str:
    """Returns why this worker cannot serve at this host, and what to do; empty: it can."""
    if not config.tls:
        may = config.insecure or credentials.is_loopback(f"{host}:0")
        return "" if may else "set WIRESUM_INSECURE=1, or WIRESUM_TLS"
    try:
        addresses = credentials.load(config.tls, serving=True).addresses
    except CredentialsError as error:
        problem = str(error)
    else:
        if host in addresses or not hosts.is_address(host):
            return ""
        problem = f"{config.tls} names {', '.join(addresses) or 'no address'}, and not {host}"
    return f"{problem}. `wiresum ca issue worker --fallback --address {host}` issues one that can serve there"


def _calls_alone(tls: str) -> bool:
    """True for a certificate that was issued without --fallback: nobody who has it expects to serve."""
    try:
        credentials.load(tls, serving=True)
    except NotForServingError:
        return True
    except CredentialsError:
        pass
    return False


def _warned(why_not: str) -> bool:
    """Returns whether there was a reason to warn; each reason is logged once."""
    if why_not and why_not not in _registry.warned_of:
        _registry.warned_of.add(why_not)
        log.warning("this worker can start no fallback switch (WIRESUM_FALLBACK=off does without): %s", why_not)
    return bool(why_not)


def _is_here(host: str) -> bool:
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


class _Registry:
    """The homes of this process, by endpoint."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """This lock also guards all that changes in a home."""
        self.homes: dict[str, Home] = {}
        self.warned_of: set[str] = set()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child starts and stops nothing, and holds no port when its parent has ended."""
        self.lock = threading.RLock()
        for home in self.homes.values():
            home.let_go()
        self.homes = {}


_registry = _Registry()
