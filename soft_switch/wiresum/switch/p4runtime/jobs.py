"""Works out what the data plane has to do for a job, from its table entries and multicast groups. Pure.

On a hardware switch each entry of `admit` stands alone. The software switch's data plane has one entry for a job: its
lease, who may contribute through which thread, and who gets RESULTs. So the entries of a job are put together. While
some are missing, the switch refuses the same packets and leaves out the same copies as a hardware switch. But a job
with a parent switch is in effect only when every entry to and from the parent is there.

This data plane cannot do two things, for which our controller does not ask: entries that no worker of a job could have
(`check` refuses them, with UNIMPLEMENTED), and entries of one job that contradict each other (`ContradictionError`: the
job is not in effect until they agree). The data plane does not see ingress ports, so `ingress_port` is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from wiresum.controller.p4runtime.admit import CELL_MASK
from wiresum.join.constants import EVERYONE, PARENT, PARENT_BIT, SWITCH_WORKERS_MAX, THREADS_MAX, UPLINK_GROUPS
from wiresum.switch.p4runtime.refusal import out_of_range, unimplemented
from wiresum.switch.p4runtime.schema import ParsedEntry
from wiresum.switch.software_switch import Admission

ADMISSIONS = ("admit", "admit_parent_entry")
"""The tables that say who may send packets of a job."""
Address = tuple[int, int]
"""An IPv4 address as an integer in host byte order, and a UDP port; for a worker, its base port."""
NOWHERE: Address = (0, 0)


@dataclass(frozen=True)
class Deliveries:
    """The entries of `deliver` of one job."""

    workers: dict[int, Address] = field(default_factory=dict)
    """Addresses of the workers, by their numbers."""
    parent: tuple[Address, int] | None = None
    """Address of the parent switch, and this switch's number there."""
    everyone: Address = NOWHERE
    """The multicast address and base port at which all workers listen."""


class ContradictionError(ValueError):
    """Raised if a job's entries contradict each other; the text says how."""


@dataclass(frozen=True)
class InstalledJob:
    """The data plane's entry for a job, and the job's row of counters."""

    admission: Admission
    row: int

    def keeps_lease_of(self, other: InstalledJob) -> bool:
        """True if an installed job can change from one plan to the other in place."""
        return self._lease() == other._lease()

    def _lease(self) -> tuple[int, ...]:
        job = self.admission
        ports = (job.threads, job.port_offset)
        return self.row, job.key, *ports, job.slot_base, job.slots, len(job.endpoints), *job.parent


def check(entry: ParsedEntry, slots: int, jobs_max: int, no_multicast: str = "") -> None:
    """Raises a `Refusal` for an entry that this switch cannot have. `no_multicast`: why the switch cannot send to
    multicast groups; empty: it can."""
    if entry.table in ADMISSIONS:
        _check_admission(entry, slots, jobs_max)
    if entry.table == "admit":
        _check_worker(entry)
    if entry.table == "deliver" and (entry.action == "deliver_up") != (entry.match["receiver"] == PARENT):
        raise unimplemented(f"deliver_up is for receiver {PARENT:#x}, the switch above, and for no other")
    if entry.table == "deliver" and entry.match["receiver"] == EVERYONE:
        _check_everyone(entry, no_multicast)


def _check_admission(entry: ParsedEntry, slots: int, jobs_max: int) -> None:
    match, params = entry.match, entry.params
    cells = _cells_of_thread(params["lease_mask"])
    if match["job"] >= jobs_max:
        raise out_of_range(f"this switch has room for job numbers up to {jobs_max - 1}, not {match['job']}")
    if not cells:
        raise unimplemented("lease_mask must be ones above a run of cells, a power of two and at least 2")
    thread, beyond = divmod(params["lease_prefix"], cells)
    if params["cell_base"] % 2 or beyond or thread > match["thread"]:
        raise unimplemented(
            "cell_base must be even, and lease_prefix the number of the job's thread times its run of cells; the key "
            "thread is that number, plus as many ports as the job's first one is above the switch's"
        )
    if match["thread"] - thread + _power_of_two_from(thread + 1) > THREADS_MAX:
        raise unimplemented("a job's threads are a power of two, and its ports lie within the switch's")
    if match["source_port"] < thread:
        raise unimplemented("source_port must be a worker's base port plus the thread's number")
    if params["cell_base"] + (thread + 1) * cells > 2 * slots:
        raise out_of_range(f"the lease reaches beyond the switch's {2 * slots} cells")


def _check_worker(entry: ParsedEntry) -> None:
    match, params = entry.match, entry.params
    if params["has_parent"] and not params["bit_others"] & PARENT_BIT:
        raise unimplemented("with has_parent bit_others must have bit 31, which is the switch above's")
    full = _workers(entry)
    if params["bit_own"] != 1 << match["worker"] or params["bit_own"] & params["bit_others"] or full & (full + 1):
        raise unimplemented("bit_own must be the worker's, and with bit_others the bits of workers 0 to N-1")


def _check_everyone(entry: ParsedEntry, no_multicast: str) -> None:
    if no_multicast:
        raise unimplemented(no_multicast)
    if not IPv4Address(entry.params["address"]).is_multicast:
        raise unimplemented(f"receiver {EVERYONE:#x} is all workers at once, at a multicast address")


def _workers(entry: ParsedEntry) -> int:
    """The bitmap of all workers at this switch, from an entry of `admit`."""
    params = entry.params
    everybody = params["bit_own"] | params["bit_others"]
    return everybody & ~PARENT_BIT if params["has_parent"] else everybody


def deliveries(entries: Collection[ParsedEntry]) -> Deliveries:
    """Sorts the entries of `deliver` of one job."""
    at = {entry.match["receiver"]: (entry.params["address"], entry.params["port"]) for entry in entries}
    numbers = [entry.params["worker"] for entry in entries if entry.action == "deliver_up"]
    everyone, parent = at.pop(EVERYONE, NOWHERE), at.pop(PARENT, None)
    return Deliveries(at, None if parent is None else (parent, numbers[0]), everyone)


def plan(
    admit: Iterable[ParsedEntry],
    deliver: Deliveries,
    instances: Mapping[int, frozenset[int]],
    lanes: int,
    admit_parent: Iterable[ParsedEntry] = (),
) -> InstalledJob:
    """Plans one job from its entries of `admit`, at least one, and of `admit_parent_entry`, its deliveries, and the
    instances of each multicast group. Raises a `ContradictionError`."""
    entries = list(admit)
    first = entries[0]
    shape = _shape(first)
    sources: list[Address] = [NOWHERE] * SWITCH_WORKERS_MAX
    contributors = [0] * THREADS_MAX
    for entry in entries:
        if _shape(entry) != shape:
            raise ContradictionError("its entries do not agree on key, row, group, workers, lease or ports")
        worker, thread = entry.match["worker"], _thread(entry)
        source = (entry.match["source"], entry.match["source_port"] - thread)
        if sources[worker] not in (NOWHERE, source):
            raise ContradictionError(f"worker {worker} is admitted from two addresses, or base ports")
        sources[worker] = source
        contributors[thread] |= 1 << worker
    params = first.params
    workers = _workers(first).bit_length()
    threads = _power_of_two_from(max(map(_thread, entries)) + 1)
    port_offset = _port_offset(first)
    receivers = {worker: _receiver(at, port_offset) for worker, at in deliver.workers.items()}
    endpoints = tuple(receivers.get(worker, NOWHERE) for worker in range(workers))
    copies = instances.get(params["group"], frozenset())
    by_multicast = EVERYONE in copies and deliver.everyone != NOWHERE
    parent, number_at_parent = NOWHERE, 0
    if params["has_parent"]:
        parent, number_at_parent = _parent(first, deliver, instances, list(admit_parent), threads)
    admission = Admission(
        job=first.match["job"],
        key=first.match["key"],
        threads=threads,
        port_offset=port_offset,
        lanes=lanes,
        slot_base=params["cell_base"] // 2,
        slots=_cells_of_thread(params["lease_mask"]) // 2 * threads,
        endpoints=endpoints,
        contributors=tuple(contributors),
        sources=tuple(sources),
        receivers=sum(1 << worker for worker in range(workers) if worker in copies and endpoints[worker][1]),
        results_group=_receiver(deliver.everyone, port_offset) if by_multicast else NOWHERE,
        parent=parent,
        number_at_parent=number_at_parent,
    )
    return InstalledJob(admission, params["row"])


def _parent(
    worker: ParsedEntry,
    deliver: Deliveries,
    instances: Mapping[int, frozenset[int]],
    entries: Sequence[ParsedEntry],
    threads: int,
) -> tuple[Address, int]:
    """Address of the parent switch, and this switch's number there. `worker`: any entry of `admit` of the job."""
    group = UPLINK_GROUPS + worker.params["group"]
    if deliver.parent is None or instances.get(group, frozenset()) != {PARENT}:
        raise ContradictionError(
            f"packets do not reach the switch above without an entry of deliver and the group {group}"
        )
    if set(map(_thread, entries)) != set(range(threads)):
        raise ContradictionError("the switch above is not admitted in all threads")
    address, number = deliver.parent
    address = _receiver(address, _port_offset(worker))
    for entry in entries:
        if (entry.match["source"], entry.match["source_port"] - _thread(entry)) != address:
            raise ContradictionError("the switch above is admitted from one address, and packets to it go to another")
        if _shape(entry) != _shape(worker):
            raise ContradictionError(
                "the switch above and the workers do not agree on key, row, group, workers, lease or ports"
            )
    return address, number


def _shape(entry: ParsedEntry) -> tuple[object, ...]:
    """The values that all entries of a job must share."""
    params = entry.params
    return (
        entry.match["key"],
        params["row"],
        params["group"],
        params["bit_workers"] if entry.action == "admit_parent" else _workers(entry),
        params["cell_base"],
        params["lease_mask"],
        _port_offset(entry),
    )


def _thread(entry: ParsedEntry) -> int:
    """The job's thread that an entry admits."""
    return entry.params["lease_prefix"] // _cells_of_thread(entry.params["lease_mask"])


def _port_offset(entry: ParsedEntry) -> int:
    """Distance from the switch's base port to the job's first port."""
    return entry.match["thread"] - _thread(entry)


def _receiver(at: Address, port_offset: int) -> Address:
    """The address for thread 0 of the job: the switch adds its port's number to the port in the entry."""
    address, port = at
    return address, (port + port_offset) % (1 << 16)


def _cells_of_thread(lease_mask: int) -> int:
    """How many cells the mask leaves to a thread; 0: this is no mask of a lease."""
    cells = (CELL_MASK & ~lease_mask) + 1
    return cells if cells & (cells - 1) == 0 and cells >= 2 else 0


def _power_of_two_from(number: int) -> int:
    return 1 << (number - 1).bit_length()
