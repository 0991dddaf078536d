"""Limits of the service and of each tenant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits that hold for all jobs alike."""

    slots_default: int = 256
    """The lease of a job whose workers did not say how many slots they want."""
    slots_least: int = 16
    """A job gets fewer slots than it wants when the switch is crowded, but not fewer than these."""
    heartbeat_interval_ms: int = 500  # R7.13
    heartbeat_lost_ms: int = 30_000
    """How long a worker may be silent, in answers to pings, in the switch's counters and in the rounds of the others,
    before it is lost: for hosts and networks that vanish."""
    connection_lost_ms: int = 3000
    """How long a worker may be gone whose connection broke shortly after a sign of life: its process has probably died.
    A live one attends again within this time; within a third of it if the connections of others did not break with it,
    so that neither the service nor a proxy in front of it was away."""
    suspect_ms: int = 2000
    """After this silence the switch is asked about the worker, and a broken connection proves no more than the silence
    does."""
    counted_ms: int = 1000
    """How often the switch is asked about a silent worker."""
    after_stall_ms: int = 10_000
    """For this long after a stall of the service, connections may break that workers gave up meanwhile."""
    deaf_ms_max: int = 600_000
    """How long a job continues whose switch and workers are all out of reach: then probably the service itself is cut
    off."""
    ask_again_ms_max: int = 10_000
    """How long a worker whose Join broke off may take to ask again. The worker may try other controllers first."""
    leave_grace_ms: int = 3000
    """Time from the first Leave to the end of the job for the workers that stay."""
    attend_ms_max: int = 10_000
    """Time that a worker has from its grant to its first heartbeat."""
    reattend_ms_max: int = 30_000
    """Time that a worker has from a restart of the service to its first heartbeat."""
    reattach_ms: int = 1_000
    """How long workers look for a service that they have lost, and for a sign of its switch, before they look for
    another lease. Short: without state on disk the service has forgotten their job."""
    reattach_with_state_ms: int = 600_000
    """`reattach_ms` of a service with state on disk."""
    drain_ms_max: int = 5000
    """How long an ended job waits for its workers to be told."""
    evict_retry_ms: int = 1000
    """Time between two attempts to evict a job, or to reconcile a switch."""
    switch_lost_ms_max: int = 30_000
    """How long a job may make no progress while one of its switches is out of reach, before the switch counts as lost;
    and how long a job that moves may have no lease."""
    move_after_ms: int = 1000
    """How long a job may make no progress while one of its switches is out of reach, before the job looks for another
    switch."""
    moves_asked_least: int = 8
    """How many moves the jobs of one tenant may have at once because their workers ask for them, plus
    `moves_asked_per_job` for each of its jobs. The budget grows by one each `moves_asked_ms`: asked_moves.py."""
    moves_asked_per_job: int = 2
    moves_asked_ms: int = 10_000
    stall_ms_max: int = 1000
    """A longer gap between two ticks means that the service itself stood still."""
    join_timeout_ms_default: int = 300_000
    join_timeout_ms_max: int = 86_400_000
    waiting_said_ms: int = 1000
    """How often a waiting worker is told what it waits for, if that has changed."""
    forming_ms_max: int = 3_600_000
    """Time from a job's first worker to its last, before the job gives up its name, however often its workers ask
    again: for programs that are started by hand on one host after the other."""
    waiting_max: int = 1024
    """How many jobs may form or wait in the queue; more are refused."""
    waiting_per_host_max: int = 64
    """How many jobs of one address may form or wait in the queue."""
    positions_bytes_max: int = 128 << 20
    """Bytes of positions and roles that the workers of all waiting jobs which continue after losing a lease may send
    and receive. A job has 5 MiB at most."""
    positions_tenant_bytes_max: int = 16 << 20
    """How many of the bytes of `positions_bytes_max` the jobs of one tenant may take."""
    idle_ms_max: int = 3_600_000
    """How long a job may sum nothing while others wait for slots, before it ends; 0: for ever."""
    overtaken_max: int = 16
    """How many later jobs may get slots before a job that waits for slots: see waiting.py."""
    keep_s_default: int = 3600
    """How long a name is kept for a job that an operator created."""
    keep_s_max: int = 7 * 86_400
    reservations_max: int = 1024


@dataclass(frozen=True)
class Quota:
    """What a tenant may have at a time."""

    name: str
    """Name of the tenant; empty: each tenant that no other quota names."""
    slots: int | None = None
    """Slots at all switches together. None, here and for `jobs`: no limit."""
    jobs: int | None = None
    switch_percent: int = 100
    """Share of each switch's slots, job numbers, groups and table entries. A job takes a part at each of its
    switches."""
    waiting_jobs: int = 256
    """How many jobs may form or wait in the queue, and so hold their names."""

    def describe(self) -> str:
        """Says in words what a job may have to wait for."""
        jobs, slots = counted(self.jobs, "job"), counted(self.slots, "slot")
        *most, last = filter(None, [jobs, slots, self.of_each_switch()])
        return f"{', '.join(most)} and {last}"

    def of_each_switch(self) -> str:
        """The share of each switch, in words; empty: all of it."""
        return f"{self.switch_percent}% of each switch" if self.switch_percent < 100 else ""

    def in_full(self) -> str:
        has = f"{counted(self.jobs, 'job')}, {counted(self.slots, 'slot')}"
        waiting = f"{counted(self.waiting_jobs, 'job')} that form or wait"
        each = f", {self.of_each_switch() or 'all of each switch'}"
        return f"{has}{each}; {waiting}"


def counted(count: int | None, what: str) -> str:
    return f"any number of {what}s" if count is None else f"{count} {what}{'s' * (count != 1)}"
