from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from finsy.proto import p4i

from wiresum.controller import config
from wiresum.controller.p4runtime import Host, PipelineError, device_config, own, targets_of
from wiresum.controller.p4runtime.target import NO_MAC
from wiresum.controller.switches import SwitchConfig


@pytest.fixture
def example(tmp_path: Path) -> config.Config:
    path = tmp_path / "cluster.toml"
    path.write_text(config.EXAMPLE)
    return config.load(path)


def test_a_p4_switch_follows_the_configuration(example: config.Config) -> None:
    target = targets_of(example.switches)[0]
    assert (target.name, target.kind, target.p4runtime, target.device) == ("leaf1", "bmv2", "127.0.0.1:9559", 0)
    assert (target.address, target.mac) == ("10.0.0.1", "02:00:0a:00:00:01")
    assert [host.name for host in target.hosts] == ["worker0", "worker1"]
    assert target.pipeline.cookie == device_config.bmv2().cookie
    assert target.has_ports


def test_a_software_switch_has_configurable_sizes_and_no_ports(example: config.Config) -> None:
    target = targets_of(example.switches)[2]
    assert (target.kind, target.port, target.mac, target.hosts) == ("software", 43488, NO_MAC, ())
    assert (target.pipeline.lanes, target.pipeline.slots) == (360, 4096)
    assert target.tls == Path("/etc/wiresum/controller")
    assert not target.has_ports


def test_a_switch_of_a_tree_has_its_neighbours_and_the_ports_towards_all_hosts(example: config.Config) -> None:
    leaf, spine, _ = example.switches
    other = dataclasses.replace(
        leaf,
        name="leaf2",
        address="10.0.0.4",
        mac="02:00:0a:00:00:04",
        parent_port=5,
        port_at_parent=1,
        hosts=(Host("far", "10.0.0.12", "02:00:0a:00:00:0c", 3),),
    )
    all_three = (spine, leaf, other)
    above, below, _ = targets_of(all_three)
    assert below.parent == Host("spine", "10.0.0.3", "02:00:0a:00:00:03", 2)
    assert [(host.name, host.port) for host in below.elsewhere] == [("far", 2)]
    assert (above.parent, above.hosts) == (None, ())
    assert [(host.name, host.port) for host in above.children] == [("leaf1", 0), ("leaf2", 1)]
    assert [(host.name, host.port) for host in above.elsewhere] == [("worker0", 0), ("worker1", 0), ("far", 1)]
    assert below.reaches("10.0.0.10")
    assert not below.reaches("10.0.0.12")
    assert not above.reaches("10.0.0.10"), "that host is at another switch"


def test_a_software_switch_accepts_any_host_unless_it_lists_some_or_is_in_a_tree(example: config.Config) -> None:
    spare = example.switches[2]
    assert targets_of([spare])[0].reaches("10.9.9.9")
    with_hosts = dataclasses.replace(spare, hosts=(Host("a", "10.0.0.20"),))
    assert targets_of([with_hosts])[0].reaches("10.0.0.20")
    assert not targets_of([with_hosts])[0].reaches("10.9.9.9")
    below = dataclasses.replace(with_hosts, name="below", parent="spare")
    assert not targets_of((spare, below))[0].reaches("10.0.0.20")


def test_a_tofino_whose_program_is_missing_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    switch = SwitchConfig("t", "tofino", "10.0.0.2:9559", 0, "10.0.0.1", 43488, program=tmp_path, p4info=tmp_path / "x")
    with pytest.raises(PipelineError, match=rf"{tmp_path}: the compiler writes one \.conf file"):
        targets_of([switch])


def test_more_hosts_than_the_switch_has_entries_for_are_refused(example: config.Config) -> None:
    leaf, spine, _ = example.switches
    hosts = tuple(
        Host(f"h{n}", f"10.8.{n >> 8}.{n & 255}", f"02:00:0b:00:{n >> 8:02x}:{n & 255:02x}", 1) for n in range(1023)
    )
    full = dataclasses.replace(leaf, hosts=hosts)
    assert len(targets_of((full, spine))[0].around) == 1024
    far = Host("far", "10.9.0.1", "02:00:0c:00:00:01", 2)
    one_more = dataclasses.replace(spine, hosts=(far,))
    with pytest.raises(PipelineError, match=r"leaf1: table 'forward' has room for 1024 entries, and .* needs 1025"):
        targets_of((full, one_more))


def test_a_switch_without_room_for_its_own_entries_is_refused(
    example: config.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = device_config.bmv2()
    info = p4i.P4Info()
    info.CopyFrom(pipeline.p4info)
    (table,) = (table for table in info.tables if table.preamble.alias == "own")
    monkeypatch.setattr(device_config, "bmv2", lambda: dataclasses.replace(pipeline, p4info=info))
    leaf = example.switches[0]
    written = [*own.entries(leaf.address, leaf.mac), own.keys_given(own.KeysGiven(1, 1))]
    table.size = len(written)
    assert targets_of(example.switches)
    table.size = len(written) - 1
    with pytest.raises(PipelineError, match=r"leaf1: table 'own' has room for 2 entries, .* needs 3.* OWN_ENTRIES"):
        targets_of(example.switches)


def test_more_slots_than_have_numbers_are_refused(example: config.Config) -> None:
    spare = dataclasses.replace(example.switches[2], slots=32768)
    assert targets_of([spare])[0].pipeline.slots == 32768
    with pytest.raises(PipelineError, match=r"spare: 32769 slots have 65538 cells, .* 16 bits: at most 32768 slots"):
        targets_of([dataclasses.replace(spare, slots=32769)])
