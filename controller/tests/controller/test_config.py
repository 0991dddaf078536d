from __future__ import annotations

from pathlib import Path

import pytest

from wiresum.controller import config
from wiresum.controller.p4runtime import Host


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    found = _load(tmp_path, config.EXAMPLE)
    assert found.switch == config.SwitchConfig("127.0.0.1:9559", 0, "10.0.0.1", "02:00:0a:00:00:01")
    assert found.hosts == (
        Host("worker0", "10.0.0.10", "02:00:0a:00:00:0a", 0),
        Host("worker1", "10.0.0.11", "02:00:0a:00:00:0b", 1),
    )
    assert found.listen == ("0.0.0.0", 43487)


def test_what_has_a_usual_value_may_be_left_out(tmp_path: Path) -> None:
    text = config.EXAMPLE.replace("[join]\n", "").replace('listen = "0.0.0.0:43487"', "").replace("device = 0", "")
    found = _load(tmp_path, text)
    assert found.listen == ("0.0.0.0", 43487)
    assert found.switch.device == 0


def test_macs_are_told_apart_however_they_are_written(tmp_path: Path) -> None:
    found = _load(tmp_path, config.EXAMPLE.replace("02:00:0a:00:00:0a", "02-00-0A-00-00-0A"))
    assert found.hosts[0].mac == "02:00:0a:00:00:0a"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('p4runtime = "127.0.0.1:9559"', "", "x.toml:1: switch: p4runtime is missing"),
        ('"127.0.0.1:9559"', '"127.0.0.1"', "x.toml:2: switch: p4runtime must be host:port"),
        ('"127.0.0.1:9559"', '"127.0.0.1:99999"', "x.toml:2: switch: p4runtime must be host:port"),
        ("device = 0", "device = -1", "x.toml:3: switch: device must be a whole number"),
        ("device = 0", "device = true", "x.toml:3: switch: device must be a whole number"),
        ("device = 0", "devise = 0", "x.toml:3: switch: nothing here is called devise"),
        ('"10.0.0.1"', '"10.0.0"', "x.toml:4: switch: address must be an IPv4 address"),
        ('"10.0.0.1"', '"224.0.0.1"', "x.toml:4: switch: address must be the address of one machine"),
        ('"02:00:0a:00:00:01"', '"02:00:0a:00:00"', "x.toml:5: switch: mac must be a MAC address"),
        ('"02:00:0a:00:00:01"', '"03:00:0a:00:00:01"', "x.toml:5: switch: mac must be the address of one machine"),
        ('"0.0.0.0:43487"', '"43487"', "x.toml:8: join: listen must be host:port"),
        ("[join]", "[joint]", "x.toml:7: joint: there is no such table"),
        ("port = 1", "port = 511", "x.toml:20: host: port must be a whole number from 0 to 510"),
        ("port = 1", 'port = "1"', "x.toml:20: host: port must be a whole number"),
        ("port = 1", "port 1", "x.toml: this is not TOML: .*line 20"),
        ('"10.0.0.11"', '"10.0.0.10"', "x.toml:18: host: address 10.0.0.10 is worker0's already"),
        ('"10.0.0.11"', '"10.0.0.1"', "x.toml:18: host: address 10.0.0.1 is the switch's already"),
        ('"02:00:0a:00:00:0b"', '"02:00:0A:00:00:0A"', "x.toml:19: host: mac 02:00:0a:00:00:0a is worker0's already"),
        ('"worker1"', '"worker0"', "x.toml:17: host: name worker0 is worker0's already"),
        ("[switch]", "[[switch]]", r"x.toml:1: switch: must be a table, \[switch\]"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in config.EXAMPLE
    before, _, after = config.EXAMPLE.rpartition(old) if "worker1" in new or "port = 1" in old else ("", "", "")
    text = before + new + after if before else config.EXAMPLE.replace(old, new, 1)
    with pytest.raises(config.ConfigError, match=complaint):
        _load(tmp_path, text)


def test_without_hosts_there_is_nothing_to_serve(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="no host"):
        _load(tmp_path, config.EXAMPLE.partition("[[host]]")[0])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"absent\.toml: cannot read it"):
        config.load(tmp_path / "absent.toml")


def _load(folder: Path, text: str) -> config.Config:
    path = folder / "x.toml"
    path.write_text(text)
    return config.load(path)
