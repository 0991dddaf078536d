"""A small run of the embedding experiment: real training on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.demos import clicks_demo

pytestmark = pytest.mark.nightly


def test_a_ranks_clicks_are_reproducible_and_differ_between_ranks() -> None:
    import torch

    from wiresum_lab.benchmarks.models import ENTRIES, FIELDS, IMPRESSIONS, Clicks

    generators = (torch.Generator().manual_seed(rank) for rank in (0, 0, 1))
    (entries, clicked), (again, _), (other, _) = map(Clicks().draw, generators)
    assert entries.shape == (IMPRESSIONS, FIELDS) and int(entries.min()) >= 0 and int(entries.max()) < ENTRIES
    assert torch.equal(entries, again)
    assert not torch.equal(entries, other)
    assert 0.2 < float(clicked.mean()) < 0.8
    assert len(entries[:, 0].unique()) < IMPRESSIONS, "popular entries occur more than once"


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.timeout(300)
def test_wiresum_and_gloo_train_to_the_same_parameters(tmp_path: Path) -> None:
    assert clicks_demo.main(["--workers", "2", "--steps", "3", "--output", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "clicks.json").read_text())
    assert result["wiresum"]["parameters_identical"]
    assert result["difference"] <= clicks_demo.TOLERANCE
    assert (tmp_path / "clicks.png").stat().st_size > 10_000
