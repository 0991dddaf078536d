"""Topology files: their meaning, and what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from wiresum_mininet import topology
from wiresum_mininet.topology import Shape, TopologyError

ONE = json.loads((topology.FOLDER / "one-switch" / "topology.json").read_text())


def load(document: Any, tmp_path: Path) -> topology.Topology:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    return topology.load(path)


@pytest.mark.parametrize("name", topology.names())
def test_every_included_topology_is_valid(name: str) -> None:
    plan = topology.find(name)
    assert len(plan.workers) == (8 if name == "racks" else 4)
    assert plan.about
    for switch in plan.switches:
        for node in (*plan.hosts, *(other for other in plan.switches if other is not switch)):
            assert plan.port_towards(switch.name, node.name) in plan.ports(switch.name)


def test_the_included_topologies_are_one_switch_two_trees_and_two_with_an_ethernet_switch() -> None:
    assert topology.names() == ["ethernet", "leaf-spine", "one-switch", "racks", "two-switches"]
    roles = {name: sorted(switch.role for switch in topology.find(name).switches) for name in topology.names()}
    assert roles == {
        "one-switch": ["aggregate"],
        "leaf-spine": ["aggregate", "forward", "forward"],
        "ethernet": ["aggregate", "ethernet"],
        "racks": ["aggregate", "aggregate", "aggregate"],
        "two-switches": ["aggregate", "aggregate", "ethernet"],
    }


def test_the_first_aggregator_on_the_way_to_the_root_sums_for_a_host() -> None:
    racks, forwarding = topology.find("racks"), topology.find("leaf-spine")
    assert [racks.aggregator_of(host.name).name for host in racks.hosts] == ["l1"] * 4 + ["l2"] * 4 + ["s1"]
    assert racks.root.name == "s1"
    assert {forwarding.aggregator_of(host.name).name for host in forwarding.hosts} == {"s1"}


def test_switches_that_sum_are_a_tree_or_each_alone() -> None:
    alone = topology.find("two-switches")
    assert not alone.is_tree and topology.find("racks").is_tree
    assert [switch.name for switch in alone.aggregators] == ["s1", "s2"]


def test_a_port_leads_to_nodes_behind_other_switches() -> None:
    plan = topology.find("leaf-spine")
    assert [plan.port_towards("s1", host) for host in ("h1", "h2", "h3", "h4", "c0", "l2")] == [1, 1, 2, 2, 3, 2]
    assert [plan.port_towards("l1", node) for node in ("h1", "h2", "h3", "s1", "c0")] == [1, 2, 3, 3, 3]


def test_a_file_is_found_by_its_path_and_a_link_may_have_a_shape(tmp_path: Path) -> None:
    document = copy.deepcopy(ONE)
    document["links"][0].append({"rate_mbit": 10, "loss": 0.01})
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    plan = topology.find(str(path))
    assert plan.name == "mine"
    assert plan.links[0].shape == {"rate_mbit": 10, "loss": 0.01}


WRONG = [
    (lambda d: d["hosts"].pop("c0"), "a link's end .* not 'c0'|write a switch's port like c0-p1"),
    (lambda d: d["hosts"]["c0"].pop("role"), 'one host must have "role": "controller"'),
    (lambda d: d["switches"]["s1"].update(role="forward"), 'one switch must have "role": "aggregate"'),
    (lambda d: d["switches"]["s1"].update(role="spine"), "one of aggregate, forward, ethernet, not 'spine'"),
    (lambda d: d["hosts"]["h1"].update(ip="10.0.0"), "h1: ip must be like"),
    (lambda d: d["hosts"]["h1"].update(ip="10.0.1.1/24"), "all addresses must be in one network"),
    (lambda d: d["hosts"]["h1"].update(ip="10.0.0.2/24"), "the ip 10.0.0.2 is there twice"),
    (lambda d: d["hosts"]["h1"].update(mac="01:00:0a:00:00:01"), "h1: mac must be a local address"),
    (lambda d: d["hosts"]["h1"].update(name="x"), "nothing here is called name"),
    (lambda d: d["links"].append(["h1", "s1-p9"]), "the end h1-p0 is there twice"),
    (lambda d: d["links"].pop(), "no link joins c0 to s1"),
    (lambda d: d["links"].append(["s1-p8", "s1-p9"]), "there is a loop through s1"),
    (lambda d: d["links"].append(["s2-p1", "s1-p9"]), "a link ends at s2, which is neither"),
    (lambda d: d["links"][0].append({"loss": 1.5}), "loss is a fraction of packets"),
    (lambda d: d["links"][0].append({"delay": 2}), "delay cannot be 2"),
    (lambda d: d["links"][0].append({"latency": "2ms"}), "nothing here is called latency"),
    (lambda d: d.pop("links"), "links is missing"),
    (lambda d: d.update(links=3), "links must be a list"),
]


WRONG_RACKS = [
    (lambda d: d["switches"]["l1"].pop("parent"), "s1, l1 have no parent: in a tree only one has none"),
    (lambda d: d["switches"]["s1"].update(parent="l1"), 'one switch must have "role": "aggregate" and no "parent"'),
    (lambda d: d["switches"]["l1"].update(parent="s9"), "l1: its parent s9 is no switch"),
    (lambda d: d["switches"]["l1"].update(parent="l2"), "l1: its parent must be s1, the next on the way to s1"),
    (lambda d: d["switches"]["l1"].update(parent="l1"), "l1: its parent must be s1"),
    (lambda d: d["switches"]["l1"].update(role="forward"), "l1: nothing here is called parent"),
    (lambda d: d["switches"]["l1"].update(kind="tofino"), "l1: the kind of a switch is bmv2 or software, not 'tofino'"),
]


@pytest.mark.parametrize(("change", "complaint"), WRONG_RACKS, ids=[complaint for _, complaint in WRONG_RACKS])
def test_an_invalid_parent_is_an_error_that_names_it(change: Any, complaint: str, tmp_path: Path) -> None:
    document = json.loads((topology.FOLDER / "racks" / "topology.json").read_text())
    change(document)
    with pytest.raises(TopologyError, match=complaint):
        load(document, tmp_path)


@pytest.mark.parametrize(("change", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_an_invalid_topology_is_an_error_that_names_the_mistake(change: Any, complaint: str, tmp_path: Path) -> None:
    document = copy.deepcopy(ONE)
    change(document)
    with pytest.raises(TopologyError, match=complaint) as error:
        load(document, tmp_path)
    assert "mine.json" in str(error.value)


def test_a_loop_of_switches_is_refused(tmp_path: Path) -> None:
    document = json.loads((topology.FOLDER / "leaf-spine" / "topology.json").read_text())
    document["links"].append(["l1-p9", "l2-p9"])
    with pytest.raises(TopologyError, match="loop"):
        load(document, tmp_path)


def test_an_unknown_name_a_missing_file_and_invalid_json_give_different_errors(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="choose one of ethernet, leaf-spine, one-switch, racks"):
        topology.find("ring")
    with pytest.raises(TopologyError, match="cannot read it"):
        topology.find(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(TopologyError, match="this is not JSON"):
        topology.find(str(tmp_path / "bad.json"))


def test_shapes_have_bounds() -> None:
    for wrong in ({"rate_mbit": 0}, {"rate_mbit": 1001}, {"delay": "2"}, {"loss": 1.0}):
        with pytest.raises(ValueError):
            Shape(**wrong)  # type: ignore[arg-type]
