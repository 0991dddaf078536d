from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from wiresum.controller import driver
from wiresum_lab.doubles.controller import RecordingDriver

DATAPLANE = (Path(__file__).parents[3] / "soft_switch/src/dataplane.hpp").read_text()


def test_an_entry_has_the_fields_of_the_data_planes() -> None:
    """All but the group to which the software switch may send RESULTs, which is its driver's own matter; which of the
    workers are switches, as to a data plane they are all the same; and how many keys were given, which the switch is
    told by itself."""
    body = re.search(r"struct JobEntry {(.*?)^};", DATAPLANE, re.DOTALL | re.MULTILINE)
    assert body is not None
    names = re.findall(r"(\w+)(?: = \d+|{});", body[1])
    entry = [field.name for field in dataclasses.fields(driver.JobEntry)]
    assert sorted(set(entry) - {"below", "keys_reserved"}) == sorted(set(names) - {"results_group"})


def test_a_driver_is_recognised() -> None:
    assert isinstance(RecordingDriver(), driver.SwitchDriver)
    assert not isinstance(object(), driver.SwitchDriver)
