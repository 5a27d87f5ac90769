"""An empirical lower bound on epsilon: how well outcomes with an example are told from those without it."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta

CONFIDENCE = 0.999


def epsilon_at_least(with_canary: np.ndarray, without: np.ndarray, delta: float) -> float:
    """The largest epsilon that the two samples of a statistic refute, with 99.9 % confidence, or 0.

    (epsilon, delta)-privacy bounds every test: TPR <= e^epsilon FPR + delta, and the same of its complement. The
    threshold is chosen on one half of the samples; the other half gives Clopper-Pearson limits on both rates.
    """
    (choose_in, judge_in), (choose_out, judge_out) = (np.array_split(each, 2) for each in (with_canary, without))
    thresholds = np.quantile(choose_out, np.linspace(0.02, 1.0, 50))
    best = max(thresholds, key=lambda threshold: _refuted(choose_in, choose_out, threshold, delta))
    return max(0.0, _refuted(judge_in, judge_out, best, delta))


def _refuted(with_canary: np.ndarray, without: np.ndarray, threshold: float, delta: float) -> float:
    lower, _ = _limits(int((with_canary > threshold).sum()), len(with_canary))
    _, upper = _limits(int((without > threshold).sum()), len(without))
    return math.log(max(lower - delta, 1e-300) / upper)


def _limits(hits: int, trials: int) -> tuple[float, float]:
    """Clopper-Pearson limits of a share."""
    tail = (1 - CONFIDENCE) / 2
    lower = beta.ppf(tail, hits, trials - hits + 1) if hits else 0.0
    upper = beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return float(lower), float(upper)
