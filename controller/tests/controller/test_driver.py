from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from wiresum.controller import driver
from wiresum_lab.doubles.controller import RecordingDriver

DATAPLANE = (Path(__file__).parents[3] / "soft_switch/src/dataplane.hpp").read_text()


def test_job_entries_in_python_and_c_plus_plus_have_the_same_fields() -> None:
    """Three fields differ: the multicast group is set by the software switch's own driver, `below` matters to no
    data plane, and `keys_reserved` has an entry of its own."""
    body = re.search(r"struct JobEntry {(.*?)^};", DATAPLANE, re.DOTALL | re.MULTILINE)
    assert body is not None
    names = re.findall(r"(\w+)(?: = \d+|{});", body[1])
    entry = [field.name for field in dataclasses.fields(driver.JobEntry)]
    assert sorted(set(entry) - {"below", "keys_reserved"}) == sorted(set(names) - {"results_group"})


def test_drivers_are_recognised_by_their_methods() -> None:
    assert isinstance(RecordingDriver(), driver.SwitchDriver)
    assert not isinstance(object(), driver.SwitchDriver)
