"""One number that makes an average of chains as sure as it is right.

Chains that are calibrated one by one and disagree have an average that is less sure than it is right. Temperature
scaling raises the averaged probabilities p to a power and normalises,

    p_s[c] = p[c]^s / sum_d p[d]^s,        s = argmin over s of mean_i -log p_s,i[y_i]

on images that have nothing to do with the test data. The negative log-likelihood is convex in s, its slope

    mean_i (sum_c p_s,i[c] log p_i[c] - log p_i[y_i])

grows with s, and s is where it is zero. The average of the probabilities is scaled, not that of their logarithms: the
most probable class, and so the accuracy, stays that of the Bayesian model average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Split
from pseudocoresets.evaluation.metrics import SMALLEST_PROBABILITY, Reliability, pooled_reliability, reliability
from pseudocoresets.evaluation.scores import Scores, Summary, mean_ensemble, pooled_summary
from pseudocoresets.inference.samples import PosteriorSamples

CALIBRATION_IMAGES = 5000
PRIVATE_CALIBRATION = (
    "Calibration would read the private images once more, which the coreset's guarantee of differential privacy does "
    "not cover; leave it out."
)
LARGEST_EXPONENT = 100.0
"""The scalar is looked for from its inverse to it; predictions that are all right have no finite one."""


@dataclass(frozen=True)
class Exponents:
    """The power for the average over all chains, those for single chains, and how many images chose each."""

    together: float
    chains: tuple[float, ...]
    images: int


@dataclass(frozen=True)
class Calibrated:
    """What is found once the average over all chains, and each chain, is raised to its own power."""

    scores: Scores
    reliability: Reliability
    """Of the average over all chains."""
    exponent: Summary
    """Of the average over all chains; several values where several evaluations are taken together."""
    chain_exponent: Summary
    images: int
    """How many chose each exponent."""

    def as_json(self) -> dict[str, Any]:
        return self.scores.as_json() | {
            "reliability": self.reliability.as_json(),
            "exponent": self.exponent.as_json(),
            "chain_exponent": self.chain_exponent.as_json(),
            "images": self.images,
        }


def sharpened(probabilities: Tensor, exponent: float) -> Tensor:
    """p^s / sum_c p[c]^s of probabilities (..., classes), in double precision."""
    return (exponent * _logarithms(probabilities)).softmax(-1)


def fitted_exponent(probabilities: Tensor, labels: Tensor) -> float:
    """The s of the smallest negative log-likelihood of ``labels`` (n,) under probabilities (n, classes) to the s."""
    from scipy.optimize import brentq

    logs = _logarithms(probabilities)
    observed = logs.gather(-1, labels.to(logs.device)[:, None]).mean()

    def slope(exponent: float) -> float:
        return float(((exponent * logs).softmax(-1) * logs).sum(-1).mean() - observed)

    low, high = 1 / LARGEST_EXPONENT, LARGEST_EXPONENT
    if slope(high) <= 0:
        return high
    return low if slope(low) >= 0 else float(brentq(slope, low, high))


def fitted_exponents(samples: PosteriorSamples, split: Split) -> Exponents:
    """Of what the samples predict for the images of ``split``."""
    chains = samples.predict(split.images).mean(1)
    own = tuple(fitted_exponent(chain, split.labels) for chain in chains)
    return Exponents(fitted_exponent(chains.mean(0), split.labels), own, len(split))


def calibrated(probabilities: Tensor, labels: Tensor, exponents: Exponents) -> Calibrated:
    """The scores of probabilities (chains, samples, n, classes) once they are calibrated."""
    labels = labels.to(probabilities.device)
    chains = [sharpened(chain, power) for chain, power in zip(probabilities.mean(1), exponents.chains, strict=True)]
    together = sharpened(probabilities.flatten(0, 1).mean(0), exponents.together)
    return Calibrated(
        Scores.of(chains, together, labels),
        reliability(together, labels),
        Summary((exponents.together,)),
        Summary(exponents.chains),
        exponents.images,
    )


def pooled_calibrated(parts: Sequence[Calibrated]) -> Calibrated | None:
    """Several evaluations as one; None of none."""
    if not parts:
        return None
    names = parts[0].scores.chains
    chains = {name: pooled_summary([part.scores.chains[name] for part in parts]) for name in names}
    return Calibrated(
        Scores(chains, mean_ensemble([part.scores.ensemble for part in parts])),
        pooled_reliability([part.reliability for part in parts]),
        pooled_summary([part.exponent for part in parts]),
        pooled_summary([part.chain_exponent for part in parts]),
        parts[0].images,
    )


def calibration_split(samples: PosteriorSamples, given: Split, judged: Split, images: int) -> Split:
    """At most so many random images of ``given``, none of which the samples' own coreset holds."""
    if not isinstance(given, Split):
        raise InputError("Say on which images to calibrate: calibration=data.train.")
    if images < 1 or len(given) == 0:
        raise InputError("Calibration needs at least one image.")
    if given.images.shape[1:] != judged.images.shape[1:]:
        raise InputError(
            f"The images to calibrate on are of the shape {tuple(given.images.shape[1:])} and those to be judged of "
            f"{tuple(judged.images.shape[1:])}; give images of the same data set."
        )
    if torch.equal(given.images, judged.images):
        raise InputError("Calibrate on other images than those that are judged: calibration=data.train.")
    training = given.dataset is not None and given is given.dataset.train
    if training:
        require_unseen_by_starts(samples.protocol)
    coreset = samples.coreset
    if coreset is not None and coreset.guarantee is not None and (given.dataset is None or not given.dataset.guarantee):
        raise InputError(PRIVATE_CALIBRATION)
    order = torch.randperm(len(given), generator=generator_for(0, "calibration"))
    if training and coreset is not None and coreset.indices is not None:
        order = order[~torch.isin(order, coreset.indices.cpu())]
    return given.subset(order[:images].sort().values)


def require_unseen_by_starts(protocol: str) -> None:
    """Refuse training images where chains start from networks that were trained on them."""
    if protocol == "expert":
        raise InputError(
            "Chains of the protocol 'expert' start from networks that have seen the training images, which say "
            "nothing then about how sure predictions should be; leave calibration out."
        )


def _logarithms(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(SMALLEST_PROBABILITY).log()
