"""Do the chains agree? Split R-hat and effective sample size over chains (Vehtari et al. 2021).

For N draws of one quantity in each of M chains, after each chain was split into halves,

    W = mean over chains of the variance within,   B = N * variance of the chains' means
    R-hat = sqrt((N - 1) / N + B / (N W))

is near 1 when all halves sample one distribution and larger when they do not. The rank-normalised R-hat
replaces the draws by the normal scores of their ranks, z = Phi^-1((rank - 3/8) / (S + 1/4)) with S the
number of all draws, so that heavy tails do no harm, and takes the larger of the values for the draws and
for |draws - median|, so that chains of equal mean and unequal spread are found too.

The bulk effective sample size is S / tau on the normal scores, with tau = 1 + 2 sum_t rho_t, the
autocorrelations rho_t pooled over chains as 1 - (W - mean autocovariance_t) / V, V = (N - 1) / N W + B / N,
and the sum cut by Geyer's initial monotone sequence: sums of neighbouring pairs of rho, up to the first
negative one, made non-increasing.

The parameters of a network can be permuted without changing the network, so chains are compared in function
space: by the probabilities that they predict.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pseudocoresets._io.documents import finite
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.targets import Array

R_HAT_THRESHOLD = 1.1
"""Above this a quantity counts as one on which the chains disagree."""
TOLERATED_SHARE = 0.05
"""More than this share of quantities above the threshold is a warning; chance alone puts a few of many there."""
SMALLEST_SPREAD = 1e-3
"""Predicted probabilities that vary less than this (standard deviation over all draws) are not compared."""
FEWEST_DRAWS = 4
"""Splitting a chain and taking variances needs this many draws."""


@dataclass(frozen=True)
class Diagnostics:
    """A summary of R-hat and effective sample size over ``quantities`` quantities; not a number if unknown."""

    r_hat_max: float
    r_hat_median: float
    ess_min: float
    ess_median: float
    share_above: float
    """Share of the quantities with R-hat above the threshold."""
    quantities: int
    chains: int
    draws: int
    warning: str | None
    """In plain words what is wrong, if anything is."""

    def as_json(self) -> dict[str, Any]:
        """The fields, with ``None`` for what is not finite."""
        fields: dict[str, Any] = finite(asdict(self))
        return fields


def split_r_hat(draws: Tensor | Array) -> Array:
    """Plain split R-hat of draws (chains, draws, quantities): one value for each quantity."""
    return _r_hat(_split(_checked(draws)))


def rank_r_hat(draws: Tensor | Array) -> Array:
    """Rank-normalised split R-hat of draws (chains, draws, quantities): the larger of bulk and tail."""
    halves = _split(_checked(draws))
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(_r_hat(_normal_scores(halves)), _r_hat(_normal_scores(folded)))


def bulk_ess(draws: Tensor | Array) -> Array:
    """Bulk effective sample size of draws (chains, draws, quantities): one value for each quantity."""
    return _ess(_normal_scores(_split(_checked(draws))))


def mean_ess(draws: Tensor | Array) -> Array:
    """Effective sample size for the mean, without rank normalisation: the variance of the mean is var / ess."""
    return _ess(_split(_checked(draws)))


def function_space_diagnostics(probabilities: Tensor | Array, points: int = 200) -> Diagnostics:
    """Compare chains by their predicted probabilities (chains, draws, points, classes).

    At most ``points`` points are used, evenly spaced, so that the choice is the same for every run on the
    same data.
    """
    values = _as_array(probabilities)
    if values.ndim != 4:
        raise InputError(f"Probabilities must be (chains, draws, points, classes); got {values.shape}.")
    chosen = np.unique(np.linspace(0, values.shape[2] - 1, min(points, values.shape[2])).round().astype(int))
    return diagnose(values[:, :, chosen].reshape(*values.shape[:2], -1), SMALLEST_SPREAD)


def diagnose(draws: Tensor | Array, smallest_spread: float = 0.0) -> Diagnostics:
    """Summarise R-hat and ESS of draws (chains, draws, quantities), leaving out quantities that hardly vary."""
    values = _as_array(draws)
    if values.ndim != 3:
        raise InputError(f"Draws must be (chains, draws, quantities); got {values.shape}.")
    chains, count, _ = values.shape
    if count < FEWEST_DRAWS:
        warning = (
            f"With {count} draw{'s' * (count != 1)} per chain nothing can be said about whether the chains agree; "
            f"keep at least {FEWEST_DRAWS}."
        )
        return _unknown(chains, count, warning)
    varying = values[:, :, values.std((0, 1)) > smallest_spread]
    if not varying.shape[-1]:
        return _unknown(chains, count, None)
    r_hat, ess = rank_r_hat(varying), bulk_ess(varying)
    share = float((r_hat > R_HAT_THRESHOLD).mean())
    return Diagnostics(
        float(r_hat.max()),
        float(np.median(r_hat)),
        float(ess.min()),
        float(np.median(ess)),
        share,
        varying.shape[-1],
        chains,
        count,
        _disagreement(share, r_hat, chains) if share > TOLERATED_SHARE else None,
    )


def _disagreement(share: float, r_hat: Array, chains: int) -> str:
    who = "The chains disagree" if chains > 1 else "The chain still drifts"
    return (
        f"{who}: R-hat exceeds {R_HAT_THRESHOLD} for {share:.0%} of {r_hat.size} predicted quantities "
        f"(median {np.median(r_hat):.2f}, largest {r_hat.max():.2f}; 1 is agreement). "
        "Averages over them do not describe one posterior: run longer, or read them as an ensemble."
    )


def _unknown(chains: int, draws: int, warning: str | None) -> Diagnostics:
    return Diagnostics(math.nan, math.nan, math.nan, math.nan, math.nan, 0, chains, draws, warning)


def _as_array(draws: Tensor | Array) -> Array:
    if isinstance(draws, Tensor):
        draws = draws.detach().cpu().numpy()
    return np.asarray(draws, dtype=np.float64)


def _checked(draws: Tensor | Array) -> Array:
    values = _as_array(draws)
    if values.ndim != 3 or values.shape[1] < FEWEST_DRAWS:
        raise InputError(
            f"R-hat and ESS need (chains, draws, quantities) with at least {FEWEST_DRAWS} draws; got {values.shape}."
        )
    return values


def _split(values: Array) -> Array:
    """Both halves of each chain as chains; the middle draw of an odd number is left out."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def _normal_scores(values: Array) -> Array:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    flat = values.reshape(-1, values.shape[-1])
    scores: Array = ndtri((rankdata(flat, axis=0) - 0.375) / (len(flat) + 0.25))
    return scores.reshape(values.shape)


@np.errstate(divide="ignore", invalid="ignore")
def _r_hat(values: Array) -> Array:
    count = values.shape[1]
    within = values.var(1, ddof=1).mean(0)
    between = count * values.mean(1).var(0, ddof=1)
    r_hat: Array = np.sqrt((count - 1 + between / within) / count)
    return r_hat


@np.errstate(divide="ignore", invalid="ignore")
def _ess(values: Array) -> Array:
    chains, count, _ = values.shape
    autocovariance = _autocovariance(values).mean(0)
    within = autocovariance[0] * count / (count - 1)
    total = autocovariance[0] + values.mean(1).var(0, ddof=1)
    rho = 1 - (within - autocovariance) / total
    rho[0] = 1.0
    tau = np.maximum(_autocorrelation_time(rho), 1 / math.log10(chains * count))
    ess: Array = chains * count / tau
    return ess


def _autocovariance(values: Array) -> Array:
    """sum_i (x_i - mean)(x_{i+t} - mean) / N for each lag t, by the Fourier transform."""
    from scipy.fft import next_fast_len

    count = values.shape[1]
    length = next_fast_len(2 * count)
    spectrum = np.fft.rfft(values - values.mean(1, keepdims=True), length, axis=1)
    covariance: Array = np.fft.irfft(np.abs(spectrum) ** 2, length, axis=1)[:, :count] / count
    return covariance


def _autocorrelation_time(rho: Array) -> Array:
    """tau by Geyer's initial monotone sequence; ``rho`` is (lags, quantities).

    The even term of the first negative pair, or of the last pair where none is negative, is counted once if
    positive. The last lag is not used: too few products estimate it.
    """
    last = max(0, (len(rho) - 3) // 2)
    pairs = rho[0 : 2 * last : 2] + rho[1 : 2 * last : 2]
    ends = np.vstack([pairs < 0, np.ones_like(rho[:1], dtype=bool)]).argmax(0)
    counted = np.arange(last)[:, None] < ends
    total = np.where(counted, np.minimum.accumulate(pairs), 0.0).sum(0)
    even = rho[2 * ends, np.arange(rho.shape[1])]
    tau: Array = -1 + 2 * total + np.maximum(even, 0.0)
    return tau
