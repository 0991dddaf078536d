"""Limits of the service and of each tenant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """For all jobs alike."""

    slots_default: int = 256
    """The lease of a job whose workers did not say how many slots they want."""
    slots_least: int = 16
    """A job gets fewer slots than it wants when the switch is crowded, but not fewer than these."""
    heartbeat_interval_ms: int = 500
    heartbeat_lost_ms: int = 30_000
    """How long a worker may be silent, in answers to pings, in the switch's counters and in the rounds of the others,
    before it is lost: for hosts and networks that vanish."""
    connection_lost_ms: int = 3000
    """The same for a worker whose connection broke shortly after a sign of life: its process has probably died. A live
    one attends again within this time; within a third of it if the connections of others did not break with it, so that
    neither the service nor a proxy in front of it was away."""
    suspect_ms: int = 2000
    """After this silence the switch is asked about the worker, and a connection that breaks says no more than the
    silence."""
    counted_ms: int = 1000
    """How often the switch is asked."""
    resumed_ms: int = 10_000
    """How long after a stall of the service connections may break that workers gave up meanwhile."""
    deaf_ms_max: int = 600_000
    """How long a job goes on whose switch and workers are all out of reach: then the service itself is probably cut
    off."""
    ask_again_ms_max: int = 10_000
    """How long a worker whose Join broke off may take to ask again. It may try other controllers first."""
    leave_grace_ms: int = 3000
    """From the first Leave to the end of the job for those that stay."""
    attend_ms_max: int = 10_000
    """From the grant to the first heartbeat."""
    reattend_ms_max: int = 30_000
    """The same after a restart of the service."""
    reattach_ms: int = 1_000
    """How long workers look for a service that they have lost, and for a sign of its switch, before they look for
    another lease. Short: without state on disk their job is gone."""
    reattach_with_state_ms: int = 600_000
    """The same of a service with state on disk."""
    drain_ms_max: int = 5000
    """How long an ended job waits for its workers to be told."""
    evict_retry_ms: int = 1000
    """Between two attempts to evict a job, or to reconcile a switch."""
    switch_lost_ms_max: int = 30_000
    """How long a job may make no progress while one of its switches is out of reach, before that one is lost; and how
    long a job that moves may have no lease."""
    move_after_ms: int = 1000
    """The same, before it looks for another switch."""
    moves_asked_least: int = 8
    """How many moves the jobs of one tenant may have at once because their workers ask for it, with
    `moves_asked_per_job` for each of its jobs. One more each `moves_asked_ms`: asked_moves.py."""
    moves_asked_per_job: int = 2
    moves_asked_ms: int = 10_000
    stall_ms_max: int = 1000
    """A longer gap between two ticks means that the service itself stood still."""
    join_timeout_ms_default: int = 300_000
    join_timeout_ms_max: int = 86_400_000
    waiting_said_ms: int = 1000
    """How often a worker that waits hears what for, if that has changed."""
    forming_ms_max: int = 3_600_000
    """From a job's first worker to its last, before the job gives up its name, however often its workers ask again: for
    programs that are started by hand on one host after the other."""
    waiting_max: int = 1024
    """Jobs that form or wait in the queue; more are refused."""
    waiting_per_host_max: int = 64
    """The same, of one address."""
    positions_bytes_max: int = 128 << 20
    """Of jobs that form or wait, and go on once they have slots: what all their workers say of where they have halted,
    and what they are told. A job has 5 MiB at most."""
    positions_tenant_bytes_max: int = 16 << 20
    """The same, of one tenant."""
    idle_ms_max: int = 3_600_000
    """How long a job may sum nothing while others wait for slots, before it ends; 0: for ever."""
    overtaken_max: int = 16
    """How many later jobs may get slots before a job that waits for them: see waiting.py."""
    keep_s_default: int = 3600
    """How long a name is kept for a job that an operator created."""
    keep_s_max: int = 7 * 86_400
    reservations_max: int = 1024


@dataclass(frozen=True)
class Quota:
    """What a tenant may have at a time."""

    name: str
    """The tenant's; empty: for each tenant that no other quota names."""
    slots: int | None = None
    """At all switches together, as all that follow. None: as many as there are."""
    jobs: int | None = None
    switch_percent: int = 100
    """Of each switch's slots, job numbers, groups and table entries, which a job takes at each of its switches."""
    waiting_jobs: int = 256
    """Jobs that form or wait in the queue, and so hold their names."""

    def describe(self) -> str:
        """In words: what a job may have to wait for."""
        jobs, slots = counted(self.jobs, "job"), counted(self.slots, "slot")
        *most, last = filter(None, [jobs, slots, self.of_each_switch()])
        return f"{', '.join(most)} and {last}"

    def of_each_switch(self) -> str:
        """Empty: all."""
        return f"{self.switch_percent}% of each switch" if self.switch_percent < 100 else ""

    def in_full(self) -> str:
        has = f"{counted(self.jobs, 'job')}, {counted(self.slots, 'slot')}"
        waiting = f"{counted(self.waiting_jobs, 'job')} that form or wait"
        each = f", {self.of_each_switch() or 'all of each switch'}"
        return f"{has}{each}; {waiting}"


def counted(count: int | None, what: str) -> str:
    return f"any number of {what}s" if count is None else f"{count} {what}{'s' * (count != 1)}"
