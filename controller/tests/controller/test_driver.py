from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from wiresum import join
from wiresum.controller import driver
from wiresum_lab.doubles.controller import RecordingDriver

DATAPLANE = (Path(__file__).parents[3] / "soft_switch/src/dataplane.hpp").read_text()
PACKET = (Path(__file__).parents[3] / "host_agent/src/wire/packet.hpp").read_text()
FORMAT = (Path(__file__).parents[3] / "host_agent/src/numeric/format.hpp").read_text()


def test_the_reasons_are_those_of_the_data_plane_in_its_order() -> None:
    body = re.search(r"enum class Reason.*?{(.*?)};", DATAPLANE, re.DOTALL)
    assert body is not None
    names = [
        re.sub("(?<!^)([A-Z])", r"_\1", name).lower() for name in re.findall(r"^\s*k(\w+),", body[1], re.MULTILINE)
    ]
    assert (*driver.REASONS, "count") == tuple(names)


def test_an_entry_has_the_fields_of_the_data_planes() -> None:
    """All but the group to which the software switch may send RESULTs, which is its driver's own matter; which of the
    workers are switches, as to a data plane they are all the same; and how many keys were given, which the switch is
    told by itself."""
    body = re.search(r"struct JobEntry {(.*?)^};", DATAPLANE, re.DOTALL | re.MULTILINE)
    assert body is not None
    names = re.findall(r"(\w+)(?: = \d+|{});", body[1])
    entry = [field.name for field in dataclasses.fields(driver.JobEntry)]
    assert sorted(set(entry) - {"below", "keys_reserved"}) == sorted(set(names) - {"results_group"})


def test_the_limits_of_the_packet_are_the_same_everywhere() -> None:
    for constant, value in (("kWorkersMax", driver.WORKERS_MAX), ("kThreadsMax", driver.THREADS_MAX)):
        assert f"{constant} = {value};" in PACKET
    assert driver.THREADS_MAX == join.THREADS_MAX
    assert f"inline constexpr unsigned kWorkersMax = {join.WORKERS_MAX};" in FORMAT, "of a job, whatever its switches"


def test_a_driver_is_recognised() -> None:
    assert isinstance(RecordingDriver(), driver.SwitchDriver)
    assert not isinstance(object(), driver.SwitchDriver)
