"""The gRPC server of one or several switches, for workers and operators."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import grpc.aio

from wiresum import join
from wiresum.controller.driver import SwitchDriver
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.security import Security
from wiresum.controller.service.effects import Effects, Times
from wiresum.controller.service.health import Health
from wiresum.controller.service.join_service import JoinService
from wiresum.controller.service.lag import LoopLag
from wiresum.controller.service.operator_service import OperatorService
from wiresum.controller.service.served_jobs import ServedJobs
from wiresum.controller.service.server_thread import OPTIONS, ServerThread
from wiresum.controller.store import Store
from wiresum.join import join_pb2_grpc, operator_pb2_grpc

log = logging.getLogger(__name__)

TICK_S = 0.1
LOOK_S = 1.0
"""Time between two signs of life to a standby."""
TICK_S_MAX = 10.0
"""A service without a tick for this long counts as hanging."""
STOP_MARGIN_S = 5.0
REPORT_S_MAX = 5.0
"""How long a report may take: half of the time that Prometheus gives a scrape, so that a scrape still gets the other
metrics."""
LAG_S_MAX = 2.0
"""A service whose event loop was held up for longer counts as too late, and does so for LAG_KEPT_S after that."""
LAG_KEPT_S = 10.0

PING_MS_MIN = 500


class JoinServer(ServerThread):
    """Serves the jobs of its switches. The drivers and the store belong to the caller: close them after `stop`.

    `start` raises `StoreError` if the state cannot be read.
    """

    def __init__(
        self,
        switches: SwitchDriver | Sequence[SwitchDriver],
        limits: Limits | None = None,
        *,
        quotas: Iterable[Quota] = (),
        store: Store | None = None,
        keys: Keys | None = None,
        security: Security | None = None,
        served: ServedJobs | None = None,
        clock: Callable[[], float] = time.monotonic,
        times: Times | None = None,
    ) -> None:
        """`store`: a store that has begun; without one the jobs end with the service. `keys`: by default the store's
        keys, or those of a new sequence, for switches that are new too. Without `security` the server listens on
        loopback only. `served`: the only jobs that it serves; None: it serves all."""
        super().__init__("wiresum-join-service")
        drivers = list(switches) if isinstance(switches, Sequence) else [switches]
        self._drivers = {driver.name: driver for driver in drivers}
        if len(self._drivers) != len(drivers) or not drivers:
            raise ValueError(f"each switch needs a name of its own, and there must be one: {[d.name for d in drivers]}")
        self._limits = limits or Limits()
        if store is not None:
            self._limits = dataclasses.replace(self._limits, reattach_ms=self._limits.reattach_with_state_ms)
        self._quotas = tuple(quotas)
        self._store = store
        self._keys = keys or (store.keys() if store is not None else Keys(KeySequence.draw()))
        self._security = security or Security()
        self._served = served
        self._clock, self._times = clock, times
        self._effects: Effects | None = None
        self._operators: OperatorService | None = None
        self._health: Health | None = None
        self.lag = LoopLag(TICK_S, self._clock)
        self._grace_s = 0.0
        self._keep_jobs = False

    @property
    def deposed(self) -> str:
        """Why the service must not continue, since another controller serves from its state. Empty if it may."""
        return self._effects.deposed if self._effects else ""

    @property
    def is_alive(self) -> bool:
        """True if the server runs and nothing holds its event loop up."""
        return self.runs and self.lag.overdue_s() < TICK_S_MAX

    @property
    def why_not_ready(self) -> str:
        """A sentence that says why no job can begin; empty if one can. May be read from any thread, also while the
        event loop hangs."""
        if self._health is None or self._effects is None or not self.runs:
            return "this server does not serve"
        unsure = "" if self._effects.is_sure else "whether another controller serves by now is not known"
        return _too_late(self.lag.overdue_s()) or self._health.why_not or unsure

    def report(self, s_max: float = REPORT_S_MAX) -> join.Report:
        """Returns the report that operators get. May be called from any thread. Raises `RuntimeError` if the server
        does not run, or a time-out."""
        if self._loop is None or self._operators is None or not self.runs:
            raise RuntimeError("this server does not serve")
        answer = asyncio.run_coroutine_threadsafe(self._operators.report(), self._loop)
        try:
            return answer.result(s_max)
        finally:
            answer.cancel()  # answers that come too late must not pile up

    def stop(self, grace_s: float = 2.0, *, keep_jobs: bool = False) -> None:
        """Tells all workers, waits up to `grace_s` for them to be told, and ends. Idempotent. `keep_jobs`: the jobs
        continue, for the next service."""
        self._grace_s, self._keep_jobs = grace_s, keep_jobs
        self._end(grace_s + STOP_MARGIN_S)

    @contextlib.asynccontextmanager
    async def _serving(self, listen: str) -> AsyncIterator[int]:
        jobs = self._jobs()
        with contextlib.closing(Effects(jobs, self._drivers, self._store, self._clock, self._times)) as effects:
            operators = OperatorService(jobs, effects, self._security.refusals, self._clock, self._security.audit)
            server = grpc.aio.server(
                options=(*OPTIONS, ("grpc.max_send_message_length", join.REPORT_BYTES_MAX), *_pings(self._limits)),
                interceptors=[self._security.interceptor],
            )
            service = JoinService(jobs, effects, self._clock, self._served)
            join_pb2_grpc.add_JoinServiceServicer_to_server(service, server)
            operator_pb2_grpc.add_OperatorServiceServicer_to_server(operators, server)
            health = Health(server, effects.why_silent)
            await health.show("it has just been started")

            def expel() -> None:
                jobs.expel(self._security.revocations.has, self._clock())
                effects.carry_out()

            async with self._security.listening(server, listen, expel) as port:
                await server.start()
                self._effects, self._operators, self._health = effects, operators, health
                self.lag = LoopLag(TICK_S, self._clock)
                log.info("the service of %s listens at %s", ", ".join(self._drivers), listen)
                effects.start()
                ticking = asyncio.create_task(self._tick_for_ever(jobs, effects, health))
                yield port
                await health.end()
                await self._close(jobs, effects)
                effects.halt()
                await server.stop(0.1)
                ticking.cancel()

    def _jobs(self) -> Jobs:
        """The state machine, with the jobs of the store."""
        switches = [
            Switch(
                driver.name,
                driver.kind,
                driver.sizes,
                driver.endpoint,
                driver.reaches,
                driver.results_group,
                driver.parent,
                driver.part_of,
                driver.needs,
                driver.versions,
            )
            for driver in self._drivers.values()
        ]
        jobs = Jobs(switches, self._keys, self._limits, self._quotas, unix_offset=time.time() - self._clock())
        if self._store is not None:
            jobs.restore(self._store.load(), self._clock())
        return jobs

    async def _tick_for_ever(self, jobs: Jobs, effects: Effects, health: Health) -> None:
        looked_at = late_at = -math.inf
        late_s, worked_at = 0.0, self._clock()
        while True:
            await asyncio.sleep(TICK_S)
            now, late_now_s = self._clock(), self.lag.beat()
            if late_now_s > LAG_S_MAX:
                late_s, late_at = late_now_s, now
            why_not = ""
            try:
                jobs.tick(now)
                if now >= looked_at + LOOK_S:
                    looked_at = now
                    effects.show_life()
                effects.carry_out()
                worked_at = now
            except Exception as error:  # without ticks no silence would ever be noticed
                log.exception("a tick of the service failed; it goes on")
                why_not = f"what the service does at intervals fails: {error!r}"
            why_not = why_not or effects.deposed or effects.trouble
            if not why_not and now < late_at + LAG_KEPT_S:
                why_not = _too_late(late_s)
            if not why_not and not jobs.cluster.is_usable():
                why_not = "no switch takes jobs: `wiresum jobs` says why"
            try:
                await health.show(why_not, works=not effects.deposed and now < worked_at + TICK_S_MAX)
            except Exception:
                log.exception("it could not be shown whether the service is healthy")

    async def _close(self, jobs: Jobs, effects: Effects) -> None:
        """Closes the jobs, and waits until the workers have been told and the switches have forgotten the jobs, or, if
        the jobs continue, until all is on disk."""
        keep = self._keep_jobs
        jobs.close(
            "the controller is being restarted" if keep else "the switch was stopped", self._clock(), keep_jobs=keep
        )
        effects.carry_out()
        give_up_at = time.monotonic() + self._grace_s
        while time.monotonic() < give_up_at and not effects.deposed:
            if effects.idle and len(jobs) == (sum(job.has_begun for job in jobs.all()) if keep else 0):
                return
            await asyncio.sleep(0.01)


def _too_late(late_s: float) -> str:
    return f"the service's event loop is held up, by up to {late_s:.1f} s" if late_s > LAG_S_MAX else ""


def _pings(limits: Limits) -> tuple[tuple[str, int], ...]:
    """gRPC options: a silent worker is pinged, and its connection breaks without an answer, early enough that the
    worker can come back before it is lost. gRPC's own threads answer, even if the worker's interpreter is busy."""
    ping_ms = max(PING_MS_MIN, (limits.heartbeat_lost_ms - limits.connection_lost_ms) // 2)
    return (
        ("grpc.keepalive_time_ms", ping_ms),  # R7.13
        ("grpc.keepalive_timeout_ms", ping_ms),
        # gRPC waits for the longer of the two times, and the default of this one is a minute.
        ("grpc.http2.ping_timeout_ms", ping_ms),
        # There is nothing else to send to a worker that is silent.
        ("grpc.http2.max_pings_without_data", 0),
    )
