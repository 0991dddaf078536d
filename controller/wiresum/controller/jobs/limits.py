"""How generous the service is, to everybody and to each tenant."""

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
    """How long a worker may be unheard of, by its answers to pings, by the switch's counters and by the rounds of the
    others together, before it is taken for lost: for hosts and networks that vanish. Heartbeats may wait for longer,
    while a worker's interpreter is held up."""
    connection_lost_ms: int = 3000
    """The same, once the connection of a worker that was just heard of has broken: its process has died, most likely.
    One that lives attends again within this time."""
    suspect_ms: int = 2000
    """From this silence on the switch is asked whether its data plane has heard of the worker; and a connection that
    breaks after it says no more than the silence."""
    counted_ms: int = 1000
    """How often the switch is asked."""
    resumed_ms: int = 10_000
    """After the service itself was stopped: for so long connections break that workers gave up meanwhile."""
    deaf_ms_max: int = 600_000
    """How long a job goes on whose switch and whose workers are all out of the service's reach: it is the service that
    is cut off then, most likely."""
    ask_again_ms_max: int = 10_000
    """Between the end of a worker's connection, while it waits for its grant, and its asking again. It may ask the
    cluster's other controllers first, with a pause before each; whoever comes with its rank has its place at once."""
    leave_grace_ms: int = 3000
    """Between the first good-bye and the end of the job for whoever stays. Workers leave at about the same time."""
    attend_ms_max: int = 10_000
    """From the grant to the first heartbeat: the worker starts its threads in between."""
    reattend_ms_max: int = 30_000
    """The same, after the service was started again: its workers look for it now and then."""
    reattach_ms: int = 3_000
    """How long workers look for a service that has refused them. Short, since one without state on disk does not come
    back with their job."""
    reattach_with_state_ms: int = 600_000
    """The same of one that has: an operator may want to look why it stopped."""
    drain_ms_max: int = 5000
    """How long an ended job waits for its workers to be told."""
    evict_retry_ms: int = 1000
    """When the switch could not be told to forget a job, or to hold what it should."""
    switch_lost_ms_max: int = 30_000
    """How long the rounds of a job may stand still while one of its switches cannot be reached, before that one is
    taken for lost."""
    stall_ms_max: int = 1000
    """A longer gap between two ticks means that the service itself was stopped, and nobody else is to blame."""
    join_timeout_ms_default: int = 300_000
    join_timeout_ms_max: int = 86_400_000
    waiting_said_ms: int = 1000
    """How often a worker that waits hears what it waits for, if that has changed."""
    waiting_max: int = 1024
    """Jobs that form or wait in the queue; more are refused."""
    waiting_per_host_max: int = 64
    """The same, of those that one address asked for."""
    idle_ms_max: int = 3_600_000
    """How long a job may sum nothing while others wait for slots, before it ends; 0: for ever."""
    overtaken_max: int = 16
    """How many jobs that came later may get slots before one that waits for them: see job_queue.py."""
    serving_checked_ms: int = 5000
    """How often it is looked whether another controller serves from the same state."""
    keep_s_default: int = 3600
    """How long a name is kept for a job that an operator created."""
    keep_s_max: int = 7 * 86_400
    reservations_max: int = 1024


@dataclass(frozen=True)
class Quota:
    """What a tenant may have at the same time, at all switches together: a job's slots count at each that it has."""

    name: str
    """Of the tenant; empty: of each tenant that no other quota names."""
    slots: int | None = None
    """None: as many as there are."""
    jobs: int | None = None
    priority_max: int | None = None

    def describe(self) -> str:
        """In words, without the priority."""
        jobs = "any number of jobs" if self.jobs is None else f"{self.jobs} job{'s' * (self.jobs != 1)}"
        slots = "any number of slots" if self.slots is None else f"{self.slots} slot{'s' * (self.slots != 1)}"
        return f"{jobs} and {slots}"
