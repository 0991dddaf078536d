from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wiresum.controller import config
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.switches import Host, SwitchConfig

HOSTS = (Host("worker0", "10.0.0.10", "02:00:0a:00:00:0a", 0), Host("worker1", "10.0.0.11", "02:00:0a:00:00:0b", 1))
LEAST = """\
[[switch]]
name = "only"
kind = "software"
p4runtime = "127.0.0.1:9559"
address = "127.0.0.1"
"""


def test_the_example_is_a_valid_configuration(tmp_path: Path) -> None:
    found = _load(tmp_path, config.EXAMPLE)
    tls = Path("/etc/wiresum/controller")
    assert (found.listen, found.metrics) == (("0.0.0.0", 43487), ("127.0.0.1", 9487))
    assert found.state == Path("/var/lib/wiresum")
    assert found.security == config.SecurityConfig(tls, False, Path("/var/log/wiresum/audit.log"))
    assert found.limits == Limits(slots_default=256)
    of_vision = Quota(
        "vision",
        slots=1024,
        jobs=8,
        switch_percent=75,
        waiting_jobs=16,
    )
    assert found.quotas == (of_vision, replace(config.UNSTATED, switch_percent=50)), "nobody has all of any switch"
    leaf, spine, spare = found.switches
    assert leaf == SwitchConfig(
        "leaf1",
        "bmv2",
        "127.0.0.1:9559",
        0,
        "10.0.0.1",
        43488,
        "02:00:0a:00:00:01",
        parent="spine",
        parent_port=2,
        port_at_parent=0,
        hosts=HOSTS,
    )
    mac = "02:00:0a:00:00:03"
    assert spine == SwitchConfig("spine", "bmv2", "127.0.0.1:9560", 0, "10.0.0.3", 43488, mac)
    assert spare == SwitchConfig(
        "spare", "software", "10.0.0.2:9559", 0, "10.0.0.2", 43488, lanes=360, slots=4096, tls=tls
    )


def test_only_a_software_switch_can_have_multicast_groups(tmp_path: Path) -> None:
    (only,) = _load(tmp_path, LEAST + 'multicast = "239.192.4.0"\n').switches
    assert only.multicast == "239.192.4.0"
    for wrong, complaint in {
        "10.0.0.9": "10.0.0.9 cannot be the first of 1024 multicast groups",
        "239.255.255.255": "239.255.255.255 cannot be the first of 1024 multicast groups",
        "everyone": "'everyone' is no multicast group",
    }.items():
        with pytest.raises(config.ConfigError, match=f"x\\.toml: switch only: multicast {complaint}"):
            _load(tmp_path, LEAST + f'multicast = "{wrong}"\n')
    with pytest.raises(config.ConfigError, match="nothing here is called multicast"):
        _load(tmp_path, config.EXAMPLE.replace("device = 0", 'multicast = "239.192.0.0"', 1))


def test_limits_are_given_in_seconds(tmp_path: Path) -> None:
    text = "[jobs]\nheartbeat_lost_s = 90\nidle_s = 7.5\nreattach_s = 3600\n" + LEAST
    expected = Limits(heartbeat_lost_ms=90_000, idle_ms_max=7500, reattach_with_state_ms=3_600_000)
    assert _load(tmp_path, text).limits == expected
    with pytest.raises(config.ConfigError, match=r"heartbeat_lost_s must be 5 to 3600 seconds, not 1"):
        _load(tmp_path, text.replace("90", "1"))


def test_optional_keys_have_defaults(tmp_path: Path) -> None:  # R2.3
    found = _load(tmp_path, LEAST)
    assert (found.listen, found.metrics, found.state) == (("0.0.0.0", 43487), None, None)
    assert found.security == config.SecurityConfig()
    assert (found.limits, found.quotas) == (Limits(), (config.UNSTATED,))
    assert found.quotas[0].switch_percent == 100, "without quotas a job may have all of a switch"
    assert (found.switches[0].device, found.switches[0].port, found.switches[0].tls) == (0, 43488, None)


def test_a_tofino_has_a_program_and_a_form_of_device_config(tmp_path: Path) -> None:
    text = config.EXAMPLE.replace('kind = "bmv2"', 'kind = "tofino"\nprogram = "tofino"\np4info = "/p4/tofino.txtpb"')
    found = _load(tmp_path, text)
    assert found.switches[0].program == tmp_path / "tofino", "relative to the file"
    assert found.switches[0].p4info == Path("/p4/tofino.txtpb")
    assert found.switches[0].device_config == "stratum"
    found = _load(tmp_path, text.replace('"tofino"', '"tofino"\ndevice_config = "pi"', 1))
    assert found.switches[0].device_config == "pi"
    with pytest.raises(config.ConfigError, match="device_config must be one of stratum, pi, not 'tar'"):
        _load(tmp_path, text.replace('"tofino"', '"tofino"\ndevice_config = "tar"', 1))
    with pytest.raises(config.ConfigError, match="switch leaf1: program is missing"):
        _load(tmp_path, config.EXAMPLE.replace('"bmv2"', '"tofino"'))


def test_macs_are_normalised(tmp_path: Path) -> None:
    found = _load(tmp_path, config.EXAMPLE.replace("02:00:0a:00:00:0a", "02-00-0A-00-00-0A"))
    assert found.switches[0].hosts[0].mac == "02:00:0a:00:00:0a"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"0.0.0.0:43487"', '"43487"', "controller: listen must be host:port"),
        ('state = "/var/lib/wiresum"', "state = 1", "controller: state must be a text in quotes"),
        ("[controller]", "[contoller]", "contoller: there is no such table"),
        ("[security]", "[security]\ninsecure = true", "security: insecure = true means without TLS, but tls is given"),
        ('tls = "/etc/wiresum/controller"  # what', "insecure = 1 # what", "security: insecure must be true or false"),
        ("slots_default = 256 ", "slots_default = 255 ", "jobs: slots_default must be a power of two"),
        (
            "slots_default = 256 ",
            "slots_default = 8 ",
            "jobs: slots_default must be at least 16, which every job takes",
        ),
        ("slots = 1024", "slots = 8", "tenant vision: slots must be 0, or at least 16, which every job takes"),
        ('"127.0.0.1:9487"', '"0.0.0.0:43487"', "controller: metrics cannot be at 0.0.0.0:43487, where workers join"),
        ('"127.0.0.1:9487"', '"127.0.0.1:43487"', "controller: metrics cannot be at 127.0.0.1:43487, where workers"),
        ("jobs = 8", "jobs = -1", "tenant vision: jobs must be a whole number from 0"),
        ("switch_percent = 75", "switch_percent = 1.5", "tenant vision: switch_percent must be a whole number from 1"),
        (
            "waiting_jobs = 16",
            "waiting_jobs = 2000",
            "tenant vision: waiting_jobs must be .* from 0 to 1024",
        ),
        (
            "waiting_jobs = 16",
            'waiting_jobs = 16\n[[tenant]]\nname = "vision"',
            "tenant vision: there is a .* vision already",
        ),
        ('p4runtime = "127.0.0.1:9559"', "", "switch leaf1: p4runtime is missing"),
        ('"127.0.0.1:9559"', '"127.0.0.1"', "switch leaf1: p4runtime must be host:port"),
        ('"127.0.0.1:9559"', '"127.0.0.1:99999"', "switch leaf1: p4runtime must be host:port"),
        ('kind = "bmv2"', 'kind = "p4"', "switch leaf1: kind must be one of software, bmv2, tofino, not 'p4'"),
        ("device = 0", "device = -1", "switch leaf1: device must be a whole number"),
        ("device = 0", "device = true", "switch leaf1: device must be a whole number"),
        ("device = 0", "devise = 0", "switch leaf1: nothing here is called devise"),
        ("device = 0", "lanes = 360", "switch leaf1: nothing here is called lanes"),
        ('"10.0.0.1"', '"10.0.0"', "switch leaf1: address must be an IPv4 address"),
        ('"10.0.0.1"', '"224.0.0.1"', "switch leaf1: address must be the address of one machine"),
        ('mac = "02:00:0a:00:00:01"', 'mac = "02:00:0a:00:00"', "switch leaf1: mac must be a MAC address"),
        (
            'mac = "02:00:0a:00:00:01"',
            'mac = "03:00:0a:00:00:01"',
            "switch leaf1: mac must be the address of one machine",
        ),
        ("port = 1\n", "port = 511\n", "switch leaf1: host worker1: port must be a whole number from 0 to 510"),
        ("port = 1\n", 'port = "1"\n', "switch leaf1: host worker1: port must be a whole number"),
        ('"10.0.0.11"', '"10.0.0.10"', "switch leaf1: host worker1: address 10.0.0.10 is worker0's already"),
        ('"10.0.0.11"', '"10.0.0.1"', "switch leaf1: host worker1: address 10.0.0.1 is the switch's already"),
        (
            '"02:00:0a:00:00:0b"',
            '"02:00:0A:00:00:0A"',
            "switch leaf1: host worker1: mac 02:00:0a:00:00:0a is worker0's already",
        ),
        ('"worker1"', '"worker0"', "switch leaf1: host worker0: name worker0 is worker0's already"),
        ('"spare"', '"leaf1"', "switch leaf1: name leaf1 is leaf1's already"),
        ('"10.0.0.2"', '"10.0.0.1"', "switch spare: address 10.0.0.1:43488 is leaf1's already"),
        ('"10.0.0.2:9559"', '"127.0.0.1:9559"', "switch spare: p4runtime 127.0.0.1:9559, device 0, is leaf1's already"),
        ("slots = 4096", "slots = 0", "switch spare: slots must be a whole number from 1"),
    ],
)
def test_a_mistake_is_reported_with_its_table_and_key(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in config.EXAMPLE
    with pytest.raises(config.ConfigError, match=rf"x\.toml: {complaint}"):
        _load(tmp_path, config.EXAMPLE.replace(old, new, 1))


def test_a_syntax_error_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"x\.toml: this is not TOML: .*line 2"):
        _load(tmp_path, "[controller]\nname cluster\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no switch: say with"),
        (LEAST.replace("[[switch]]", "[switch]"), r"x\.toml: switch must be tables, each under a \[\[switch\]\]"),
        (LEAST.replace('name = "only"', ""), r"x\.toml: switch 1: name is missing"),
        (LEAST + "host = 1\n", r"x\.toml: switch only: host must be tables, each under a \[\[switch\.host\]\]"),
        (LEAST + '[[switch.host]]\nname = "h"\n', r"x\.toml: switch only: host h: address is missing"),
        (
            LEAST + '[[switch.host]]\nname = "h"\naddress = "10.0.0.1"\nport = 1\n',
            r"x\.toml: switch only: host h: nothing here is called port",
        ),
        ("[[jobs]]\n" + LEAST, r"x\.toml: jobs must be a table, \[jobs\]"),
    ],
)
def test_missing_keys_and_wrong_types_are_reported(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(config.ConfigError, match=complaint):
        _load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"absent\.toml: cannot read it"):
        config.load(tmp_path / "absent.toml")


def _load(folder: Path, text: str) -> config.Config:
    path = folder / "x.toml"
    path.write_text(text)
    return config.load(path)
