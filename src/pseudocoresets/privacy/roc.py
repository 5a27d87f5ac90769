"""How well a score tells members of the training data from others: ROC, AUC, and power at few false positives.

An attack calls a point a member where its score is high. With members' scores a_1..a_m and others' b_1..b_n,

    AUC      = P(a > b) + P(a = b) / 2 over all pairs, the Mann-Whitney statistic over m n: one half is a coin
    TPR at f = the largest share of members above a threshold that at most the share f of the others is above
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

FALSE_POSITIVE_RATES = (0.001, 0.01)
CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054
SURE_QUANTILE = 2.576
"""Of the normal distribution, at 1 - 0.01 / 2."""
CURVE_RATES = (0.0, *np.logspace(-3, 0, 31).tolist())
"""Where the curve is drawn: evenly on a logarithmic scale, where false positives are few."""


@dataclass(frozen=True)
class Share:
    """A share of trials with its 95 % interval."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Roc:
    """What an attack's scores achieve."""

    auc: Share
    power: tuple[tuple[float, Share], ...]
    """Pairs of a false-positive rate and the true-positive rate there."""
    curve: tuple[tuple[float, float], ...]
    members: int
    others: int

    def at(self, rate: float) -> Share:
        """The true-positive rate at one of ``FALSE_POSITIVE_RATES``."""
        return dict(self.power)[rate]

    @property
    def beats_a_coin(self) -> bool:
        """Whether AUC is above one half by more than chance allows the better of two attacks in one of a hundred."""
        deviation = (self.auc.value - self.auc.low) / NORMAL_QUANTILE
        return self.auc.value - SURE_QUANTILE * deviation > 0.5

    def as_json(self) -> dict[str, Any]:
        return {
            "auc": self.auc.as_json(),
            "tpr_at": [{"fpr": rate, **share.as_json()} for rate, share in self.power],
            "curve": [list(point) for point in self.curve],
            "members": self.members,
            "others": self.others,
        }


def roc(scores: ArrayLike, inside: ArrayLike, images: ArrayLike | None = None) -> Roc:
    """The ROC of ``scores`` (k,), high for members, where ``inside`` (k,) says which are members.

    Several scores may be of one image; ``images`` (k,) then says of which. Intervals: of the AUC, DeLong's normal one,
    in which all scores of an image count as one observation; of true-positive rates, the exact binomial one for as many
    trials as there are different images among the members, the threshold taken as known.
    """
    scores, inside = np.asarray(scores, dtype=np.float64), np.asarray(inside, dtype=bool)
    groups = np.arange(len(scores)) if images is None else np.unique(np.asarray(images), return_inverse=True)[1]
    members, others = scores[inside], np.sort(scores[~inside])
    trials = len(np.unique(groups[inside]))
    power = tuple((rate, _share_of(_power(members, others, rate), trials)) for rate in FALSE_POSITIVE_RATES)
    curve = tuple((rate, _power(members, others, rate)) for rate in CURVE_RATES)
    return Roc(_auc(scores, inside, groups), power, curve, len(members), len(others))


def exact_interval(count: float, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval for a share of ``count`` in ``trials``; ``count`` need not be whole."""
    from scipy.stats import beta

    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if count <= 0 else float(beta.ppf(tail, count, trials - count + 1))
    high = 1.0 if count >= trials else float(beta.ppf(1 - tail, count + 1, trials - count))
    return low, high


def share(count: int, trials: int) -> Share:
    """``count`` of ``trials`` with its exact interval."""
    return _share_of(count / trials, trials)


def _share_of(value: float, trials: int) -> Share:
    return Share(value, *exact_interval(value * trials, trials))


def _power(members: np.ndarray, others: np.ndarray, rate: float) -> float:
    """The threshold is the largest score of the others that must stay below it; ``others`` ascend."""
    allowed = math.floor(rate * len(others) + 1e-9)
    return 1.0 if allowed >= len(others) else float((members > others[len(others) - 1 - allowed]).mean())


def _auc(scores: np.ndarray, inside: np.ndarray, groups: np.ndarray) -> Share:
    """The variance is that of sums over groups of DeLong's components V(a_i) = P(b < a_i), V(b_j) = P(a > b_j)."""
    members, others = scores[inside], scores[~inside]
    components = np.empty(len(scores))
    components[inside] = _beaten(members, others)
    components[~inside] = 1 - _beaten(others, members)
    auc = float(components[inside].mean())
    weights = np.where(inside, 1 / len(members), 1 / len(others))
    sums = np.bincount(groups, weights * (components - auc))
    deviation = math.sqrt(len(sums) / max(1, len(sums) - 1) * float(np.square(sums).sum()))
    reach = NORMAL_QUANTILE * deviation
    return Share(auc, max(0.0, auc - reach), min(1.0, auc + reach))


def _beaten(own: np.ndarray, against: np.ndarray) -> np.ndarray:
    """For each of ``own``, the share of ``against`` below it, and half of those equal to it."""
    ordered = np.sort(against)
    below, up_to = (np.searchsorted(ordered, own, side) for side in ("left", "right"))
    return (below + up_to) / (2 * len(against))
