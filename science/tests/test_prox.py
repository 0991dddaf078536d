"""Proximal operators minimise the function that defines them."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum.convex import L1, Box


def test_soft_thresholding_minimises_its_definition() -> None:
    grid = np.linspace(-3, 3, 60001)
    for x in (-2.0, -0.3, 0.0, 0.45, 1.7):
        best = grid[np.argmin(0.5 * np.abs(grid) + (grid - x) ** 2 / (2 * 0.8))]
        assert L1(0.5)(np.array([x]), 0.8)[0] == pytest.approx(best, abs=2e-4)


def test_a_box_projects() -> None:
    assert Box(-1, 2)(np.array([-3.0, 0.5, 7.0]), 0.1).tolist() == [-1, 0.5, 2]
