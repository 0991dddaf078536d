from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from wiresum.agent.config import OTHER_VARIABLES, AgentConfig, Setting, refuse_unknown, settings_of
from wiresum.join.constants import AGGREGATORS_MAX

ROOT = Path(__file__).parents[3]
VARIABLES = {
    "WIRESUM_SWITCH": ("switch-1.example:4000", "switch", "switch-1.example:4000"),
    "WIRESUM_JOB": ("night-run", "job", "night-run"),
    "WIRESUM_ADDRESS": ("10.1.2.3", "address", "10.1.2.3"),
    "WIRESUM_PORTS": ("45000-45063", "ports", "45000-45063"),
    "WIRESUM_THREADS": ("1", "threads", 1),
    "WIRESUM_LANES": ("360", "lanes", 360),
    "WIRESUM_BITS": ("16", "bits", 16),
    "WIRESUM_PRECISION": ("Exact", "precision", "exact"),
    "WIRESUM_CHECK_WORD": ("1", "check_word", "1"),
    "WIRESUM_TRANSPORT": ("XDP", "transport", "xdp"),
    "WIRESUM_SHARE": ("0", "share", False),
    "WIRESUM_TLS": ("/etc/wiresum/tls", "tls", "/etc/wiresum/tls"),
    "WIRESUM_INSECURE": ("1", "insecure", True),
    "WIRESUM_TENANT": ("vision", "tenant", "vision"),
    "WIRESUM_JOB_TOKEN": ("an operator's word", "job_token", "an operator's word"),
    "WIRESUM_FALLBACK": ("off", "fallback", "off"),
}


def test_every_field_has_a_variable_that_sets_it_unless_only_code_does() -> None:
    config = AgentConfig.from_environment(
        {name: text for name, (text, _, _) in VARIABLES.items()}
        | dict.fromkeys(("WIRESUM_SLOTS", "WIRESUM_SPARSE", "WIRESUM_JOIN_TIMEOUT"), "0")
    )
    in_code = {"slots": 0, "sparse": True, "global_rank": -1, "join_timeout_s": 300.0}
    assert dataclasses.asdict(config) == {field: value for _, field, value in VARIABLES.values()} | in_code


def test_without_variables_the_defaults_hold() -> None:
    assert AgentConfig.from_environment({"PATH": "/bin", "WIRESUM_THREADS": " "}) == AgentConfig()


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("WIRESUM_SWICH", "WIRESUM_SWITCH"),
        ("WIRESUM_BIT", "WIRESUM_BITS"),
        ("WIRESUM_THREAD", "WIRESUM_THREADS"),
        ("WIRESUM_Tls", "WIRESUM_TLS"),
    ],
)
def test_a_misspelt_variable_is_refused_with_a_suggestion(misspelt: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"{misspelt} is no setting: is {meant} meant"):
        AgentConfig.from_environment({misspelt: "1"})


@pytest.mark.parametrize(
    "other",
    [
        *("WIRESUM_SWITCH_SERVICE_HOST", "WIRESUM_SWITCH_PORT_43487_TCP_ADDR", "WIRESUM_SWITCH_PORT"),
        *OTHER_VARIABLES,
    ],
)
def test_known_variables_of_other_programs_are_ignored(other: str, caplog: pytest.LogCaptureFixture) -> None:
    assert AgentConfig.from_environment({other: "1"}) == AgentConfig()
    assert not caplog.records


def test_an_unknown_variable_has_no_effect_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert AgentConfig.from_environment({"WIRESUM_FAVOURITE": "1"}) == AgentConfig()
    assert [record.getMessage() for record in caplog.records] == [
        "WIRESUM_FAVOURITE is no setting, and has no effect. `wiresum settings` lists all"
    ]


def test_each_variable_that_native_code_reads_is_known() -> None:
    known = {setting.variable for setting in settings_of().values()} | OTHER_VARIABLES.keys()
    read = set()
    for folder in ("host_agent/src", "soft_switch/src", "plugins"):
        for path in [*(ROOT / folder).rglob("*.c"), *(ROOT / folder).rglob("*.cpp")]:
            if "tests" not in path.parts:
                read.update(re.findall(r'getenv\("(WIRESUM_\w+)"\)', path.read_text()))
    assert "WIRESUM_SIMD" in read
    assert read <= known


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("WIRESUM_LANE", "WIRESUM_LANE is no setting: is WIRESUM_LANES meant?"),
        ("WIRESUM_FAVOURITE", "WIRESUM_FAVOURITE is no setting"),
        ("WIRESUM_SIMD", "WIRESUM_SIMD is for the environment"),
    ],
)
def test_what_is_given_for_a_session_must_be_a_setting(variable: str, says: str) -> None:
    refuse_unknown({"WIRESUM_LANES": "64"})
    with pytest.raises(ValueError, match=re.escape(says)):
        refuse_unknown({variable: "1"})


def test_the_documented_table_is_that_of_the_settings() -> None:
    documented = (ROOT / "docs/torch.md").read_text()
    rows = [line for line in documented.splitlines() if line.startswith("| `WIRESUM_")]
    assert rows == [row_of(name, setting) for name, setting in settings_of().items()]


def row_of(name: str, setting: Setting) -> str:
    default = getattr(AgentConfig(), name)
    if isinstance(default, bool):
        default = f"{default:g}"
    elif name == "switch":
        default = f"`{default}`"
    return f"| `{setting.variable}` | {setting.default_shown or default} | {setting.help} |"


def test_an_override_wins_unless_it_is_none() -> None:
    environment = {"WIRESUM_THREADS": "4", "WIRESUM_LANES": "64"}
    config = AgentConfig.from_environment(environment, threads=2, lanes=None)
    assert (config.threads, config.lanes) == (2, 64)


def test_an_overridden_variable_is_not_parsed() -> None:
    assert AgentConfig.from_environment({"WIRESUM_THREADS": "many"}, threads=2).threads == 2


def test_an_override_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no such setting: thread;"):
        AgentConfig.from_environment({}, thread=2)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("WIRESUM_SWITCH", "host:"),
        ("WIRESUM_SWITCH", ":4000"),
        ("WIRESUM_SWITCH", "host:0"),
        ("WIRESUM_SWITCH", "host:65536"),
        ("WIRESUM_SWITCH", "host:-1"),
        ("WIRESUM_SWITCH", "host:http"),
        ("WIRESUM_SWITCH", "fe80::1:4000"),
        ("WIRESUM_SWITCH", "two hosts:4000"),
        ("WIRESUM_SWITCH", "a:4000,"),
        ("WIRESUM_SWITCH", "a:4000,b:0"),
        ("WIRESUM_SWITCH", ",".join(["a:4000"] * 9)),
        ("WIRESUM_SWITCH", "a:4000+"),
        ("WIRESUM_SWITCH", "a:4000+b:0"),
        ("WIRESUM_SWITCH", "+".join(f"a:{port}" for port in range(1, 10))),
        ("WIRESUM_JOB", "x" * 129),
        ("WIRESUM_JOB", "a\tb"),
        ("WIRESUM_ADDRESS", "10.0.0"),
        ("WIRESUM_ADDRESS", "localhost"),
        ("WIRESUM_ADDRESS", "0.0.0.0"),
        ("WIRESUM_ADDRESS", "239.1.1.1"),
        ("WIRESUM_PORTS", "45063-45000"),
        ("WIRESUM_PORTS", "0-10"),
        ("WIRESUM_PORTS", "45000-65536"),
        ("WIRESUM_PORTS", "45000-"),
        ("WIRESUM_PORTS", "some"),
        ("WIRESUM_THREADS", "17"),
        ("WIRESUM_THREADS", "-1"),
        ("WIRESUM_THREADS", "four"),
        ("WIRESUM_LANES", "16371"),
        ("WIRESUM_BITS", "12"),
        ("WIRESUM_PRECISION", "double"),
        ("WIRESUM_TRANSPORT", "rdma"),
        ("WIRESUM_TRANSPORT", "xdp:eth\t1"),
        ("WIRESUM_TRANSPORT", "udp:eth1"),
        ("WIRESUM_INSECURE", "perhaps"),
        ("WIRESUM_TENANT", "x" * 65),
        ("WIRESUM_SWITCH", "local+a"),
        ("WIRESUM_FALLBACK", "host:"),
        ("WIRESUM_FALLBACK", "a:4000,b:4000"),
        ("WIRESUM_FALLBACK", "a+b"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable}") as caught:
        AgentConfig.from_environment({variable: text})
    assert repr(text)[1:-1] in str(caught.value) or text in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"transport": "xdp", "switch": "a+b"}, "one aggregator"),
        ({"transport": "dpdk:", "address": "10.0.0.2"}, "it must have the EAL's arguments"),
        ({"transport": "dpdk:-a 0000:01:00.0"}, "WIRESUM_ADDRESS must be"),
    ],
)
def test_settings_that_a_device_transport_does_not_support_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^WIRESUM_TRANSPORT.*{says}"):
        AgentConfig(**settings)


@pytest.mark.parametrize("settings", [{"transport": "xdp"}, {"switch": "a+b"}])
def test_a_fallback_that_is_named_needs_udp_and_one_aggregator(settings: dict[str, Any]) -> None:
    assert not AgentConfig(**settings).may_fall_back
    assert AgentConfig(fallback="10.0.0.1").fallback == "10.0.0.1:43487"
    with pytest.raises(ValueError, match=r"^WIRESUM_FALLBACK.*WIRESUM_TRANSPORT=udp and one"):
        AgentConfig(**settings, fallback="10.0.0.1:4000")


@pytest.mark.parametrize(("variable", "text"), [("WIRESUM_JOB_TOKEN", "a\tb"), ("WIRESUM_JOB_TOKEN", "a" * 1000)])
def test_a_bad_secret_is_refused_without_being_repeated(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable}.*not shown") as caught:
        AgentConfig.from_environment({variable: text})
    assert text not in str(caught.value)


def test_what_the_workers_of_a_job_must_agree_on() -> None:
    assert AgentConfig(switch="a+b", bits=16, sparse=False).agreed == {
        "WIRESUM_PRECISION": "auto",
        "WIRESUM_BITS": "16",
        "WIRESUM_CHECK_WORD": "auto",
        "sparse": "0",
        "the number of aggregators in WIRESUM_SWITCH": "2",
    }


def test_secrets_are_not_shown() -> None:
    shown = repr(AgentConfig(job_token="a token"))
    assert "a token" not in shown


def test_values_from_code_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"WIRESUM_BITS \(bits\) is 7: it must be 32, 16 or 8"):
        AgentConfig(bits=7)


@pytest.mark.parametrize(
    "settings", [{"slots": 32769}, *({"join_timeout_s": seconds} for seconds in (0.0, math.nan, math.inf, 86401.0))]
)
def test_what_only_code_chooses_is_checked_by_its_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"^{name} is .*: it must be"):
        AgentConfig.from_environment({}, **settings)


def test_ports_are_a_range_or_one_or_any() -> None:
    assert AgentConfig(ports="45000-45063").port_range == (45000, 45063)
    assert AgentConfig(ports="45000").port_range == (45000, 45000)
    assert AgentConfig().port_range == (0, 0)


def test_the_switch_may_have_several_endpoints() -> None:
    config = AgentConfig(switch="a:4000, b ,10.0.0.1:5")
    assert config.control_endpoints == ("a:4000", "b:43487", "10.0.0.1:5")
    assert (config.switch_host, config.switch_port) == ("a", 4000)
    assert AgentConfig(switch=config.switch) == config


def test_each_of_several_aggregators_has_endpoints_of_its_own() -> None:
    config = AgentConfig(switch="b, c:4000 + a:1", threads=2)
    assert config.switch == "b:43487,c:4000+a:1"
    assert [part.switch for part in config.aggregators] == ["a:1", "b:43487,c:4000"]
    assert [part.control_endpoints for part in config.aggregators] == [("a:1",), ("b:43487", "c:4000")]
    assert {part.threads for part in config.aggregators} == {2}
    assert AgentConfig(switch="a:1+b,c:4000").aggregators == tuple(
        dataclasses.replace(part, threads=0) for part in config.aggregators
    ), "the order does not matter"
    assert AgentConfig(switch="a:1").aggregators == (AgentConfig(switch="a:1"),)
    assert AgentConfig(switch="local").switch == "local"


def test_there_can_be_as_many_aggregators_as_the_native_core_takes() -> None:
    most = "+".join(f"a:{port}" for port in range(1, AGGREGATORS_MAX + 1))
    assert len(AgentConfig(switch=most).aggregators) == AGGREGATORS_MAX
    with pytest.raises(ValueError, match="aggregators at most"):
        AgentConfig(switch=f"{most}+b")


def test_two_aggregators_cannot_be_one() -> None:
    with pytest.raises(ValueError, match="names a:43487 for two aggregators"):
        AgentConfig(switch="a+b,a:43487")


@pytest.mark.parametrize(
    ("switch", "host", "port"), [("10.0.0.1:4000", "10.0.0.1", 4000), ("a.b", "a.b", 43487), ("h:1", "h", 1)]
)
def test_the_switch_is_a_host_and_a_port(switch: str, host: str, port: int) -> None:
    config = AgentConfig(switch=switch)
    assert (config.switch_host, config.switch_port) == (host, port)
    assert config.switch == f"{host}:{port}"
