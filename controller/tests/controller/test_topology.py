"""Switches that form trees, and mistakes in the configuration of trees, which are reported with the switch."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller import config, controlling, topology
from wiresum.controller.driver import Endpoint, Uplink
from wiresum.controller.store import Store
from wiresum.controller.switches import Host
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, switch

RACKS = """\
[[switch]]
name = "spine"
kind = "software"
p4runtime = "127.0.0.1:9559"
address = "10.0.0.1"

[[switch]]
name = "leaf1"
kind = "software"
p4runtime = "127.0.0.1:9560"
address = "10.0.1.1"
parent = "spine"

[[switch.host]]
name = "a"
address = "10.0.1.10"

[[switch]]
name = "leaf2"
kind = "software"
p4runtime = "127.0.0.1:9561"
address = "10.0.2.1"
parent = "spine"

[[switch.host]]
name = "b"
address = "10.0.2.10"
"""
WITH_PORTS = """\
[[switch]]
name = "spine"
kind = "bmv2"
p4runtime = "127.0.0.1:9559"
address = "10.0.0.1"
mac = "02:00:0a:00:00:01"

[[switch]]
name = "leaf1"
kind = "bmv2"
p4runtime = "127.0.0.1:9560"
address = "10.0.1.1"
mac = "02:00:0a:00:01:01"
parent = "spine"
parent_port = 8
port_at_parent = 0

[[switch.host]]
name = "a"
address = "10.0.1.10"
mac = "02:00:0a:00:01:0a"
port = 0

[[switch]]
name = "leaf2"
kind = "bmv2"
p4runtime = "127.0.0.1:9561"
address = "10.0.2.1"
mac = "02:00:0a:00:02:01"
parent = "spine"
parent_port = 9
port_at_parent = 1

[[switch.host]]
name = "b"
address = "10.0.2.10"
mac = "02:00:0a:00:02:0a"
port = 0
"""


def test_software_switches_in_racks_need_only_names_and_addresses(tmp_path: Path) -> None:
    spine, leaf1, leaf2 = _load(tmp_path, RACKS).switches
    assert (spine.parent, leaf1.parent, leaf2.parent) == ("", "spine", "spine")
    assert leaf1.hosts == (Host("a", "10.0.1.10"),)
    assert topology.children([spine, leaf1, leaf2]) == {"spine": [leaf1, leaf2], "leaf1": [], "leaf2": []}


def test_hardware_switches_in_racks_name_both_ends_of_each_link(tmp_path: Path) -> None:
    spine, leaf1, leaf2 = _load(tmp_path, WITH_PORTS).switches
    assert (spine.parent_port, spine.port_at_parent) == (None, None)
    assert (leaf1.parent_port, leaf1.port_at_parent) == (8, 0)
    assert (leaf2.parent_port, leaf2.port_at_parent) == (9, 1)


def test_a_tree_may_mix_hardware_and_software_switches(tmp_path: Path) -> None:
    soft_leaf = WITH_PORTS.replace(
        'kind = "bmv2"\np4runtime = "127.0.0.1:9561"', 'kind = "software"\np4runtime = "c:1"'
    )
    soft_leaf = soft_leaf.replace("parent_port = 9\n", "").replace('mac = "02:00:0a:00:02:0a"\nport = 0\n', "")
    assert _load(tmp_path, soft_leaf).switches[2].parent_port is None
    without_mac = soft_leaf.replace('mac = "02:00:0a:00:02:01"\n', "")
    with pytest.raises(config.ConfigError, match=r"x\.toml: switch leaf2: mac is missing: spine addresses"):
        _load(tmp_path, without_mac)


def test_a_tree_may_have_three_levels_with_hosts_at_each(tmp_path: Path) -> None:
    text = RACKS.replace('address = "10.0.2.1"\nparent = "spine"', 'address = "10.0.2.1"\nparent = "leaf1"')
    text = text.replace('"10.0.0.1"\n', '"10.0.0.1"\n[[switch.host]]\nname = "c"\naddress = "10.0.0.10"\n')
    parents = {switch.name: switch.parent for switch in _load(tmp_path, text).switches}
    assert list(topology.above("leaf2", parents)) == ["leaf1", "spine"]


def test_a_host_may_be_connected_to_switches_of_several_trees(tmp_path: Path) -> None:
    other = (
        RACKS.replace("spine", "other")
        .replace("leaf", "rail")
        .replace("10.0.", "10.1.")
        .replace("10.1.1.1", "10.0.1.1")
    )
    other = other.replace('address = "10.0.1.1"\n', 'address = "10.1.1.1"\n').replace("127.0.0.1:", "127.0.0.2:")
    assert len(_load(tmp_path, RACKS + other).switches) == 6


def test_a_switch_has_as_many_children_as_its_bitmap_has_bits(tmp_path: Path) -> None:
    def below(parent: str, count: int) -> str:
        return "".join(
            f'[[switch]]\nname = "{parent}-{i}"\nkind = "software"\np4runtime = "{parent}:{i + 1}"\n'
            f'address = "10.2.{len(parent)}.{i + 1}"\nparent = "{parent}"\n'
            f'[[switch.host]]\nname = "h-{parent}-{i}"\naddress = "10.3.{len(parent)}.{i + 1}"\n'
            for i in range(count)
        )

    assert len(_load(tmp_path, RACKS + below("spine", 30)).switches) == 33
    with pytest.raises(config.ConfigError, match=r"parent: at most 32 switches can hang right below spine$"):
        _load(tmp_path, RACKS + below("spine", 31))
    assert len(_load(tmp_path, RACKS + below("leaf1", 31)).switches) == 34
    with pytest.raises(config.ConfigError, match=r"at most 31 switches .* leaf1, since leaf1 has a parent itself"):
        _load(tmp_path, RACKS + below("leaf1", 32))


@pytest.mark.parametrize(
    ("text", "old", "new", "complaint"),
    [
        (RACKS, 'parent = "spine"', 'parent = "spin"', "leaf1: parent: there is no switch 'spin' to be above; .*: sp"),
        (RACKS, 'parent = "spine"', 'parent = "leaf1"', "leaf1: parent makes a ring: leaf1 below leaf1"),
        (RACKS, '"10.0.0.1"', '"10.0.0.1"\nparent = "leaf2"', "spine: .* ring: spine below leaf2 below spine"),
        (RACKS, 'parent = "spine"', 'parent = "spine"\nport_at_parent = 1', "leaf1: .* spine is a software switch"),
        (RACKS, 'parent = "spine"', 'parent = "spine"\nparent_port = 1', "leaf1: nothing here is called parent_port"),
        (RACKS, '"10.0.0.1"', '"10.0.0.1"\nport_at_parent = 1', "spine: port_at_parent is of a switch that has"),
        (RACKS, '[[switch.host]]\nname = "a"\naddress = "10.0.1.10"', "", "leaf1: no host: say .* hang on it$"),
        (RACKS, '"10.0.2.10"', '"10.0.1.10"', "leaf2: host b: address 10.0.1.10 is at leaf1 already, and both"),
        (RACKS, 'name = "b"', 'name = "a"', "leaf2: host a: name a is at leaf1 already"),
        (WITH_PORTS, "parent_port = 8\n", "", "leaf1: parent_port is missing: its port that leads to spine"),
        (WITH_PORTS, "port_at_parent = 0\n", "", "leaf1: port_at_parent is missing: the port of spine"),
        (WITH_PORTS, "port_at_parent = 1", "port_at_parent = 0", "leaf2: .*: port 0 of spine leads to leaf1 already"),
        (WITH_PORTS, "parent_port = 8", "parent_port = 0", "leaf1: parent_port: port 0 of leaf1 leads to a already"),
        (WITH_PORTS, "parent_port = 8", "parent_port = 511", "leaf1: parent_port must be a whole number from 0 to 510"),
        (WITH_PORTS, '"02:00:0a:00:02:0a"', '"02:00:0a:00:01:0a"', "leaf2: host b: mac .* is at leaf1 already"),
    ],
)
def test_a_mistake_in_a_tree_is_reported_with_its_switch(
    tmp_path: Path, text: str, old: str, new: str, complaint: str
) -> None:
    assert old in text
    with pytest.raises(config.ConfigError, match=rf"x\.toml: switch {complaint}"):
        _load(tmp_path, text.replace(old, new, 1))


def test_switches_of_a_tree_have_the_same_packet_size(tmp_path: Path) -> None:
    assert len(controlling.targets(_load(tmp_path, RACKS))) == 3
    unequal = RACKS.replace('address = "10.0.2.1"\n', 'address = "10.0.2.1"\nlanes = 64\n')
    with pytest.raises(controlling.SetupError, match="leaf2 sums packets of 64 words, and spine above it of 360"):
        controlling.targets(_load(tmp_path, unequal))


def test_stored_jobs_are_restored_only_if_their_switches_are_in_the_same_place(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "state")) as store:
        store.begin()
        leaves = [switch("leaf1", addresses=["10.0.1.10"], parent="spine")]
        leaves.append(switch("leaf2", addresses=["10.0.2.10"], parent="spine"))
        harness = JobsHarness(switches=[switch("spine", addresses=NOBODY), *leaves], store=store)
        for rank, address in enumerate(("10.0.1.10", "10.0.2.10")):
            harness.ask(rank=rank, world_size=2, endpoint=join.Endpoint(address=address, port=4000))
    text = f'[controller]\nstate = "{tmp_path / "state"}"\n' + RACKS
    found = controlling.on_disk(_load(tmp_path, text)).jobs
    assert {name: len(entries) for name, entries in found.items()} == {"spine": 1, "leaf1": 1, "leaf2": 1}
    assert found["leaf2"][0].uplink == Uplink(Endpoint("10.0.0.1", 43488), 1)
    assert found["spine"][0].endpoints == (Endpoint("10.0.1.1", 43488), Endpoint("10.0.2.1", 43488))
    head, _, tail = text.rpartition('parent = "spine"\n')
    found = controlling.on_disk(_load(tmp_path, head + tail)).jobs
    assert list(found.values()) == [[], [], []], "leaf2 stands alone now"


def _load(folder: Path, text: str) -> config.Config:
    path = folder / "x.toml"
    path.write_text(text)
    return config.load(path)
