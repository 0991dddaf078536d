"""A training in Mininet, and what it sent through the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wiresum_lab.demos.digits.runs import Run


class Passage(NamedTuple):
    run: Run
    ports: Mapping[str, tuple[int, int]]
    """Of each port of the switches the bytes that came in and went out meanwhile."""
