"""What both benchmarks of several switches measure: one tensor's sum over one choice of switches, or over Gloo."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case as DenseCase
from wiresum_lab.benchmarks.program import TurnCase, sum_once
from wiresum_lab.ranks.ranks import Ranks

RANK = "wiresum_lab.benchmarks.switches.rank"


def choice(name: str, **options: object) -> str:
    """An argument of `RANK`: a group of this name, with these of `wiresum.torch.Options`."""
    return f"{name}={json.dumps(options)}"


@dataclass
class SwitchesCase(TurnCase):
    workers: int
    link_mbit: float
    bytes: int

    @property
    def goodput_mbit(self) -> float:
        return self.bytes * 8 / self.seconds / 1e6

    @property
    @abstractmethod
    def bound_mbit(self) -> float:
        """What the links allow, headers counted."""

    @property
    def dense(self) -> DenseCase:
        return DenseCase("", self.workers, self.link_mbit, self.bytes)

    def record(self) -> dict[str, Any]:
        figures = {name: round(getattr(self, name), 4) for name in ("seconds", "goodput_mbit", "bound_mbit")}
        return vars(self) | figures | {"bound_ratio": round(self.goodput_mbit / self.bound_mbit, 4)}


def go(ranks: Ranks, case: TurnCase) -> dict[str, Any]:
    seconds, reports = sum_once(ranks, case.group)
    return {"seconds": seconds, "retransmissions": sum(report["retransmissions"] for report in reports)}
