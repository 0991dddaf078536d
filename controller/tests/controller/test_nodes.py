"""Each pipe of a Tofino that is in use is a node of the tree; mistakes in how pipes are connected name the switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum.controller import config
from wiresum.controller.nodes import PIPE_PORTS, Node, nodes
from wiresum.controller.switches import SwitchConfig


def tofino(name: str, *hosts: int, more: str = "") -> str:
    """A Tofino with hosts at these ports."""
    number = sum(name.encode())
    text = (
        f'[[switch]]\nname = "{name}"\nkind = "tofino"\nprogram = "x"\np4info = "y"\np4runtime = "{name}:9559"\n'
        f'address = "10.{number // 256}.{number % 256}.1"\nmac = "02:00:00:00:{number // 256:02x}:{number % 256:02x}"\n'
        f"{more}\n"
    )
    for index, port in enumerate(hosts):
        address = f"10.{number // 256}.{number % 256}.{10 + index}"
        mac = f"02:00:01:{index:02x}:{number // 256:02x}:{number % 256:02x}"
        text += f'[[switch.host]]\nname = "{name}-h{index}"\naddress = "{address}"\nmac = "{mac}"\nport = {port}\n'
    return text


def load(tmp_path: Path, text: str) -> tuple[SwitchConfig, ...]:
    path = tmp_path / "x.toml"
    path.write_text(text)
    return config.load(path).switches


def found(tmp_path: Path, text: str) -> dict[str, Node]:
    return {node.name: node for node in nodes(load(tmp_path, text))}


def parents(tmp_path: Path, text: str) -> dict[str, str]:
    return {name: node.parent for name, node in found(tmp_path, text).items()}


def port(pipe: int, number: int) -> int:
    return PIPE_PORTS * pipe + number


def test_a_tofino_with_one_pipe_in_use_is_one_node_with_its_name(tmp_path: Path) -> None:
    (node,) = nodes(load(tmp_path, tofino("rack", port(1, 0), port(1, 8))))
    assert (node.name, node.pipe, node.siblings, node.parent) == ("rack", 1, (), "")
    assert len(node.hosts) == 2


def test_other_switches_are_one_node_each(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(config.EXAMPLE)
    there = nodes(config.load(path).switches)
    assert [(node.name, node.pipe, node.parent) for node in there] == [
        ("leaf1", None, "spine"),
        ("spine", None, ""),
        ("spare", None, ""),
    ]
    assert (there[0].parent_port, there[0].port_at_parent) == (2, 0)


def test_connected_pipes_form_a_tree(tmp_path: Path) -> None:
    text = tofino("rack", port(0, 8), port(1, 8), port(1, 9), more=f"cables = [[{port(1, 60)}, {port(0, 60)}]]")
    upper, lower = found(tmp_path, text).values()
    assert (upper.name, upper.pipe, upper.siblings, upper.parent) == ("rack/0", 0, (1,), "")
    assert (lower.name, lower.pipe, lower.siblings, lower.parent) == ("rack/1", 1, (0,), "rack/0")
    assert (len(upper.hosts), len(lower.hosts)) == (1, 2)
    assert (lower.parent_port, lower.port_at_parent) == (port(1, 60), port(0, 60))


def test_pipes_without_a_cable_are_in_separate_trees(tmp_path: Path) -> None:
    assert parents(tmp_path, tofino("rack", port(0, 8), port(1, 8))) == {"rack/0": "", "rack/1": ""}


def test_the_root_is_the_pipe_with_the_shortest_paths_to_the_others(tmp_path: Path) -> None:
    cables = [[port(0, 60), port(1, 60)], [port(1, 61), port(2, 60)], [port(2, 61), port(3, 60)]]
    text = tofino("rack", *(port(pipe, 8) for pipe in range(4)), more=f"cables = {cables}")
    assert parents(tmp_path, text) == {"rack/0": "rack/1", "rack/1": "", "rack/2": "rack/1", "rack/3": "rack/2"}


def test_the_root_is_the_pipe_that_leads_to_the_parent_switch(tmp_path: Path) -> None:
    uplink = f'parent = "spine"\nparent_port = {port(1, 20)}\nport_at_parent = {port(1, 21)}\n'
    rack = tofino("rack", port(0, 8), more=f"{uplink}cables = [[{port(0, 60)}, {port(1, 60)}]]")
    spine = tofino("spine", port(0, 8), more=f"cables = [[{port(0, 60)}, {port(1, 60)}]]")
    there = found(tmp_path, rack + spine)
    assert {name: node.parent for name, node in there.items()} == {
        "rack/0": "rack/1",
        "rack/1": "spine/1",
        "spine/0": "",
        "spine/1": "spine/0",
    }
    assert (there["rack/1"].parent_port, there["rack/1"].port_at_parent) == (port(1, 20), port(1, 21))


def test_port_0_of_a_parent_is_a_valid_port(tmp_path: Path) -> None:
    rack = tofino("rack", port(0, 8), more='parent = "spine"\nparent_port = 20\nport_at_parent = 0\n')
    assert parents(tmp_path, rack + tofino("spine", port(1, 8))) == {"rack": "spine/0", "spine/0": "", "spine/1": ""}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("cables = [[60, 61]]", r"x\.toml: switch rack: cables: ports 60 and 61 are both of pipe 0 .*: it takes one"),
        ("cables = [[8, 188]]", r"cables: port 8 leads to rack-h0 already"),
        ("cables = [[60, 188], [60, 260]]", r"x\.toml: switch rack: cables: port 60 leads to pipe 1 already"),
        ("cables = [[60, 188], [61, 189]]", r"cables: pipes 0 and 1 are joined already, and a tree has no"),
        ("cables = [[60, 188], [189, 260], [61, 261]]", r"cables: pipes 0 and 2 are joined already"),
        ("cables = [60, 188]", r"cables must be pairs of ports, like \[\[60, 188\]\], not \[60, 188\]"),
        ("cables = [[60, 600]]", r"cables must be a whole number from 0 to 510, not 600"),
    ],
)
def test_an_impossible_cable_is_refused(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        load(tmp_path, tofino("rack", port(0, 8), port(1, 8), more=more))


def test_only_a_tofino_has_pipes(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="nothing here is called cables"):
        load(tmp_path, config.EXAMPLE.replace('parent = "spine"', "cables = [[60, 188]]"))


def test_a_switch_cannot_have_the_name_of_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"switch rack/1: its name is that of a pipe of rack already"):
        load(tmp_path, tofino("rack", port(0, 8), port(1, 8)) + tofino("rack/1", 8))
    with pytest.raises(config.ConfigError, match=r"switch rack/1: its name is that of a pipe of rack already"):
        load(tmp_path, tofino("rack/1", 8) + tofino("rack", port(0, 8), port(1, 8)))


def test_each_pipe_has_as_many_children_as_its_bitmap_has_bits(tmp_path: Path) -> None:
    def leaves(pipe: int, count: int) -> str:
        links = (f'parent = "spine"\nparent_port = 9\nport_at_parent = {port(pipe, 10 + n)}\n' for n in range(count))
        return "".join(tofino(f"leaf{pipe}{'x' * n}", 8, more=link) for n, link in enumerate(links))

    spine = tofino("spine", more=f"cables = [[{port(0, 60)}, {port(1, 60)}]]")
    assert len(load(tmp_path, spine + leaves(0, 31) + leaves(1, 31))) == 63
    with pytest.raises(config.ConfigError, match=r"at most 32 switches can hang right below spine/0$"):
        load(tmp_path, spine + leaves(0, 32) + leaves(1, 1))
    with pytest.raises(config.ConfigError, match=r"at most 31 .* below spine/1, since spine/1 has a parent itself"):
        load(tmp_path, spine + leaves(0, 1) + leaves(1, 32))
