"""Step sizes and rates of the papers' theorems, from the problem's and the compressor's constants.

L is the smoothness of every f_i (of every row's loss with variance reduction), mu the strong convexity, n the number of
workers, omega the compressor's constant: the mean over workers of E|C(v_i) - v_i|^2 is at most omega times the mean of
|v_i|^2. The proofs use only this sum of the workers' variances, so they hold for a scale that workers share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    step_size: float
    alpha: float
    """The rate of the shift."""
    rate: float
    """The linear rate: E V_k <= (1 - rate)^k V_0."""
    shift_weight: float
    """The weight in V_k = |x_k - x*|^2 + shift_weight * mean over workers of |h_i - grad f_i(x*)|^2."""
    row_weight: float = 0.0
    """With variance reduction, V_k has the term row_weight * mean over rows of |grad f_ij(w) - grad f_ij(x*)|^2,
    too."""

    def bound(self, step: int, distance_square: float, shift_square: float, row_square: float = 0.0) -> float:
        """The bound on E|x_k - x*|^2, from the three terms of V_0."""
        start = distance_square + self.shift_weight * shift_square + self.row_weight * row_square
        return float((1 - self.rate) ** step * start)


@dataclass(frozen=True)
class MeanRule:
    """Step size and bound for an f that is not strongly convex: the bound is on a mean over steps, not on the last
    iterate."""

    step_size: float
    alpha: float
    """The rate of the shift."""
    factor: float
    shift_weight: float

    def bound(self, steps: int, start: float, shift_square: float) -> float:
        """The bound on the expected mean over steps 0 to `steps` - 1; each rule defines `start` and `shift_square`."""
        return self.factor * (start + self.shift_weight * shift_square) / (self.step_size * steps)


def diana_rule(*, smoothness: float, strong_convexity: float, omega: float, workers: int) -> Rule:
    """DIANA with full gradients: arXiv 1901.09269, theorem 1 and corollary 1, with 1/alpha_p = 1 + omega.

    The corollary has half of alpha_p. The default of `wiresum.compress` is alpha_p itself, the largest alpha that a
    later analysis allows (arXiv 1905.11261; `diana_convex_rule` and `isega_rule` use it, too).
    """
    alpha = 1 / (2 * (1 + omega))
    c = 4 * omega * (1 + omega) / workers
    step_size = min(alpha / strong_convexity, 2 / ((smoothness + strong_convexity) * (1 + c * alpha)))
    return Rule(step_size, alpha, step_size * strong_convexity, c * step_size**2)


def decreasing_steps(
    *, smoothness: float, strong_convexity: float, omega: float, workers: int
) -> Callable[[int], float]:
    """The step size 2/(mu k + theta) of step k, with theta from DIANA's own step size (arXiv 1901.09269, theorem 3).

    With minibatches a constant step size stalls at an error proportional to it; with these steps the error falls as
    1/k. The rate alpha of the shift is that of `diana_rule`.
    """
    rule = diana_rule(smoothness=smoothness, strong_convexity=strong_convexity, omega=omega, workers=workers)
    theta = 2 / rule.step_size
    return lambda step: 2 / (strong_convexity * step + theta)


def diana_convex_rule(*, smoothness: float, omega: float, workers: int) -> MeanRule:
    """DIANA with full gradients on a convex f: bounds the mean of f(x_k) - f(x*).

    `start` is |x_0 - x*|^2, `shift_square` the mean over workers of |h_i - grad f_i(x*)|^2. The proof is the one of
    `isega_rule`, with alpha = 1/(1 + omega) and mu = 0: half of the step size there leaves
    E V_(k+1) <= V_k - gamma (f(x_k) - f(x*)).
    """
    alpha = 1 / (1 + omega)
    step_size = 1 / (2 * smoothness * (1 + 6 * omega / workers))
    return MeanRule(step_size, alpha, 1.0, 4 * omega * step_size**2 / (workers * alpha))


def diana_nonconvex_rule(*, smoothness: float, omega: float, workers: int) -> MeanRule:
    """DIANA with full gradients on an f that need not be convex: bounds the mean of |grad f(x_k)|^2.

    `start` is f(x_0) less the least value of f, or more; `shift_square` the mean over workers of
    |grad f_i(x_0) - h_i|^2. The proof is Wiresum's own. In short: with D the mean over workers of
    |grad f_i(x_k) - h_i|^2 and G = |grad f(x_k)|^2,
        E f(x_(k+1)) <= f(x_k) - gamma G + (L gamma^2/2)(G + (omega/n) D),
        E D' <= (1 - alpha/2) D + (3/alpha) L^2 gamma^2 (G + (omega/n) D),      alpha = 1/(1 + omega);
    the second by |a + b|^2 <= (1 + alpha/2)|a|^2 + (3/alpha)|b|^2, with a the distance to the shift after its step, and
    b the change of the gradients. With V = f + c D and c = 2 L gamma^2 omega/(n alpha) no D is left if
    12 L^2 gamma^2 omega/n <= alpha^2, and then E V_(k+1) <= V_k - gamma (1 - L gamma) G.
    """
    alpha = 1 / (1 + omega)
    step_size = 1 / (2 * smoothness)
    if omega > 0:
        step_size = min(step_size, alpha * math.sqrt(workers / (12 * omega)) / smoothness)
    return MeanRule(step_size, alpha, 2.0, 2 * smoothness * step_size**2 * omega / (workers * alpha))


def diana_nonconvex_noise(*, smoothness: float, omega: float, workers: int, step_size: float, variance: float) -> float:
    """The term that minibatches add to the bound of `diana_nonconvex_rule`, if E|g_i - grad f_i(x)|^2 <= variance.

    In the proof there, E|g|^2 grows by (1 + omega) variance/n, in both places, and the shift's step adds
    (1 + alpha/2) alpha variance to D'. Together V grows by at most L gamma^2 (1 + 4 omega) variance/n in a step.
    """
    return 2 * smoothness * step_size * (1 + 4 * omega) * variance / workers


def isega_rule(*, smoothness: float, strong_convexity: float, ratio: float, workers: int) -> Rule:
    """The rule of ISEGA (arXiv 1901.09437): with ratio = 1/n the step size is gradient descent's up to a constant.

    The constants are those of a shift of rate alpha = 1/(1 + omega) = ratio in the analysis of arXiv 1905.11261. In
    short: let D be f(x) - f(x*) - <grad f(x*), x - x*> and s the mean of |h_i - grad f_i(x*)|^2. Then
        E|g_hat - grad f(x*)|^2 <= 2L(1 + 2 omega/n) D + (2 omega/n) s,      E s' <= (1 - alpha) s + 2 alpha L D,
    and with V = |x - x*|^2 + M gamma^2 s, M = 4 omega/(n alpha), the terms in D are at most
    -2 gamma (1 - gamma L (1 + 6 omega/n)) D, which is <= 0, and those in s at most (1 - alpha/2) M gamma^2 s.
    """
    omega = 1 / ratio - 1
    step_size = 1 / (smoothness * (1 + 6 * omega / workers))
    weight = 4 * omega * step_size**2 / (workers * ratio)
    return Rule(step_size, ratio, min(step_size * strong_convexity, ratio / 2), weight)


def vr_diana_step_size(*, smoothness: float, omega: float, workers: int) -> float:
    """The step size of VR-DIANA with one row a step and alpha = 1/(1 + omega) (arXiv 1904.05115)."""
    return 1 / (smoothness * (1 + 36 * (omega + 1) / workers))


def vr_diana_rule(*, smoothness: float, strong_convexity: float, omega: float, workers: int, refresh: float) -> Rule:
    """VR-DIANA with L-SVRG, one row a step, its point w renewed with probability `refresh`; alpha = 1/(1 + omega).

    Let D be as in `isega_rule`, s the mean of |h_i - grad f_i(x*)|^2, and r the mean of |grad f_ij(w) - grad
    f_ij(x*)|^2:
        E|g_hat - grad f(x*)|^2 <= 2L(1 + (2 + 4 omega)/n) D + (2(1 + omega)/n) r + (2 omega/n) s,
        E s' <= (1 - alpha) s + 6 alpha L D + 2 alpha r,      E r' <= (1 - refresh) r + 2 refresh L D.
    Take V = |x - x*|^2 + gamma^2 (M s + N r) with M = 4 omega/(n alpha) and N = (4 + 20 omega)/(n refresh). Then M s
    shrinks by alpha/2 and N r by refresh/2 in a step, and the terms in D are at most
    -2 gamma (1 - gamma L (1 + (6 + 36 omega)/n)) D, which the paper's step size makes <= 0.

    With importance sampling L is the largest of the workers' means M_i of their rows' L_ij, and r weighs row j by
    M_i/L_ij: with c_ij = |grad f_ij(x) - grad f_ij(x*)|^2 <= 2 L_ij D_ij, the rows' part of E|g_hat - grad f(x*)|^2 is
    the mean over j of (M_i/L_ij) c_ij, and so at most 2 M_i D_i. The rest is as above.
    """
    alpha = 1 / (1 + omega)
    step_size = vr_diana_step_size(smoothness=smoothness, omega=omega, workers=workers)
    return Rule(
        step_size,
        alpha,
        min(step_size * strong_convexity, alpha / 2, refresh / 2),
        4 * omega * step_size**2 / (workers * alpha),
        (4 + 20 * omega) * step_size**2 / (workers * refresh),
    )


def vr_diana_nonconvex_rule(*, smoothness: float, omega: float, workers: int, refresh: float) -> MeanRule:
    """VR-DIANA with L-SVRG, one row a step, on an f that need not be convex: bounds the mean of |grad f(x_k)|^2.

    `smoothness` is that of every row's loss; `start` and `shift_square` are those of `diana_nonconvex_rule`. The proof
    is Wiresum's own, of the rate of arXiv 1904.05115 in omega, with 1/refresh rows in place of their power 2/3. In
    short: with D and G as there, R = |x_k - w|^2 for the anchor w, A = L gamma^2, and alpha = 1/(1 + omega),
        E|g|^2 <= G + (omega/n) D + ((1 + omega)/n) L^2 R,
        E D' <= (1 - alpha/2) D + (3/2) alpha L^2 R + (3/alpha) L^2 gamma^2 E|g|^2,
        E R' <= (1 - refresh/2) R + (2/refresh) gamma^2 E|g|^2.
    With V = f + c D + e R, c = 2 A omega/(n alpha) and e = 2 A L^2 (1 + 4 omega)/(n refresh), no D and no R is left if
    the second and third lines add at most A/2 to E|g|^2, and then E V_(k+1) <= V_k - (gamma/2) G, since R_0 = 0.
    """
    alpha = 1 / (1 + omega)
    moved = (12 * omega / alpha**2 + 8 * (1 + 4 * omega) / refresh**2) / workers
    step_size = min(1 / 2, 1 / math.sqrt(moved)) / smoothness
    return MeanRule(step_size, alpha, 2.0, 2 * smoothness * step_size**2 * omega / (workers * alpha))
