"""A host with a whole IPv6 network takes no more of a service than one with a single address. Needs root."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wiresum_lab.patience import PATIENCE_S

PROGRAM = Path(__file__).with_name("ipv6_callers.py")
ADDRESSES = [f"fd00:4::{last}" for last in range(2, 7)]

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(120)]


def test_calls_from_many_addresses_of_one_ipv6_network_count_as_those_of_one_host() -> None:
    setup = ["ip link set lo up", *(f"ip -6 address add {address}/128 dev lo nodad" for address in ADDRESSES)]
    program = shlex.join([sys.executable, str(PROGRAM), *ADDRESSES])
    command = ["unshare", "--net", "sh", "-c", " && ".join([*setup, f"exec {program}"])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said == {"held": [20, 20, 8, 0, 0], "joined": True, "parties": ["address 'fd00:4::/64'"]}
