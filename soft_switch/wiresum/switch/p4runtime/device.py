"""The switch's state: entries and counters as P4Runtime sees them, and the jobs that they make in the data plane.

A batch of updates changes the entries one by one. At the end of a batch, before the controller gets the answer, the
data plane is brought up to date: first jobs that end or change their lease are removed, then others are installed, so
that a lease may pass from one job to another in one batch.

Used by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import grpc
from finsy.proto import p4r

from wiresum.controller import DriverError
from wiresum.join.constants import UPLINK_GROUPS
from wiresum.switch.p4runtime import jobs
from wiresum.switch.p4runtime.counters import Counters, View
from wiresum.switch.p4runtime.pipeline import PipelineSizes, Program
from wiresum.switch.p4runtime.refusal import Refusal, invalid, out_of_range, too_early, unimplemented
from wiresum.switch.p4runtime.schema import Key, ParsedEntry
from wiresum.switch.p4runtime.store import DELETE, INSERT, MODIFY, Store
from wiresum.switch.software_switch import SoftwareSwitch

log = logging.getLogger(__name__)

GetConfig = p4r.GetForwardingPipelineConfigRequest
SetConfig = p4r.SetForwardingPipelineConfigRequest
JOB_TABLES = (*jobs.ADMISSIONS, "deliver")


class SoftwareDevice:
    """A switch that has no pipeline until `set_config`."""

    def __init__(self, switch: SoftwareSwitch) -> None:
        self._switch = switch
        self._program = Program()
        self._most = PipelineSizes(lanes=switch.sizes.lanes_max, slots=switch.sizes.slots)
        self._config: p4r.ForwardingPipelineConfig | None = None
        self._saved: p4r.ForwardingPipelineConfig | None = None
        """The verified configuration, for COMMIT."""
        self._loaded: Loaded | None = None

    def set_config(self, action: int, config: p4r.ForwardingPipelineConfig | None) -> None:
        if action == SetConfig.COMMIT:
            self._commit_saved(config)
            return
        if action == SetConfig.RECONCILE_AND_COMMIT:
            raise unimplemented("this switch loads a pipeline anew or not at all: use VERIFY_AND_COMMIT")
        if action not in (SetConfig.VERIFY, SetConfig.VERIFY_AND_SAVE, SetConfig.VERIFY_AND_COMMIT):
            raise invalid(f"there is no action {action}")
        if config is None:
            raise invalid("a configuration is missing")
        self._program.check(config, self._most)
        if action == SetConfig.VERIFY_AND_SAVE:
            self._saved = config
        elif action == SetConfig.VERIFY_AND_COMMIT:
            self._realise(config)

    def get_config(self, response_type: int) -> p4r.GetForwardingPipelineConfigResponse:
        response = p4r.GetForwardingPipelineConfigResponse()
        if response_type not in GetConfig.ResponseType.values():
            raise invalid(f"there is no response type {response_type}")
        if self._config is None:
            return response
        response.config.SetInParent()
        if self._config.HasField("cookie"):
            response.config.cookie.CopyFrom(self._config.cookie)
        if response_type in (GetConfig.ALL, GetConfig.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(self._config.p4info)
        if response_type in (GetConfig.ALL, GetConfig.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = self._config.p4_device_config
        return response

    def _commit_saved(self, config: p4r.ForwardingPipelineConfig | None) -> None:
        if config is not None:
            raise invalid("COMMIT takes the configuration that was saved, and none in the request")
        if self._saved is None:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "no configuration was saved: use VERIFY_AND_SAVE before")
        self._realise(self._saved)

    def _realise(self, config: p4r.ForwardingPipelineConfig) -> None:
        sizes = self._program.check(config, self._most)
        self._loaded = self._config = None
        self._switch.reset()
        self._loaded = Loaded(self._switch, self._program, sizes)
        self._config, self._saved = config, None
        log.info("a pipeline was loaded: %d lanes, %d slots", sizes.lanes, sizes.slots)

    @property
    def loaded(self) -> Loaded:
        if self._loaded is None:
            raise too_early("no pipeline is loaded: use SetForwardingPipelineConfig first")
        return self._loaded


class Loaded:
    """A switch with a pipeline."""

    def __init__(self, switch: SoftwareSwitch, program: Program, sizes: PipelineSizes) -> None:
        self._switch, self._sizes = switch, sizes
        self._schema = program.schema
        self._store = Store(program)
        self._counters = Counters(switch, dict(program.schema.counters.values()))
        self._jobs = _Jobs(switch, self._counters, sizes, self._instances)

    def write(self, updates: Sequence[p4r.Update]) -> list[Refusal | None]:
        """Returns the result of each update: None, or why it was refused."""
        results: list[Refusal | None] = []
        for update in updates:
            try:
                self._update(update.type, update.entity)
                results.append(None)
            except Refusal as refused:
                results.append(refused)
        self._jobs.commit()
        return results

    def read(self, wanted: Sequence[p4r.Entity]) -> Iterator[p4r.Entity]:
        counters = self._counters.view()
        for entity in wanted:
            yield from self._read(entity, counters)

    def _update(self, kind: int, entity: p4r.Entity) -> None:
        if kind not in (INSERT, MODIFY, DELETE):
            raise invalid("an update is INSERT, MODIFY or DELETE")
        which = entity.WhichOneof("entity")
        if which == "table_entry":
            self._update_table(kind, entity.table_entry)
        elif which == "counter_entry":
            self._update_counter(kind, entity.counter_entry)
        elif which == "packet_replication_engine_entry":
            self._update_group(kind, entity.packet_replication_engine_entry)
        else:
            raise _no_such_entity(which)

    def _read(self, wanted: p4r.Entity, counters: View) -> Iterator[p4r.Entity]:
        which = wanted.WhichOneof("entity")
        if which == "table_entry":
            for entry in self._store.read_tables(wanted.table_entry):
                yield p4r.Entity(table_entry=entry)
        elif which == "counter_entry":
            yield from self._read_counters(wanted.counter_entry, counters)
        elif which == "packet_replication_engine_entry":
            group = _group(wanted.packet_replication_engine_entry)
            for found in self._store.read_groups(group.multicast_group_id):
                engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=found)
                yield p4r.Entity(packet_replication_engine_entry=engine)
        elif which in ("action_profile_member", "action_profile_group", "meter_entry") and _is_wildcard(wanted, which):
            return  # the program has none of these
        else:
            raise _no_such_entity(which)

    def _update_table(self, kind: int, message: p4r.TableEntry) -> None:
        entry = self._store.check_entry(kind, message)
        if entry is None:
            return
        if kind != DELETE:
            jobs.check(entry, self._sizes.slots, self._switch.sizes.jobs_max, self._switch.no_multicast)
        self._store.put_entry(kind, entry)
        if entry.table in JOB_TABLES:
            self._jobs.note(entry, present=kind != DELETE)

    def _update_counter(self, kind: int, message: p4r.CounterEntry) -> None:
        name, size = self._schema.counter(message.counter_id)
        if kind != MODIFY:
            raise invalid("counters are always there: use MODIFY")
        index = _index(message, name, size)
        if message.HasField("data"):
            self._counters.write(name, index, message.data.packet_count)

    def _update_group(self, kind: int, message: p4r.PacketReplicationEngineEntry) -> None:
        group = _group(message)
        self._store.write_group(kind, group)
        self._jobs.note_group(group.multicast_group_id)

    def _read_counters(self, wanted: p4r.CounterEntry, counters: View) -> Iterator[p4r.Entity]:
        if wanted.counter_id == 0:
            asked: list[tuple[int, str, int | None]] = [
                (i, name, None) for i, (name, _) in self._schema.counters.items()
            ]
        else:
            name, size = self._schema.counter(wanted.counter_id)
            asked = [(wanted.counter_id, name, _index(wanted, name, size))]
        for number, name, index in asked:
            for value in counters.read(name, index):
                entity = p4r.Entity()
                entity.counter_entry.counter_id = number
                entity.counter_entry.index.index = value.at
                entity.counter_entry.data.packet_count = value.packets
                yield entity

    def _instances(self, number: int) -> frozenset[int]:
        group = self._store.group(number)
        return frozenset(replica.instance for replica in group.replicas) if group is not None else frozenset()


class _Jobs:
    """The jobs that the entries make, and those that are installed in the data plane."""

    def __init__(
        self,
        switch: SoftwareSwitch,
        counters: Counters,
        sizes: PipelineSizes,
        instances: Callable[[int], frozenset[int]],
    ) -> None:
        self._switch, self._counters, self._sizes, self._instances = switch, counters, sizes, instances
        self._entries: dict[str, dict[int, dict[Key, ParsedEntry]]] = {table: {} for table in JOB_TABLES}
        """Entries by table and job."""
        self._installed: dict[int, jobs.InstalledJob] = {}
        self._changed: dict[int, None] = {}
        """Jobs that changed, in order, and jobs that could not be installed."""

    def note(self, entry: ParsedEntry, *, present: bool) -> None:
        job = entry.match["job"]
        entries = self._entries[entry.table].setdefault(job, {})
        entries.pop(entry.key, None)
        if present:
            entries[entry.key] = entry
        self._changed[job] = None

    def note_group(self, number: int) -> None:
        for job, entries in self._entries["admit"].items():
            if any(entry.params["group"] in (number, number - UPLINK_GROUPS) for entry in entries.values()):
                self._changed[job] = None

    def commit(self) -> None:
        changed, self._changed = list(self._changed), {}
        plans = {job: self._plan(job) for job in changed}
        for job, plan in plans.items():
            before = self._installed.get(job)
            if before is not None and (plan is None or not plan.keeps_lease_of(before)):
                self._remove(job)
        for job, plan in plans.items():
            if plan is not None and plan != self._installed.get(job):
                self._install(plan)

    def _plan(self, job: int) -> jobs.InstalledJob | None:
        entries, parents, deliver = (list(self._entries[table].get(job, {}).values()) for table in JOB_TABLES)
        if not entries:
            return None
        groups = {entry.params["group"] for entry in entries}
        uplinks = {UPLINK_GROUPS + group for group in groups}
        instances = {group: self._instances(group) for group in groups | uplinks}
        try:
            return jobs.plan(entries, jobs.deliveries(deliver), instances, self._sizes.lanes, parents)
        except jobs.ContradictionError as contradiction:
            log.warning("job %d is not in effect: %s", job, contradiction)
            return None

    def _install(self, plan: jobs.InstalledJob) -> None:
        job = plan.admission.job
        try:
            self._switch.configure(plan.admission)
        except DriverError as error:
            log.warning("job %d is not in effect, and is tried again with the next update: %s", job, error)
            self._changed[job] = None
            if job in self._installed:
                self._remove(job)
            return
        if job not in self._installed:
            self._counters.began(job, plan.row)
        self._installed[job] = plan

    def _remove(self, job: int) -> None:
        self._switch.evict(job)
        del self._installed[job]
        self._counters.ended(job)


def _group(message: p4r.PacketReplicationEngineEntry) -> p4r.MulticastGroupEntry:
    kind = message.WhichOneof("type")
    if kind == "clone_session_entry":
        raise unimplemented("this switch clones no packets")
    if kind is None:
        raise invalid("a packet replication engine entry must be a multicast group")
    return message.multicast_group_entry


def _index(message: p4r.CounterEntry, name: str, size: int) -> int | None:
    """The index that a message names; None: all indices of the counter."""
    if not message.HasField("index"):
        return None
    if message.index.index < 0:
        raise invalid(f"an index is not negative, as {message.index.index} is")
    if message.index.index >= size:
        raise out_of_range(f"counter {name} has the indices 0 to {size - 1}, not {message.index.index}")
    return message.index.index


_OF_OTHER_PROGRAMS = {
    "action_profile_member": "action profile",
    "action_profile_group": "action profile",
    "meter_entry": "meter",
    "direct_meter_entry": "direct meter",
    "direct_counter_entry": "direct counter",
}


def _is_wildcard(wanted: p4r.Entity, which: str) -> bool:
    message = getattr(wanted, which)
    return not (message.meter_id if which == "meter_entry" else message.action_profile_id)


def _no_such_entity(which: str | None) -> Refusal:
    if which is None:
        return invalid("an entity is missing")
    if which in _OF_OTHER_PROGRAMS:
        return invalid(f"the program has no {_OF_OTHER_PROGRAMS[which]}")
    return unimplemented(f"this switch has nothing for a {which}")
