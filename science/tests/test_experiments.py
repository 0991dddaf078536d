"""The experiments at a smaller size: every claim holds, and the numbers behind it are recorded."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import wiresum.compress
from wiresum.experiments import __main__ as science
from wiresum.experiments import adaptive_optimizers, catalogue, linear_rate, network
from wiresum.experiments.experiment import Claim, Curve
from wiresum_lab.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(300)

SMALL: dict[str, tuple[dict[str, Any], int]] = {
    "linear-rate": ({"workers": 5, "steps": 600, "seeds": 1}, 30),
    "variance-reduction": ({"workers": 5, "steps": 1000}, 12),
    "independent-blocks": ({"workers": 20, "steps": 800}, 11),
    "growing-integers": ({"workers": 5, "steps": 500}, 13),
    "global-top-k": ({"workers": 4, "epochs": 20, "seeds": 1}, 8),
    "granularity": ({"points": 2, "draws": 10}, 21),
    "compressed-training": (
        {
            "epochs": 6,
            "seeds": 1,
            "names": ["plain sums, 16 bits", "plain sums, 8 bits", "IntDIANA, 8 bits", "Top-k 1%"],
        },
        9,
    ),
    "momentum-correction": ({"workers": 4, "epochs": 1, "seeds": 1}, 6),
    "block-sparsifiers": ({"workers": 5, "steps": 200, "every": 10, "epochs": 1, "seeds": 1}, 20),
    "importance-sampling": ({"workers": 5, "steps": 900, "every": 18}, 13),
    "granularity-training": (
        {"workers": 2, "epochs": 1, "seeds": 1, "names": ["threshold", "adaptive threshold"]},
        2,
    ),
    "beyond-strong-convexity": ({"workers": 5, "steps": 500, "seeds": 1}, 11),
    "adaptive-optimizers": (
        {"names": ["IntDIANA(bits=16)", "IntDIANA(bits=8)", 'IntDIANA(bits=8, scale="estimate")', "TopK(0.1)"]},
        8,
    ),
    "scaling-factor": ({"epochs": 1, "exponents": [-1, 2, 3, 4, 5, 6, 7, 8, 12]}, 20),
    "coordinate-sampling": ({"workers": 10, "steps": 1100}, 13),
    "cost-model": ({"epochs": 2}, 27),
    "bidirectional": ({"steps": 300}, 16),
    "vr-diana-variants": ({"workers": 5, "steps": 1200, "every": 40}, 16),
    "block-density": ({"draws": 3}, 11),
    "outer-steps": ({"workers": 2, "steps": 60, "seeds": 1, "layers": 1, "width": 32, "within": 0.15}, 13),
}
"""The arguments, and the number of claims."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The networks are so small that more threads would only slow the training down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL)
def test_every_claim_holds(name: str) -> None:
    options, claims = SMALL[name]
    report = catalogue.run_of(name)(**options)
    assert [str(claim) for claim in report.claims if not claim.holds] == []
    assert len(report.claims) == claims
    figure = Figure()
    report.draw(figure)
    assert figure.axes
    assert report.table().count("\n") == len(report.rows) + 1


def test_every_experiment_is_tested() -> None:
    assert set(SMALL) == set(catalogue.EXPERIMENTS)


def test_the_guides_table_under_adamw_has_every_compressor() -> None:
    """A claim of the experiment compares its figures with those of the guide."""
    methods = adaptive_optimizers.METHODS
    assert list(adaptive_optimizers.guide_table()) == list(methods)
    everything = {
        kind
        for kind in vars(wiresum.compress).values()
        if inspect.isclass(kind) and issubclass(kind, wiresum.compress.Compressor) and not inspect.isabstract(kind)
    }
    assert everything == {type(method) for method in methods.values()}, (
        "give a new compressor an entry in adaptive_optimizers.METHODS and a row in docs/compress.md, with its figures"
    )


def test_a_claim_that_does_not_hold_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a step size that its theorem does not allow, DIANA exceeds the bound."""
    rule = linear_rate.diana_rule
    monkeypatch.setattr(linear_rate, "diana_rule", lambda **c: rule(**{**c, "smoothness": c["smoothness"] / 40}))
    small = functools.partial(linear_rate.run, workers=3, steps=50, seeds=1)
    monkeypatch.setattr(linear_rate, "run", small)
    shown = catalogue.show("linear-rate", tmp_path)
    assert not shown.holds
    assert "DOES NOT HOLD: p = 2: the step size is corollary 1's" in shown.text
    assert (tmp_path / "science-linear-rate.png").stat().st_size > 1000


@pytest.mark.nightly
def test_the_program_runs_an_experiment_at_full_size(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wiresum.experiments", "growing-integers", "--output", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("holds: ") == 13
    assert (tmp_path / "science-growing-integers.png").stat().st_size > 1000


@pytest.mark.parametrize("make", [network.network, network.convolutional_network])
def test_the_gradients_of_all_workers_are_those_of_each(make: Callable[[int], torch.nn.Module]) -> None:
    digits, model = network.Digits.load(1), make(1)
    shares = torch.arange(24).reshape(4, 6)
    images, labels = digits.images[shares], digits.labels[shares]
    for (loss, vectors), share in zip(network.gradients(model, images, labels), shares, strict=True):
        expected_loss, expected = network.gradient(model, digits.images[share], digits.labels[share])
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        for vector, one in zip(vectors, expected, strict=True):
            np.testing.assert_allclose(vector, one, rtol=1e-5, atol=1e-7)


def test_a_curve_finds_the_step_from_which_it_stays_below_a_level() -> None:
    curve = Curve("x", [0, 10, 20, 30], [1.0, 0.1, 0.6, 0.01])
    assert curve.settles_below(0.5) == 30, "at 10 it was below, and left again"
    assert curve.settles_below(0.7) == 10
    assert curve.settles_below(0.001) == float("inf")


def test_a_claim_is_a_number_in_an_interval() -> None:
    assert Claim("x", 1.0, 1.0, 2.0).holds
    assert not Claim("x", 0.9, 1.0, 2.0).holds
    assert not Claim("x", float("nan"), at_most=2.0).holds
    assert str(Claim("steps", 1.25, 1, 1.5)) == "steps: 1.25 in [1, 1.5]"
    assert not Claim.equal("x", 3.0, 1.0).holds
    samples = np.random.default_rng(1).normal(size=100)
    assert Claim.mean("x", list(samples), 0.0).holds
    assert not Claim.mean("x", list(samples + 1), 0.0).holds
    assert Claim.alike("x", [0.1], list(samples), margin_min=0).holds
    assert not Claim.alike("x", [9.0], list(samples), margin_min=0).holds


def test_the_program_has_help_and_refuses_unknown_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in ((["--help"], 0), (["magic"], 2)):
        monkeypatch.setattr(sys, "argv", ["science.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            science.main()
        assert ended.value.code == code
    printed = capsys.readouterr()
    assert "usage: science.py" in printed.out
    assert "there is no experiment magic; there are linear-rate" in printed.err
