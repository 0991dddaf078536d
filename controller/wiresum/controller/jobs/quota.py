"""What each tenant may have, and what it has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from wiresum.controller.jobs.job import Job, Lease
from wiresum.controller.jobs.limits import Quota, counted
from wiresum.controller.jobs.refusal import Refusal


@dataclass(frozen=True)
class Allowance:
    """What a tenant may still take; None: no limit."""

    jobs: int | None
    slots: int | None


@dataclass(frozen=True)
class Used:
    """What a tenant has: its jobs that have slots."""

    jobs: int
    slots: int
    """Slots, summed over all switches of all these jobs."""

    def describe(self) -> str:
        return f"{counted(self.jobs, 'job')} and {counted(self.slots, 'slot')}"


class Quotas:
    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._quotas = {quota.name: quota for quota in quotas}

    def of(self, tenant: str) -> Quota:
        """The quota of the tenant: its own, or the one for tenants that no quota names."""
        return self._quotas.get(tenant) or self._quotas.get("") or Quota("")

    def named(self) -> list[str]:
        """Names of the tenants that have a quota of their own."""
        return [name for name in self._quotas if name]

    def check_possible(self, tenant: str, *, slots: int = 1) -> None:
        """Raises a `Refusal` if a job with at least these slots could never run."""
        quota, whose = self.of(tenant), whose_quota(tenant)
        too_much = ""
        if quota.jobs == 0 or quota.slots == 0:
            too_much = "any job"
        elif quota.slots is not None and quota.slots < slots:
            too_much = f"{slots} slots"
        if too_much:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"the quota of {whose} does not allow {too_much}: it is {quota.describe()}. The controller's "
                f"configuration says so, under [[tenant]]",
            )

    def check_waiting(self, job: Job, waiting: Iterable[Job]) -> None:
        """Raises a `Refusal` if too many jobs of the same tenant are among the `waiting` ones, which form or are
        queued."""
        most = self.of(job.tenant).waiting_jobs
        if sum(other.tenant == job.tenant for other in waiting) >= most:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"{most} jobs of {whose_quota(job.tenant)} form or wait for slots, and no more can: start {job} again "
                f"when some of them have begun (`wiresum jobs` lists them; waiting_jobs in the controller's "
                f"configuration, under [[tenant]])",
            )

    def allowance(self, tenant: str, slots_of: Callable[[str], Mapping[Lease, int]]) -> Allowance:
        """What the tenant may still take. `slots_of`: returns the slots of each lease of a tenant."""
        quota = self.of(tenant)
        if quota.jobs is None and quota.slots is None:
            return Allowance(None, None)
        has = used(slots_of(tenant))
        return Allowance(
            jobs=None if quota.jobs is None else quota.jobs - has.jobs,
            slots=None if quota.slots is None else quota.slots - has.slots,
        )


def used(slots: Mapping[Lease, int]) -> Used:
    """Sums what a tenant has. `slots`: those of each of its leases."""
    return Used(len(slots), sum(slots.values()))


def whose_quota(tenant: str) -> str:
    return f"tenant {tenant!r}" if tenant else "jobs without a tenant (WIRESUM_TENANT)"
