from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from wiresum.agent import AgentConfig
from wiresum.agent.errors import SwitchUnreachableError
from wiresum.agent.way_out import default_threads, way_out

HOST = "127.0.0.1"


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs `ip` of iproute2")
def test_packet_size_follows_the_mtu_of_the_outgoing_interface() -> None:
    shown = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, text=True, check=True).stdout
    for device in json.loads(shown):
        if "link_index" in device:
            continue  # one end of a pair, which another test may take away
        for info in device["addr_info"]:
            config = AgentConfig(switch=f"{HOST}:1", address=info["local"])
            assert way_out(config) == (info["local"], device["mtu"])
    assert way_out(AgentConfig(switch=f"no-such-host.invalid:1,{HOST}:1"))[0] == HOST
    with pytest.raises(SwitchUnreachableError, match="no-such-host"):
        way_out(AgentConfig(switch="no-such-host.invalid:1"))


@pytest.mark.parametrize(
    ("cores", "workers", "aggregators", "threads"),
    [(1, 1, 1, 1), (16, 1, 1, 4), (16, 1, 2, 2), (16, 1, 3, 1), (16, 1, 8, 1), (16, 4, 1, 2), (12, 2, 1, 2)],
)
def test_threads_use_half_of_the_cores_and_are_a_power_of_two_for_each_aggregator(
    cores: int, workers: int, aggregators: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
    assert default_threads(aggregators) == threads
