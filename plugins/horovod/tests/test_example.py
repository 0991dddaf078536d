"""The Horovod example trains through the switch."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from wiresum_lab.ranks.cluster import Cluster

from . import horovod_ranks

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/digits.py"


def trains(rank: int, size: int) -> None:
    horovod_ranks.begin(rank, size)
    sys.argv = [str(EXAMPLE), "--epochs", "2"]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_the_example_trains_through_the_switch(launch: Callable[..., Cluster]) -> None:
    pair = launch(2)
    pair.run(trains)
    said = pair.log(0)
    first, second = (float(text) for text in re.findall(r"accuracy (\S+)", said))
    assert second > max(first, 0.6), said
    assert re.search(r"sent [1-9]\d* packets", said), said
