"""A switch that runs our P4 program, as the controller's `SwitchDriver`.

What a job needs is written stage by stage, each in the module of its name. A job comes into effect with its entries in
`admit`, which are written last and removed first: while they are there, everything behind them is.

Registers cannot be written over P4Runtime, so a cell is not made older than a job's first round, as the protocol wants
of an admission. It is older all the same: registers are zeros when the program is loaded, which `Client` does at its
start, and from then on leases of a slot have ever newer rounds, beginning with 1. What serial numbers cannot tell is a
round that is half the circle newer than a cell which nobody ever used, so beyond that no job is admitted any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wiresum.controller.driver import DriverError, Endpoint, JobCounters, JobEntry, Sizes
from wiresum.controller.p4runtime import admit, count, deliver, forward, own
from wiresum.controller.p4runtime.client import Client
from wiresum.controller.p4runtime.host import Host

if TYPE_CHECKING:
    from wiresum.compiled import Program

log = logging.getLogger(__name__)

ROUND_FIRST_MAX = (1 << 31) - 1
"""The newest round that is newer than 0, the round of a cell that was never used: RFC 1982."""


class P4RuntimeSwitch:
    """A switch, its own address in the workers' network, and the hosts at its ports.

    Workers can only be on these hosts: the switch admits a packet by its port, and addresses a RESULT to a MAC. The
    client stays the caller's: close it after `close`.
    """

    def __init__(self, client: Client, program: Program, *, address: str, mac: str, hosts: Sequence[Host]) -> None:
        self._client = client
        self._program = program
        self._address = address
        self._hosts = {host.address: host for host in hosts}
        self._rows_free = list(range(1, program.job_rows))
        self._jobs: dict[int, tuple[JobEntry, int]] = {}
        """Those that are admitted, by number, with their rows."""
        self._ended: dict[int, JobCounters] = {}
        """The last counters of those that were evicted."""
        self._rounds_used_up = False
        client.insert("its own address", [own.entry(address, mac)])
        client.insert("the group of ports for floods", [forward.flood_group(hosts)])
        client.insert("the hosts' MAC addresses", forward.entries(hosts))

    @property
    def name(self) -> str:
        return f"P4 switch at {self._client.address}"

    @property
    def lost(self) -> str:
        """Why the switch cannot be reached any more; empty while it can."""
        return self._client.lost

    @property
    def sizes(self) -> Sizes:
        rows = self._program.job_rows - 1
        return Sizes(slots=self._program.slots, lanes_max=self._program.lanes, jobs_max=rows)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self._address, own.DATA_PORT)

    def admit(self, entry: JobEntry) -> None:
        hosts = self._check(entry)
        ports = [host.port for host in hosts]
        row = self._rows_free[0]
        what = f"for job {entry.job}"
        try:
            self._client.modify(f"counters {what}", count.resets(row))
            self._client.insert(f"delivery {what}", deliver.entries(entry, hosts))
            self._client.insert(f"the multicast group {what}", [deliver.group(row, ports)])
            self._client.insert(f"admission {what}", admit.entries(entry, row, ports))
        except DriverError:
            with contextlib.suppress(DriverError):  # the first error is the one to tell
                self._remove(entry, row)
            raise
        self._rows_free.pop(0)
        self._jobs[entry.job] = entry, row
        self._ended.pop(entry.job, None)

    def evict(self, job: int) -> None:
        if job not in self._jobs:
            return
        entry, row = self._jobs[job]
        counters = self._remove(entry, row)
        del self._jobs[job]
        self._rows_free.append(row)  # the last in turn, so that a row comes back late
        self._ended[job] = counters

    def counters(self, job: int) -> JobCounters:
        if job in self._jobs:
            entry, row = self._jobs[job]
            return self._read(row, entry.workers)
        return self._ended.get(job, JobCounters())

    def stray(self) -> JobCounters:
        """Packets that belong to no job, by reason."""
        return self._read(count.ROW_STRAY, 0)

    def close(self) -> None:
        """The switch forgets the jobs that it still has, if it can be reached."""
        for job in list(self._jobs):
            try:
                self.evict(job)
            except DriverError as error:
                log.warning("job %d stays in the switch: %s", job, error)

    def _check(self, entry: JobEntry) -> list[Host]:
        """The hosts of the job's workers, in order of rank. A `DriverError` if the switch cannot take the job."""
        if entry.lanes != self._program.lanes:
            raise DriverError(
                f"{self.name} sums packets of {self._program.lanes} words and no others, but the job's workers agreed "
                f"on {entry.lanes}: leave WIRESUM_LANES unset, and give the network an MTU that holds such packets"
            )
        unknown = sorted({endpoint.address for endpoint in entry.endpoints} - self._hosts.keys())
        if unknown:
            raise DriverError(
                f"{self.name} knows no host with the address {', '.join(unknown)}: add it to the controller's "
                f"configuration, or set WIRESUM_ADDRESS at the worker to one that is there"
            )
        self._check_room("admit", entry, lambda job: job.workers * job.threads)
        self._check_room("deliver", entry, lambda job: job.workers)
        self._rounds_used_up |= entry.round_first > ROUND_FIRST_MAX
        if self._rounds_used_up:
            raise DriverError(
                f"these slots of {self.name} have had so many jobs that no round number is left that is newer than "
                f"all before: start the controller anew when no job runs, which loads the switch's program again"
            )
        assert self._rows_free, "there are as many rows as `sizes` says jobs"
        assert entry.job not in self._jobs, f"job {entry.job} is admitted already"
        return [self._hosts[endpoint.address] for endpoint in entry.endpoints]

    def _check_room(self, table: str, entry: JobEntry, entries_of: Callable[[JobEntry], int]) -> None:
        """The switch would refuse too, but bmv2 does not say why."""
        used, wanted = sum(entries_of(job) for job, _ in self._jobs.values()), entries_of(entry)
        if used + wanted > self._client.room(table):
            raise DriverError(
                f"table {table} of {self.name} has room for {self._client.room(table)} entries; {used} are taken and "
                f"this job needs {wanted}: give the workers fewer threads (WIRESUM_THREADS), or wait until another "
                f"job ends"
            )

    def _remove(self, entry: JobEntry, row: int) -> JobCounters:
        """Whatever the switch has of a job; may be repeated. Returns its last counters."""
        hosts = [self._hosts[endpoint.address] for endpoint in entry.endpoints]
        ports = [host.port for host in hosts]
        what = f"of job {entry.job}"
        self._client.delete(f"admission {what}", admit.entries(entry, row, ports))
        counters = self._read(row, entry.workers)
        self._client.delete(f"the multicast group {what}", [deliver.group(row, ports)])
        self._client.delete(f"delivery {what}", deliver.entries(entry, hosts))
        return counters

    def _read(self, row: int, workers: int) -> JobCounters:
        return count.decode(self._client.read("what it counted", count.reads(row)), workers)
