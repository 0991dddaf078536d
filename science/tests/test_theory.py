"""Step sizes and rates follow the papers."""

from __future__ import annotations

import pytest

from wiresum.convex import (
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


def test_dianas_rule_meets_the_conditions_of_its_theorem() -> None:
    """(1 + n c alpha^2) / (1 + n c alpha) <= alpha_p, and gamma <= 2 / ((mu + L)(1 + c alpha))."""
    smoothness, mu, omega, workers = 3.0, 0.01, 5.0, 10
    rule = diana_rule(smoothness=smoothness, strong_convexity=mu, omega=omega, workers=workers)
    c = rule.shift_weight / rule.step_size**2
    assert (1 + workers * c * rule.alpha**2) / (1 + workers * c * rule.alpha) <= 1 / (1 + omega) * (1 + 1e-12)
    assert rule.step_size <= min(rule.alpha / mu, 2 / ((mu + smoothness) * (1 + c * rule.alpha))) * (1 + 1e-12)
    assert rule.rate == rule.step_size * mu


def test_decreasing_steps_start_as_dianas_and_fall_as_one_over_k() -> None:
    """theta = 2 max(mu/alpha, (mu + L)(1 + c alpha)/2), theorem 3."""
    smoothness, mu, omega, workers = 3.0, 0.01, 5.0, 10
    step_size = decreasing_steps(smoothness=smoothness, strong_convexity=mu, omega=omega, workers=workers)
    theta = 2 * max(mu * 2 * (1 + omega), (mu + smoothness) * (1 + 2 * omega / workers) / 2)
    assert [step_size(k) for k in (0, 100)] == pytest.approx([2 / theta, 2 / (100 * mu + theta)])


def test_without_compression_dianas_rule_is_gradient_descents() -> None:
    rule = diana_rule(smoothness=3.0, strong_convexity=1.0, omega=0.0, workers=10)
    assert rule.step_size == min(0.5, 2 / 4)
    assert rule.bound(2, 1.0, 5.0) == (1 - rule.rate) ** 2


def test_the_convex_rule_keeps_half_of_the_progress() -> None:
    """A step's increase of the shift's part of V is compensated; of 2 gamma (f(x) - f*), gamma stays."""
    smoothness, omega, workers = 3.0, 5.0, 10
    rule = diana_convex_rule(smoothness=smoothness, omega=omega, workers=workers)
    gamma, alpha = rule.step_size, rule.alpha
    m = rule.shift_weight / gamma**2
    assert 2 * omega / workers + m * (1 - alpha) <= m * (1 + 1e-12)
    spent = gamma * (2 * smoothness * (1 + 2 * omega / workers) + 2 * alpha * smoothness * m)
    assert spent <= 1 + 1e-12
    assert rule.bound(10, 2.0, 3.0) == pytest.approx((2 + 3 * rule.shift_weight) / (10 * gamma))


@pytest.mark.parametrize("omega", [0.0, 0.1, 5.0, 100.0])
def test_the_nonconvex_rule_meets_the_conditions_of_its_proof(omega: float) -> None:
    smoothness, workers = 3.0, 10
    rule = diana_nonconvex_rule(smoothness=smoothness, omega=omega, workers=workers)
    gamma, alpha, c = rule.step_size, rule.alpha, rule.shift_weight
    moved = 3 / alpha * smoothness**2 * gamma**2
    assert (1 + alpha / 2) * (1 - alpha) <= 1 - alpha / 2
    assert smoothness * gamma**2 * omega / (2 * workers) + c * (1 - alpha / 2 + moved * omega / workers) <= c + 1e-15
    assert smoothness * gamma**2 / 2 + c * moved <= gamma / 2 * (1 + 1e-12)
    assert rule.bound(10, 2.0, 3.0) == pytest.approx(2 * (2 + 3 * c) / (10 * gamma))


def test_isega_may_send_a_part_of_one_nth_at_a_constant_factor() -> None:
    for workers in (10, 100, 1000):
        rule = isega_rule(smoothness=2.0, strong_convexity=1e-3, ratio=1 / workers, workers=workers)
        assert 1 / (7 * 2.0) < rule.step_size < 1 / (6 * 2.0)


def test_vr_dianas_step_size() -> None:
    assert vr_diana_step_size(smoothness=2.0, omega=3.0, workers=12) == pytest.approx(1 / (2 * 13))


def test_vr_dianas_rule_meets_the_conditions_of_its_proof() -> None:
    """In each of V's three parts, a step takes away at least as much as it adds."""
    smoothness, mu, omega, workers, refresh = 3.0, 0.01, 5.0, 10, 1 / 50
    rule = vr_diana_rule(smoothness=smoothness, strong_convexity=mu, omega=omega, workers=workers, refresh=refresh)
    gamma, alpha = rule.step_size, rule.alpha
    m, n = rule.shift_weight / gamma**2, rule.row_weight / gamma**2
    assert rule.rate == min(gamma * mu, alpha / 2, refresh / 2)
    assert 2 * omega / workers + m * (1 - alpha) <= m * (1 - alpha / 2) * (1 + 1e-12)
    assert 2 * (1 + omega) / workers + 2 * alpha * m + n * (1 - refresh) <= n * (1 - refresh / 2) * (1 + 1e-12)
    progress = (
        2 * smoothness * (1 + (2 + 4 * omega) / workers) + 6 * alpha * smoothness * m + 2 * refresh * smoothness * n
    )
    assert gamma * progress <= 2
    assert rule.bound(0, 1.0, 2.0, 3.0) == 1 + 2 * rule.shift_weight + 3 * rule.row_weight


@pytest.mark.parametrize("refresh", [1 / 50, 1.0])
@pytest.mark.parametrize("omega", [0.0, 0.1, 5.0, 100.0])
def test_vr_dianas_nonconvex_rule_meets_the_conditions_of_its_proof(omega: float, refresh: float) -> None:
    smoothness, workers = 3.0, 10
    rule = vr_diana_nonconvex_rule(smoothness=smoothness, omega=omega, workers=workers, refresh=refresh)
    gamma, alpha, c = rule.step_size, rule.alpha, rule.shift_weight
    of_estimate = smoothness * gamma**2  # A, the factor of E|g|^2 in E V'
    e = 2 * of_estimate * smoothness**2 * (1 + 4 * omega) / (workers * refresh)
    near = pytest.approx
    assert (1 + alpha / 2) * (1 - alpha) <= 1 - alpha / 2
    assert (1 - refresh) * (1 + 2 / refresh) + refresh <= 2 / refresh
    added = 3 * c * smoothness**2 * gamma**2 / alpha + 2 * e * gamma**2 / refresh
    assert added <= of_estimate / 2 * (1 + 1e-12)
    assert of_estimate * omega / workers + c * (1 - alpha / 2) == near(c, abs=1e-15)
    of_rows = of_estimate * smoothness**2 * (1 + omega) / workers + 1.5 * c * alpha * smoothness**2
    assert of_rows + e * (1 - refresh / 2) == near(e)
    assert of_estimate <= gamma / 2 * (1 + 1e-12)
    assert added == near(of_estimate / 2) or gamma == near(1 / (2 * smoothness)), "the step size is not smaller"
    assert rule.bound(10, 2.0, 3.0) == near(2 * (2 + 3 * c) / (10 * gamma))


def test_the_noise_of_minibatches_covers_what_the_proof_adds_to_v_in_a_step() -> None:
    smoothness, omega, workers, variance = 3.0, 5.0, 10, 0.7
    rule = diana_nonconvex_rule(smoothness=smoothness, omega=omega, workers=workers)
    gamma, alpha = rule.step_size, rule.alpha
    c = rule.shift_weight  # of D in V
    of_estimate = (1 + omega) * variance / workers
    added = smoothness * gamma**2 / 2 * of_estimate
    added += c * ((1 + alpha / 2) * alpha * variance + 3 / alpha * smoothness**2 * gamma**2 * of_estimate)
    noise = diana_nonconvex_noise(
        smoothness=smoothness, omega=omega, workers=workers, step_size=gamma, variance=variance
    )
    assert added <= noise * gamma / 2 <= 1.5 * added
