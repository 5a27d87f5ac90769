"""ROC, AUC and power against scikit-learn, and what their intervals promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score, roc_curve

from pseudocoresets.privacy.roc import CURVE_RATES, FALSE_POSITIVE_RATES, exact_interval, roc


def scores_and_members(seed: int, count: int = 700, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    inside = random.random(count) < 0.4
    scores = random.normal(size=count) + 0.5 * inside
    return (np.round(scores, 1) if ties else scores), inside


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_auc_and_power_are_those_of_scikit_learn(seed: int, ties: bool) -> None:
    scores, inside = scores_and_members(seed, ties=ties)
    found = roc(scores, inside)
    assert found.auc.value == pytest.approx(roc_auc_score(inside, scores), abs=1e-12)
    false, true, _ = roc_curve(inside, scores, drop_intermediate=False)
    for rate, power in (*((rate, found.at(rate).value) for rate in FALSE_POSITIVE_RATES), *found.curve):
        assert power == pytest.approx(true[false <= rate + 1e-12].max(), abs=1e-12)
    assert [rate for rate, _ in found.curve] == list(CURVE_RATES)


def test_the_interval_of_the_auc_covers_its_closed_form() -> None:
    """Scores N(1, 1) of members against N(0, 1): AUC = Phi(1 / sqrt 2)."""
    random, truth = np.random.default_rng(0), norm.cdf(1 / np.sqrt(2))
    trials, covered = 400, 0
    for _ in range(trials):
        inside = np.arange(160) < 60
        found = roc(random.normal(size=160) + inside, inside).auc
        covered += found.low <= truth <= found.high
    # 95 % of 400, and four binomial deviations; the normal approximation itself errs by about a point at these sizes.
    assert covered / trials > 0.95 - 0.01 - 4 * np.sqrt(0.95 * 0.05 / trials)


def test_the_better_of_two_attacks_that_find_nothing_seldom_beats_a_coin() -> None:
    random, trials = np.random.default_rng(0), 300
    inside = np.arange(200) < 100
    found = sum(any(roc(random.normal(size=200), inside).beats_a_coin for _ in range(2)) for _ in range(trials))
    # One in a hundred: three expected, and with four deviations at most ten.
    assert found <= 10


def test_scores_of_the_same_images_are_not_taken_for_more_of_them() -> None:
    scores, inside = scores_and_members(1)
    once, images = roc(scores, inside), np.arange(len(scores))
    again = roc(np.tile(scores, 5), np.tile(inside, 5), np.tile(images, 5))
    assert again.auc == once.auc
    assert again.at(0.01).low == pytest.approx(once.at(0.01).low, rel=0.2)
    naive = roc(np.tile(scores, 5), np.tile(inside, 5))
    assert naive.auc.high - naive.auc.low < 0.5 * (once.auc.high - once.auc.low)


@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1000)])
def test_the_interval_of_a_share_is_clopper_and_pearsons(count: int, trials: int) -> None:
    expected = binomtest(count, trials).proportion_ci(0.95, method="exact")
    assert exact_interval(count, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)
