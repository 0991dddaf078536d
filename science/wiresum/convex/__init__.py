"""Distributed optimisation of finite sums with compressed communication.

`distributed_minimize` runs any compressor and memory of `wiresum.compress` with any gradient estimator of this package,
over workers simulated in this process or over a process group. docs/science.md has the experiments.
"""

from __future__ import annotations

from wiresum.convex.estimators import LSVRG, SAGA, SVRG, Estimator, Plain
from wiresum.convex.logistic import LogisticRegression
from wiresum.convex.minimize import Minimum, Progress, distributed_minimize
from wiresum.convex.problem import Problem
from wiresum.convex.prox import L1, Box, Proximal
from wiresum.convex.theory import (
    MeanRule,
    Rule,
    decreasing_steps,
    diana_convex_rule,
    diana_nonconvex_noise,
    diana_nonconvex_rule,
    diana_rule,
    isega_rule,
    vr_diana_nonconvex_rule,
    vr_diana_rule,
    vr_diana_step_size,
)

__all__ = [
    "L1",
    "LSVRG",
    "SAGA",
    "SVRG",
    "Box",
    "Estimator",
    "LogisticRegression",
    "MeanRule",
    "Minimum",
    "Plain",
    "Problem",
    "Progress",
    "Proximal",
    "Rule",
    "decreasing_steps",
    "diana_convex_rule",
    "diana_nonconvex_noise",
    "diana_nonconvex_rule",
    "diana_rule",
    "distributed_minimize",
    "isega_rule",
    "vr_diana_nonconvex_rule",
    "vr_diana_rule",
    "vr_diana_step_size",
]
