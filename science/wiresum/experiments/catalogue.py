"""The experiments, and functions that run them.

This module is apart from __main__, which a process of the pool does not import.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wiresum.experiments.experiment import Report

EXPERIMENTS = (
    "linear-rate",
    "variance-reduction",
    "independent-blocks",
    "growing-integers",
    "global-top-k",
    "granularity",
    "compressed-training",
    "momentum-correction",
    "block-sparsifiers",
    "importance-sampling",
    "granularity-training",
    "beyond-strong-convexity",
    "adaptive-optimizers",
    "scaling-factor",
    "coordinate-sampling",
    "cost-model",
    "bidirectional",
    "vr-diana-variants",
    "block-density",
    "outer-steps",
)
"""Names of the experiments. Each is a module of this package with a function `run`."""
LONG = ("compressed-training", "adaptive-optimizers", "outer-steps", "momentum-correction", "block-sparsifiers")
"""Long experiments, which begin first, so that none runs alone at the end."""


@dataclass(frozen=True)
class Shown:
    text: str
    """An experiment's table and claims."""
    holds: bool
    """Whether all its claims hold."""


def run_of(name: str) -> Callable[..., Report]:
    run: Callable[..., Report] = import_module(f"wiresum.experiments.{name.replace('-', '_')}").run
    return run


def show(name: str, output: Path) -> Shown:
    """Runs one experiment, and draws its chart."""
    import torch

    from wiresum.experiments import figures

    torch.set_num_threads(1)  # the networks are too small for more
    started_at = time.perf_counter()
    report = run_of(name)()
    figures.save(report, output / f"science-{name}.png")
    lines = [f"\n## {report.title}\n\n{report.table()}\n"]
    lines += [f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim}" for claim in report.claims]
    lines.append(f"({time.perf_counter() - started_at:.0f} s)")
    return Shown("\n".join(lines), all(claim.holds for claim in report.claims))
