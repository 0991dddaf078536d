"""The results of a training in Mininet, and its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wiresum_lab.demos.digits.runs import Run


class Passage(NamedTuple):
    run: Run
    ports: Mapping[str, tuple[int, int]]
    """Bytes in and out at each switch port during the training."""
