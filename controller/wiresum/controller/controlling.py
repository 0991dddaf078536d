"""What `wiresum controller` does: connects to the switches of a configuration, serves, or stands by."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import pwd
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from wiresum import join
from wiresum.controller.config import Config
from wiresum.controller.driver import Endpoint, JobEntry
from wiresum.controller.jobs.cluster import BEING_MADE_READY
from wiresum.controller.jobs.granting import settle_entries
from wiresum.controller.jobs.job import Job, State
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.records import JobRecord, job_of
from wiresum.controller.jobs.set_aside import RecordsSetAside
from wiresum.controller.jobs.tree import has_form
from wiresum.controller.ledger import FILE_NAME as KEYS_FILE_NAME
from wiresum.controller.nodes import Node, nodes
from wiresum.controller.p4runtime import STANDBY_ID, P4Device, P4RuntimeSwitch, PipelineError, Target, targets_of
from wiresum.controller.security import Security
from wiresum.controller.service.join_server import JoinServer
from wiresum.controller.service.standby_server import StandbyServer
from wiresum.controller.store import FILE_NAME, Store
from wiresum.controller.switches import SwitchConfig
from wiresum.join import credentials, hosts
from wiresum.join.credentials import CredentialsError
from wiresum.join.installation import how_to_install

log = logging.getLogger(__name__)

ELECTION_ID_WITHOUT_STATE = STANDBY_ID + 1
READY_S_MAX = 10.0
"""How long to wait for switches that are just being started, before the controller serves without them."""
LOOK_S = 0.5
"""Time between two checks of who programs the switches."""
READY_LOOK_S = 0.02
VACANT_S = 3.0
"""How long no controller must have programmed the switches, and none have shown life, before a standby takes over. A
controller that is only cut off from its switches still shows life. Longer than SURE_S of effects.py."""
FROZEN_S = 10.0
"""How long a controller that programs the switches may show no life before its standby takes over. A sign of life comes
every second."""
LISTEN_S_MAX = 10.0
"""How long the former controller may take to release the port."""


class SetupError(RuntimeError):
    """Raised if the controller cannot run here. The text says what is wrong with the configuration, or with this host,
    and what to do."""


class DemotedError(RuntimeError):
    """Raised if another controller programs the switches now."""


def targets(config: Config) -> list[Target]:
    """The switches, and pipes that are nodes, with their programs. Raises `SetupError`, also for plaintext that the
    configuration does not ask for."""
    try:
        for switch in config.switches:
            _check_secure(switch, config)
        found = targets_of(config.switches)
    except (PipelineError, CredentialsError) as error:
        raise SetupError(str(error)) from error
    _check_lanes(found)
    return found


def _check_lanes(found: Sequence[Target]) -> None:
    named = {target.name: target for target in found}
    for target in found:
        if target.parent is None:
            continue
        ours, theirs = target.pipeline.lanes, named[target.parent.name].pipeline.lanes
        if ours != theirs:
            raise SetupError(
                f"{target.name} sums packets of {ours} words, and {target.parent.name} above it of {theirs}: "
                f"all packets of a job are of one size, so give the switches of a tree the same `lanes`"
            )


def check_listening(config: Config) -> None:
    """Raises `SetupError` if the controller may not listen at its address, or its certificate is of no use. Warns of a
    name that only this host reaches."""
    host, port = config.listen
    hosts.warn_if_only_here("listen", host)
    if config.metrics is not None:
        hosts.warn_if_only_here("metrics", config.metrics[0])
    try:
        if config.security.tls:
            credentials.load(config.security.tls, serving=True)
        elif not (config.security.insecure or credentials.is_loopback(f"{host}:{port}")):
            raise SetupError(
                f"workers of other hosts can reach {host}:{port}, and there is no TLS directory: say `tls` under "
                f"[security] (`wiresum ca init` makes one), listen at 127.0.0.1, or say insecure = true there"
            )
    except CredentialsError as error:
        raise SetupError(str(error)) from error


def check_files(config: Config) -> None:
    """Raises `SetupError` if this user cannot write the state or the audit log. Changes nothing."""
    if config.state is not None:
        if config.state.exists() and not config.state.is_dir():
            raise SetupError(f"state, {config.state}, is a file, and must be a folder: name another one")
        _check_writable("state", config.state)
        for path in (config.state / FILE_NAME, config.state / KEYS_FILE_NAME):
            if path.exists():
                _check_writable("state", path)
    audit = config.security.audit
    if audit is not None:
        if audit.is_dir():
            raise SetupError(f"audit, {audit}, is a folder, and must be a file: say {audit / 'audit.log'}")
        _check_writable("audit", audit)


def _check_writable(key: str, path: Path) -> None:
    """Raises `SetupError` if this user cannot write the path, or make it if it does not exist."""
    there = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if there != path and not there.is_dir():
        raise SetupError(f"{key}, {path}, cannot be made: {there} is a file")
    if not os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0), effective_ids=True):
        raise SetupError(
            f"{key}, {path}: this user ({_user()}) cannot write {'in ' * there.is_dir()}{there}: make it this user's "
            f"(chown), run this as the service's user, or name another path"
        )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class OnDisk(NamedTuple):
    jobs: dict[str, list[JobEntry]]
    """Jobs that run, by node."""
    keys: bytes
    """Identity of the sequence of the jobs' keys; a new one without a state."""
    set_aside: list[join.SetAsideRecord]
    """Records that a controller could not continue with."""


def on_disk(config: Config) -> OnDisk:
    """Reads the state on disk. Raises `StoreError`."""
    there = nodes(config.switches)
    found: dict[str, list[JobEntry]] = {node.name: [] for node in there}
    endpoints = {node.name: Endpoint(node.switch.address, node.switch.port) for node in there}
    parents = {node.name: node.parent for node in there}
    if config.state is None or not (config.state / FILE_NAME).exists():
        return OnDisk(found, KeySequence.draw().identity, [])

    def take(record: JobRecord) -> Job:
        job = job_of(record, now=0.0, unix_offset=0.0)
        if not has_form(job.lease.nodes, parents):
            raise ValueError("the configuration has not its switches any more, or has them below other ones")
        return job

    set_aside = RecordsSetAside(lambda _: None)
    with contextlib.closing(Store(config.state)) as store:
        state = store.load()
        for job in set_aside.restore(state.jobs, state.set_aside, take):
            if job.state is not State.RUNNING:
                continue
            settle_entries(job.lease, endpoints.__getitem__)
            for name, node in job.lease.nodes.items():
                if node.entry is not None:
                    found[name].append(node.entry)
        return OnDisk(found, store.keys().identity, set_aside.report())


def stand_by(
    config: Config,
    wanted: Sequence[Target],
    store: Store,
    stop: threading.Event,
    beat: Callable[[], None] = lambda: None,
) -> bool:
    """Waits for its turn. Returns True once no other controller programs the switches, or the one that does shows no
    life; False if told to stop. Meanwhile it calls `beat`, and answers operators and Prometheus if it can listen."""
    watch = Watch(store.life_shown)
    with contextlib.ExitStack() as cleanup:
        switches = _connect(wanted, STANDBY_ID, cleanup)
        answering = False
        while not stop.wait(LOOK_S):
            beat()
            if why := watch.look(switches):
                log.warning("%s: this one takes over", why)
                return True
            if not answering:
                answering = True
                _answer_as_standby(config, switches, watch, cleanup)
    return False


def _answer_as_standby(
    config: Config, switches: Sequence[P4RuntimeSwitch], watch: Watch, cleanup: contextlib.ExitStack
) -> None:
    """Answers operators and Prometheus until `cleanup`. A standby that cannot listen can still take over."""
    security = Security(dataclasses.replace(config.security, audit=None))  # the file is the active controller's
    cleanup.callback(security.close)
    server = StandbyServer(switches, security, watch.silent_s)
    try:
        server.start(*config.listen)
        cleanup.callback(server.stop)
        if config.metrics is not None:
            cleanup.callback(_serve_metrics(config, server.report))
    except (OSError, CredentialsError) as error:
        log.warning("nobody can ask this standby how it is: %s. Its `listen` and `metrics` must be its own", error)


class SeenByStandby(Protocol):
    """A switch as a standby sees it, for instance a `P4RuntimeSwitch`."""

    name: str

    @property
    def trouble(self) -> str: ...
    @property
    def outranked(self) -> bool: ...


class Watch:
    """Decides whether the active controller is gone, or frozen: a frozen controller keeps its connections, so a switch
    may not notice."""

    def __init__(self, life_shown: Callable[[], float | None], clock: Callable[[], float] = time.monotonic) -> None:
        """`life_shown`: returns when life was last shown, as `Store.life_shown` does."""
        self._life_shown, self._clock = life_shown, clock
        self._shown = life_shown()
        self._alive_at = self._taken_at = self._looked_at = clock()

    def silent_s(self) -> float | None:
        """For how long no controller has shown life; None: none serves. May be called from any thread."""
        return None if self._shown is None else self._clock() - self._alive_at

    def look(self, switches: Sequence[SeenByStandby]) -> str:
        """Returns why to take over, as a clause, or an empty text. To be called every LOOK_S."""
        outranked = any(switch.outranked for switch in switches)
        vacant = [] if outranked else [switch.name for switch in switches if not switch.trouble]
        shown, now = self._life_shown(), self._clock()
        we_were_frozen = now - self._looked_at > 4 * LOOK_S
        if shown != self._shown or we_were_frozen:
            self._alive_at = now
        if not vacant or we_were_frozen:
            self._taken_at = now
        self._shown, self._looked_at = shown, now
        if vacant and shown is None:  # a controller that serves shows life, until its orderly end
            return f"no controller programs {', '.join(vacant)}, and none serves"
        if min(now - self._taken_at, now - self._alive_at) > VACANT_S:
            return f"no controller has programmed {', '.join(vacant)} or shown life for {VACANT_S:.0f} s"
        if shown is not None and now - self._alive_at > FROZEN_S:
            return f"the controller that serves has shown no life for {FROZEN_S:.0f} s"
        return ""


def serve(
    config: Config,
    wanted: Sequence[Target],
    store: Store | None,
    stop: threading.Event,
    say: Callable[[str], None],
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Serves until told to stop. Calls `say` once it serves, and `beat` as long as it is alive. Former jobs continue if
    there is a store; otherwise the switches are loaded anew, since nobody knows which keys their cells hold. Raises
    `DemotedError`, `SetupError`, `OSError` or `StoreError`."""
    election_id = store.begin() if store else ELECTION_ID_WITHOUT_STATE
    keys = store.keys() if store else Keys(KeySequence.draw())
    with contextlib.ExitStack() as cleanup:
        switches = _connect([target.with_keys(keys.identity) for target in wanted], election_id, cleanup)
        _wait_ready(switches, stop)
        security = Security(config.security)
        cleanup.callback(security.close)

        def make() -> JoinServer:
            return JoinServer(switches, config.limits, quotas=config.quotas, store=store, keys=keys, security=security)

        server = _start(make, config, stop, patient=store is not None)
        cleanup.callback(lambda: server.stop(keep_jobs=store is not None or _demoted(server, switches)))
        if config.metrics is not None:
            cleanup.callback(_serve_metrics(config, server.report, server))
        _wait_reconciled(server, stop)
        say(_ready(config, server, switches))
        while not stop.wait(LOOK_S):
            if server.is_alive:
                beat()
            if _demoted(server, switches):
                said = server.deposed or next(switch.trouble for switch in switches if switch.outranked)
                raise DemotedError(f"another controller has taken over: {said}")
        was_last = not _demoted(server, switches)
    if store is not None and was_last:
        store.end()


def _demoted(server: JoinServer, switches: Sequence[P4RuntimeSwitch]) -> bool:
    return bool(server.deposed) or any(switch.outranked for switch in switches)


def _connect(wanted: Sequence[Target], election_id: int, cleanup: contextlib.ExitStack) -> list[P4RuntimeSwitch]:
    switches = []
    devices: dict[tuple[str, int], P4Device] = {}
    for target in wanted:
        place = target.p4runtime, target.device
        if place not in devices:
            devices[place] = P4Device(target, election_id=election_id)
            cleanup.callback(devices[place].close)
        switches.append(P4RuntimeSwitch(target, election_id=election_id, device=devices[place]))
    return switches


def _wait_ready(switches: Sequence[P4RuntimeSwitch], stop: threading.Event) -> None:
    """Waits until the switches are ready. A switch that is not ready in time is used once it is."""
    give_up_at = time.monotonic() + READY_S_MAX
    while any(switch.trouble for switch in switches) and time.monotonic() < give_up_at:
        for switch in switches:
            if switch.outranked:
                raise DemotedError(switch.trouble)
        if stop.wait(READY_LOOK_S):
            return
    for switch in switches:
        if switch.trouble:
            log.warning("it begins without %s, and uses it when it is there: %s", switch.name, switch.trouble)


def _wait_reconciled(server: JoinServer, stop: threading.Event) -> None:
    """Waits until the switches hold what they should, so that this is true when the controller says that it is ready. A
    switch that takes too long is not waited for."""
    give_up_at = time.monotonic() + READY_S_MAX
    while not server.deposed and _makes_ready(server):
        if stop.wait(READY_LOOK_S) or time.monotonic() >= give_up_at:
            return


def _makes_ready(server: JoinServer) -> bool:
    """True if a switch is being made ready, as far as is known."""
    try:
        return any(switch.trouble == BEING_MADE_READY for switch in server.report().switches)
    except (
        RuntimeError,
        concurrent.futures.TimeoutError,
    ) as error:  # the server may be about to hear that it is deposed
        log.debug("there is no report yet: %s", error)
        return True


def _start(make: Callable[[], JoinServer], config: Config, stop: threading.Event, *, patient: bool) -> JoinServer:
    """Starts a server. `patient`: tries for a while, since the former controller may still hold the port."""
    give_up_at = time.monotonic() + LISTEN_S_MAX * patient
    while True:
        server = make()
        try:
            server.start(*config.listen)
        except OSError:
            if time.monotonic() >= give_up_at or stop.wait(LOOK_S):
                raise
        else:
            return server


def _serve_metrics(
    config: Config, report: Callable[[], join.Report], active: JoinServer | None = None
) -> Callable[[], None]:
    """Serves metrics. Returns a function that ends them."""
    try:
        from wiresum.controller import metrics
    except ImportError as error:
        raise SetupError(f"metrics need prometheus-client ({error}): {how_to_install('controller')}") from error
    assert config.metrics is not None
    of_loop = [metrics.LoopCollector(active)] if active is not None else []
    directories = {"service": config.security.tls} | {f"switch {switch.name}": switch.tls for switch in config.switches}
    of_files = metrics.CertificateCollector(directories)
    return metrics.serve(*config.metrics, *of_loop, of_files, metrics.ReportCollector(report)).close


def _ready(config: Config, server: JoinServer, switches: Sequence[P4RuntimeSwitch]) -> str:
    return f"ready: control {hosts.shown(config.listen[0])}:{server.port}, " + ", ".join(
        _switch(switch, node) for switch, node in zip(switches, nodes(config.switches), strict=True)
    )


def _switch(switch: P4RuntimeSwitch, node: Node) -> str:
    sizes, data = switch.sizes, switch.endpoint
    count = f"{len(node.hosts)} host{'s' * (len(node.hosts) != 1)}, " if node.hosts else ""
    below = f"below {node.parent}, " if node.parent else ""
    absent = ", not there yet" if switch.trouble else ""
    return (
        f"data {data.address}:{data.port}-{data.port + sizes.threads_max - 1} "
        f"({switch.name}, {switch.kind}, {below}{count}{sizes.slots} slots, {sizes.lanes_max} lanes{absent})"
    )


def _check_secure(switch: SwitchConfig, config: Config) -> None:
    if switch.tls:
        credentials.load(switch.tls)
    elif not (switch.insecure or config.security.insecure or credentials.is_loopback(switch.p4runtime)):
        raise SetupError(
            f"the P4Runtime server of {switch.name}, {switch.p4runtime}, is not on this host, and there is no TLS "
            f"directory for it: say `tls` in its [[switch]] (`wiresum ca issue` makes one), or insecure = true if "
            f"everybody in that network may program the switch"
        )
