"""Epsilon of noisy sums, against the closed form and a second accountant."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import pseudocoresets as pc
from pseudocoresets.dp import Budget, Guarantee, Release, calibrated, combined, spent

pytest.importorskip("dp_accounting")
DELTA = 1e-5


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Phi(1 / (2 z) - e z) - exp(e) Phi(-1 / (2 z) - e z) = delta, solved for e (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        near, far = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
        return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far) - delta)

    return float(brentq(excess, 0, 200))


@pytest.mark.parametrize("noise", [0.6, 1.5, 4.0])
def test_one_release_costs_what_the_closed_form_says(noise: float) -> None:
    assert spent([Release("sum", noise)], DELTA) == pytest.approx(gaussian_epsilon(noise, DELTA), rel=1e-3)


def test_several_whole_releases_add_up_as_precisions() -> None:
    """Releases of noise z_i are one of noise (sum 1 / z_i^2)^(-1/2)."""
    together = spent([Release("a", 3.0, steps=4), Release("b", 2.0)], DELTA)
    assert together == pytest.approx(gaussian_epsilon((4 / 9 + 1 / 4) ** -0.5, DELTA), rel=1e-3)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.05, 1.0, 200), (0.3, 5.0, 60)])
def test_sampled_steps_cost_what_opacus_says(rate: float, noise: float, steps: int) -> None:
    """Its PRV accountant estimates the same number; its RDP accountant gives a looser upper bound."""
    accountants = pytest.importorskip("opacus.accountants")
    ours = spent([Release("steps", noise, rate, steps)], DELTA)
    prv, rdp = accountants.PRVAccountant(), accountants.RDPAccountant()
    prv.history = rdp.history = [(noise, rate, steps)]
    assert ours == pytest.approx(prv.get_epsilon(DELTA, eps_error=0.01), abs=0.03)
    assert ours <= rdp.get_epsilon(DELTA)


def test_calibration_spends_the_budget_and_no_more() -> None:
    epsilon = 2.0
    guarantee = calibrated(Budget(epsilon, DELTA), 60_000, lambda noise: Release("steps", noise, 0.1, 50))
    (release,) = guarantee.releases
    assert 0.99 * epsilon < spent(guarantee.releases, DELTA) <= epsilon
    assert spent([Release("less", 0.99 * release.noise_multiplier, 0.1, 50)], DELTA) > epsilon
    assert (guarantee.epsilon, guarantee.delta, guarantee.examples) == (epsilon, DELTA, 60_000)


def test_a_shared_release_is_counted_once() -> None:
    one, other = (
        Guarantee(spent([release], DELTA), DELTA, "test", 100, (release,))
        for release in (Release("a", 2.0), Release("b", 3.0))
    )
    assert combined([one, one]) == one
    both = combined([one, other])
    assert both.releases == (*one.releases, *other.releases)
    assert both.epsilon == pytest.approx(gaussian_epsilon((1 / 4 + 1 / 9) ** -0.5, DELTA), rel=1e-3)
    assert combined([both, one]) == both


def test_guarantees_that_are_too_weak_together_are_refused() -> None:
    """Each is one that a file can hold, and what they come to is not."""
    weak = [Guarantee(900.0, DELTA, "test", 100, (Release(name, 0.03),)) for name in ("a", "b")]
    with pytest.raises(pc.InputError, match=r"epsilons of 900, 900 have one of .* together"):
        combined(weak)


def test_a_delta_that_would_allow_to_publish_an_example_is_refused() -> None:
    with pytest.raises(pc.InputError, match=r"delta must be below 0\.01"):
        calibrated(Budget(1.0, 0.01), 100, lambda noise: Release("sum", noise))


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 0.0}, {"epsilon": math.nan}])
def test_no_budget_without_privacy(wrong: dict[str, float]) -> None:
    with pytest.raises(pc.InputError):
        Budget(**{"epsilon": 1.0, "delta": DELTA, **wrong})


def test_the_sentence_promises_no_more_than_is_true() -> None:
    """Its numbers are rounded up: e^8 is 2980.96, which is more than 2.98e+03."""
    text = str(Guarantee(8.00041, 1.00009e-5, "an accountant", 100, (Release("sum", 4.0),)))
    for part in ("at most 2.99e+03 times", "plus 1.001e-05", "epsilon = 8.001 "):
        assert part in text


def test_the_guarantee_is_a_sentence_with_its_numbers() -> None:
    text = str(Guarantee(1.0, 1e-5, "an accountant", 60_000, (Release("sum", 4.0),)))
    assert text.count(".") >= 1 and text.endswith("public.")
    for part in ("at most 2.72 times", "60,000 training examples", "epsilon = 1 ", "delta = 1e-05", "an accountant"):
        assert part in text
