"""Common parts of the benchmarks of several switches: a sum over one choice of switches, or over Gloo."""

from __future__ import annotations

import json

from wiresum_lab.benchmarks.program import Case, Record, sum_once
from wiresum_lab.ranks.ranks import Ranks

RANK = "wiresum_lab.benchmarks.switches.rank"


def choice(name: str, **options: object) -> str:
    """An argument of `RANK`: a group of this name with these `wiresum.torch.Options`."""
    return f"{name}={json.dumps(options)}"


def go(ranks: Ranks, case: Case) -> Record:
    seconds, reports = sum_once(ranks, case["group"])
    return {"seconds": seconds, "retransmissions": sum(report["retransmissions"] for report in reports)}


def figures(case: Case, bound_mbit: float | None) -> Record:
    """The columns that all these benchmarks have. `bound_mbit` is the goodput that the links allow, headers counted."""
    goodput_mbit = case.goodput_mbit()
    return {
        "seconds": case.seconds,
        "goodput_mbit": goodput_mbit,
        "bound_mbit": bound_mbit,
        "of_bound": goodput_mbit / bound_mbit if bound_mbit else None,
        "sent_again": sum(case.all("retransmissions")),
    }
