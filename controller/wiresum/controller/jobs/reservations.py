"""Jobs that operators create: a name, terms, and a token that the workers must show. Pure."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Container, Iterable

from wiresum import join
from wiresum.controller.jobs.cluster import Cluster
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Forget, Output, Save
from wiresum.controller.jobs.quota import Quotas
from wiresum.controller.jobs.records import Reservation
from wiresum.controller.jobs.refusal import Refusal, check_create
from wiresum.controller.resources import SLOTS

log = logging.getLogger(__name__)


class Reservations:
    """Created jobs. A reservation is kept until its job runs, or its time is up and nobody has joined."""

    def __init__(self, limits: Limits, emit: Callable[[Output], None], unix_offset: float) -> None:
        self._limits, self._emit, self._unix_offset = limits, emit, unix_offset
        self._kept: dict[str, Reservation] = {}

    def get(self, job_name: str) -> Reservation | None:
        return self._kept.get(job_name)

    def all(self) -> list[Reservation]:
        return list(self._kept.values())

    def age_s(self, reservation: Reservation, now: float) -> float:
        return max(0.0, now + self._unix_offset - reservation.created_at)

    def create(
        self, request: join.CreateJobRequest, named: Container[str], cluster: Cluster, quotas: Quotas, now: float
    ) -> str:
        """Creates a job. `named`: names of jobs that exist. Returns the job's token; raises a `Refusal`."""
        if request.job_name in named:
            text = f"there is a job {request.job_name!r}: choose another name, or end that one"
            raise Refusal("ALREADY_EXISTS", text)
        check_create(request)
        if request.job_name in self._kept:
            raise Refusal("ALREADY_EXISTS", f"a job {request.job_name!r} was created already: choose another name")
        if len(self._kept) >= self._limits.reservations_max:
            raise Refusal("RESOURCE_EXHAUSTED", f"{len(self._kept)} created jobs wait for workers, and no more can")
        quotas.check_possible(request.tenant, slots=max(1, request.slots))
        cluster.check_size(request.world_size, sharing=True)
        self._check_switch(request, cluster, quotas.of(request.tenant).switch_percent)
        keep_s = min(request.keep_seconds or self._limits.keep_s_default, self._limits.keep_s_max)
        unix_now = now + self._unix_offset
        reservation = Reservation(
            job_name=request.job_name,
            world_size=request.world_size,
            slots=request.slots,
            tenant=request.tenant,
            priority=request.priority,
            switch_name=request.switch_name,
            job_token=secrets.token_urlsafe(24),
            created_at=unix_now,
            keep_until=unix_now + keep_s,
        )
        self._kept[reservation.job_name] = reservation
        self._emit(Save(reservation))
        log.info("job %r was created, and its name is kept for %d s", reservation.job_name, keep_s)
        return reservation.job_token

    def forget(self, job_name: str) -> bool:
        """Removes the reservation of a job. True if there was one."""
        reservation = self._kept.pop(job_name, None)
        if reservation is not None:
            self._emit(Forget(reservation))
        return reservation is not None

    def restore(self, reservations: Iterable[Reservation]) -> None:
        self._kept.update((reservation.job_name, reservation) for reservation in reservations)

    def tick(self, now: float, named: Container[str]) -> None:
        """Drops reservations whose time is up. `named`: names of jobs that exist."""
        late = [r.job_name for r in self._kept.values() if now + self._unix_offset >= r.keep_until]
        for job_name in late:
            if job_name not in named:
                log.info("nobody has joined job %r, and its name is free again", job_name)
                self.forget(job_name)

    def _check_switch(self, request: join.CreateJobRequest, cluster: Cluster, percent: int) -> None:
        """Raises a `Refusal` if no such switch exists, or none is large enough. `percent`: the share of each switch
        that the job's tenant may have."""
        switches = cluster.switches
        usable = cluster.named(request.switch_name) if request.switch_name else list(switches.values())
        if not usable:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"there is no switch {request.switch_name!r} here; there are: {', '.join(switches)}",
            )
        most = max(switch.sizes.room.part(percent).of(SLOTS) for switch in usable)
        if request.slots > most:
            has = "a switch here has" if percent == 100 else f"its tenant may have of a switch here, {percent}%"
            raise Refusal("RESOURCE_EXHAUSTED", f"{request.slots} slots are more than {has}, {most}")
