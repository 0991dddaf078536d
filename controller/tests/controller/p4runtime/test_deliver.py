from __future__ import annotations

import dataclasses
from ipaddress import IPv4Address

import finsy as fy
import pytest

from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import Host, deliver


def test_each_copy_is_addressed_to_its_receiver(job: JobEntry, hosts: tuple[Host, ...], schema: fy.P4Schema) -> None:
    entries = [fy.P4TableEntry.decode(e.encode(schema), schema) for e in deliver.entries(job, hosts[:3])]
    assert [dict(entry.match or {}) for entry in entries] == [{"job": 7, "receiver": worker} for worker in range(3)]
    for worker, entry in enumerate(entries):
        assert isinstance(entry.action, fy.P4TableAction)
        assert entry.action.name == "deliver_to"
        host = {"mac": fy.MACAddress(hosts[worker].mac), "address": IPv4Address(hosts[worker].address)}
        assert entry.action.args == host | {"port": 5000 + 16 * worker}


def test_the_port_offset_is_subtracted_from_the_delivered_port(
    job: JobEntry, hosts: tuple[Host, ...], schema: fy.P4Schema
) -> None:
    low = (Endpoint("10.0.0.10", 5), *job.endpoints[1:])
    above = dataclasses.replace(job, endpoints=low, port_offset=6)
    entries = [fy.P4TableEntry.decode(e.encode(schema), schema) for e in deliver.entries(above, hosts[:3])]
    for endpoint, entry in zip(low, entries, strict=True):
        assert isinstance(entry.action, fy.P4TableAction)
        # p4src/common/deliver.p4 adds in 16 bits: thread 1 of the job receives at port 6 + 1.
        assert (entry.action.args["port"] + 7) % 65536 == endpoint.port + 1


def test_sums_for_the_parent_are_addressed_to_it_with_the_switchs_worker_number(
    job: JobEntry, hosts: tuple[Host, ...], schema: fy.P4Schema
) -> None:
    below = dataclasses.replace(job, uplink=Uplink(Endpoint("10.0.1.1", 43488), 4))
    parent = Host("spine", "10.0.1.1", "02:00:00:00:01:01", 6)
    last = fy.P4TableEntry.decode(deliver.entries(below, hosts[:3], parent)[-1].encode(schema), schema)
    assert dict(last.match or {}) == {"job": 7, "receiver": 0xFF}
    assert isinstance(last.action, fy.P4TableAction)
    assert last.action.name == "deliver_up"
    above = {"mac": fy.MACAddress(parent.mac), "address": IPv4Address(parent.address)}
    assert last.action.args == above | {"port": 43488, "worker": 4}
    group = deliver.uplink_group(5, 6).encode(schema).packet_replication_engine_entry.multicast_group_entry
    assert group.multicast_group_id == 517
    assert [(replica.egress_port, replica.instance) for replica in group.replicas] == [(6, 0xFF)]


@pytest.mark.parametrize("port_offset", [0, 6])
def test_copies_for_everyone_are_addressed_to_a_multicast_group(
    job: JobEntry, schema: fy.P4Schema, port_offset: int
) -> None:
    above = dataclasses.replace(job, port_offset=port_offset)
    made = deliver.to_everyone(above, Endpoint("239.192.129.7", 43488))
    entry = fy.P4TableEntry.decode(made.encode(schema), schema)
    assert dict(entry.match or {}) == {"job": 7, "receiver": 0xFE}
    assert isinstance(entry.action, fy.P4TableAction)
    group = {"mac": fy.MACAddress("01:00:5e:40:81:07"), "address": IPv4Address("239.192.129.7")}
    assert entry.action.args == group | {"port": 43488 - port_offset}
    copies = deliver.group_of_everyone(5).encode(schema).packet_replication_engine_entry.multicast_group_entry
    assert copies.multicast_group_id == 5
    assert [(replica.egress_port, replica.instance) for replica in copies.replicas] == [(0, 0xFE)]


def test_a_group_has_a_copy_for_each_worker_even_if_two_share_a_port(schema: fy.P4Schema) -> None:
    message = deliver.group(5, [3, 1, 3]).encode(schema).packet_replication_engine_entry.multicast_group_entry
    assert message.multicast_group_id == 5
    assert [(replica.egress_port, replica.instance) for replica in message.replicas] == [(3, 0), (1, 1), (3, 2)]
