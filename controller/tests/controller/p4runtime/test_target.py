from __future__ import annotations

from pathlib import Path

import pytest

from wiresum.controller import config
from wiresum.controller.p4runtime import PipelineError, device_config, target_of
from wiresum.controller.p4runtime.target import NO_MAC


@pytest.fixture
def example(tmp_path: Path) -> config.Config:
    path = tmp_path / "cluster.toml"
    path.write_text(config.EXAMPLE)
    return config.load(path)


def test_a_p4_switch_is_as_the_configuration_says(example: config.Config) -> None:
    target = target_of(example.switches[0])
    assert (target.name, target.kind, target.p4runtime, target.device) == ("leaf1", "bmv2", "127.0.0.1:9559", 0)
    assert (target.address, target.mac) == ("10.0.0.1", "02:00:0a:00:00:01")
    assert [host.name for host in target.hosts] == ["worker0", "worker1"]
    assert target.pipeline.cookie == device_config.bmv2().cookie
    assert target.has_ports


def test_a_software_switch_has_sizes_of_its_own_and_no_ports(example: config.Config) -> None:
    target = target_of(example.switches[1])
    assert (target.kind, target.port, target.mac, target.hosts) == ("software", 43488, NO_MAC, ())
    assert (target.pipeline.lanes, target.pipeline.slots) == (360, 4096)
    assert target.tls == Path("/etc/wiresum/controller")
    assert not target.has_ports


def test_a_tofino_whose_program_is_not_there_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    switch = config.SwitchConfig(
        "t", "tofino", "10.0.0.2:9559", 0, "10.0.0.1", 43488, program=tmp_path, p4info=tmp_path / "x"
    )
    with pytest.raises(PipelineError, match=rf"{tmp_path}: the compiler writes one \.conf file"):
        target_of(switch)
