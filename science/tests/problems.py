"""A small logistic regression on random data, whose workers differ."""

from __future__ import annotations

import numpy as np

from wiresum.convex import LogisticRegression


def differing(workers: int = 4, *, rows: int = 48, dimension: int = 8, l2: float = 0.05) -> LogisticRegression:
    """Labels are sorted, so that each worker has hardly more than one of them, and workers differ."""
    generator = np.random.default_rng(2)
    labels = np.sort(np.where(generator.random(rows) < 0.5, -1.0, 1.0))
    features = generator.normal(size=(rows, dimension)) + 0.3 * labels[:, None]
    return LogisticRegression(features, labels, workers=workers, l2=l2)
