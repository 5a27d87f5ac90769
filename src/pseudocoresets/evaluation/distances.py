"""How far a coreset's posterior is from the full one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from pseudocoresets._io.documents import finite
from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import AnyRows, FullData, as_rows
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import full_log_likelihoods, log_likelihoods
from pseudocoresets.inference.corrected import corrected
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.sources.regions import log_evidence
from pseudocoresets.sources.yardstick import near_divergence

LARGEST_WORK, FEWEST_WITH_DENSITIES = 20_000_000, 200
"""Log-likelihoods of all the data that are evaluated for one set of draws, and draws that are worth it."""
SAMPLES_COMPARED = 1000
"""Draws of each posterior that enter the distances between samples, evenly spaced."""


@dataclass(frozen=True)
class Distances:
    """Distances between two posteriors, the full one first."""

    kl_full_coreset: float
    """KL(full || coreset), between Gaussian fits unless both posteriors are Gaussian."""
    kl_coreset_full: float
    mean_error: float
    """|mean - mean_full| / |mean_full|"""
    deviation_error: float
    """|sd - sd_full| / |sd_full| over the parameters' standard deviations"""
    mmd: float
    """Maximum mean discrepancy, Gaussian kernel, in units of the full posterior"""
    sliced_wasserstein: float
    """Mean W2 over random directions, in units of the full posterior's standard deviation there"""
    held_out_log_likelihood: float | None = None
    """Mean log predictive density of held-out data under the coreset's posterior"""
    gaussian_fit: bool = True
    """Whether the two KL divergences rest on Gaussian fits."""
    kl_by_draws: float | None = None
    """KL(full || coreset) without Gaussian fits, by draws of both posteriors and their densities"""
    pareto_k: float | None = None
    """Shape of the tail of the importance ratios full / coreset at the coreset's draws, which needs no reference; above
    0.7 the coreset's posterior is too far away to be corrected"""

    @property
    def kl(self) -> float:
        """KL(full || coreset) by draws, or between Gaussian fits where that is all there is."""
        return self.kl_full_coreset if self.kl_by_draws is None else self.kl_by_draws

    def disagreement(self, noise: float = 0.0) -> str | None:
        """In plain words, that the divergence of Gaussian fits is not that of the posteriors, if so.

        ``noise`` is what fits to other draws of the same posterior differ by, such as those of two references.
        """
        if not self.gaussian_fit or self.kl_by_draws is None:
            return None
        gap, larger = abs(self.kl_by_draws - self.kl_full_coreset) - noise, max(self.kl_by_draws, self.kl_full_coreset)
        if gap > 0.1 and gap > 0.5 * larger:
            return (
                f"KL is {self.kl_full_coreset:.3g} between Gaussian fits and {self.kl_by_draws:.3g} by draws: "
                "the posteriors are no Gaussians, trust the latter"
            )
        if self.pareto_k is not None and self.pareto_k > 1 and larger < 0.1:
            return f"KL is {larger:.3g}, but Pareto k {self.pareto_k:.2f}: the coreset's posterior lacks a tail"
        return None

    def as_json(self) -> dict[str, Any]:
        """The fields, with ``None`` for what is not finite, which JSON does not know."""
        fields: dict[str, Any] = finite(asdict(self))
        return fields

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Distances:
        """What :meth:`as_json` gave; a number that was not finite and must be there is not a number."""
        required = {each.name for each in fields(cls) if each.default is MISSING}
        found: dict[str, Any] = dict(document)
        found.update({name: math.nan for name in required if found[name] is None})
        return cls(**found)


@runtime_checkable
class DescribedPosterior(Protocol):
    """Draws of a posterior and the Gaussian that describes it: ``PosteriorSamples``, ``ReferenceRun``."""

    @property
    def draws(self) -> Tensor:
        """(draws, size)"""
        ...

    @property
    def gaussian(self) -> Gaussian: ...

    @property
    def exact(self) -> bool:
        """Whether ``gaussian`` is the posterior itself."""
        ...


Posterior: TypeAlias = DescribedPosterior | Gaussian | Tensor


def distance(
    samples: Posterior,
    reference: Posterior,
    model: Model | None = None,
    held_out: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    data: AnyRows | None = None,
) -> Distances:
    """All distances at once; samples are compared in coordinates in which the full posterior is about N(0, I).

    Args:
        samples: The coreset's posterior: samples, draws (draws, size), or a Gaussian.
        reference: The full posterior, likewise.
        model: With ``held_out`` data (x, y), for the predictive density.
        data: The full data, for what needs densities: KL by draws and Pareto's k, of samples of a coreset of rows.
    """
    full, coreset = _described(reference, seed), _described(samples, seed)
    first, second = full.gaussian, coreset.gaussian
    if first.size != second.size:
        raise InputError(f"These posteriors are of {second.size} and {first.size} parameters; compare like with like.")
    full_draws, draws = (first.whitened(thin(each.draws)) for each in (full, coreset))
    predictive = None
    if model is not None and held_out is not None:
        predictive = log_predictive(model, thin(coreset.draws), *held_out)
    return Distances(
        float(kl_divergence(first, second)),
        float(kl_divergence(second, first)),
        float((second.mean - first.mean).norm() / first.mean.norm()),
        float((second.standard_deviation - first.standard_deviation).norm() / first.standard_deviation.norm()),
        maximum_mean_discrepancy(full_draws, draws),
        sliced_wasserstein(full_draws, draws, seed=seed),
        predictive,
        not (full.exact and coreset.exact),
        *(_by_densities(samples, full, as_rows(data), seed) if data is not None else ()),
    )


def _by_densities(samples: Posterior, full: DescribedPosterior, data: FullData, seed: int) -> tuple[float, float]:
    """KL(full || coreset) by draws, and Pareto's k.

    E_pi[l - l_u] + log Z_u - log Z, with both evidences by bridge sampling, or by draws of pi alone where that is
    better (:func:`near_divergence`); exact where all is Gaussian.
    """
    if not isinstance(samples, PosteriorSamples) or samples.coreset is None:
        raise InputError("KL by draws needs samples of a coreset of rows; draw them with sample_posterior.")
    model, points = samples.model, samples.coreset.points
    count = max(FEWEST_WITH_DENSITIES, min(SAMPLES_COMPARED, LARGEST_WORK // len(data)))
    k = corrected(thin(samples.draws, count), model, points, data).k
    if full.exact and samples.exact:
        return float(kl_divergence(full.gaussian, samples.gaussian)), k
    draws = thin(full.draws, count)
    with torch.no_grad():
        gap = full_log_likelihoods(model, draws, data) - log_likelihoods(model, draws, points)
    near = near_divergence(torch.full_like(gap, -math.log(len(gap))), gap)
    if near is not None:
        return near, k
    evidences = (
        log_evidence(draws, lambda theta: full_log_likelihoods(model, theta, data) + model.log_prior(theta), seed),
        log_evidence(samples.draws, lambda theta: log_likelihoods(model, theta, points) + model.log_prior(theta), seed),
    )
    return float(gap.mean()) + evidences[1] - evidences[0], k


class _Described(NamedTuple):
    draws: Tensor
    gaussian: Gaussian
    exact: bool


def _described(posterior: Posterior, seed: int) -> DescribedPosterior:
    if isinstance(posterior, Gaussian):
        return _Described(posterior.sample(SAMPLES_COMPARED, generator_for(seed, "gaussian")), posterior, True)
    if isinstance(posterior, Tensor):
        if posterior.ndim != 2 or len(posterior) < 2:
            raise InputError(f"Draws must be (draws, size), at least two; got {tuple(posterior.shape)}.")
        return _Described(posterior.double(), Gaussian.fit(posterior.double()), False)
    return posterior


def maximum_mean_discrepancy(first: Tensor, second: Tensor) -> float:
    """sqrt(max(0, unbiased MMD^2)) with k(a, b) = exp(-|a - b|^2 / (2 size)), for samples (draws, size).

    MMD^2 = mean_{i != j} k(a_i, a_j) + mean_{i != j} k(b_i, b_j) - 2 mean_{ij} k(a_i, b_j). The scale suits samples of
    about unit variance, whose squared distances are near 2 size.
    """
    scale = 2.0 * first.shape[1]
    within = sum(_mean_off_diagonal(torch.exp(-_squared_distances(one, one) / scale)) for one in (first, second))
    across = float(torch.exp(-_squared_distances(first, second) / scale).mean())
    return float(max(0.0, within - 2 * across)) ** 0.5


def sliced_wasserstein(first: Tensor, second: Tensor, directions: int = 200, seed: int = 0) -> float:
    """Root mean square over random unit directions of W2 between the projected samples."""
    generator = generator_for(seed, "directions")
    angles = torch.randn(first.shape[1], directions, generator=generator, dtype=first.dtype)
    angles = angles / angles.norm(dim=0)
    count = min(len(first), len(second))
    grid = (torch.arange(count, dtype=first.dtype) + 0.5) / count
    one, two = (torch.quantile(sample @ angles, grid, dim=0) for sample in (first, second))
    return float((one - two).square().mean().sqrt())


def log_predictive(model: Model, samples: Tensor, x: Tensor, y: Tensor) -> float:
    """mean_i log mean_s p(y_i | x_i, theta_s)"""
    with torch.no_grad():
        values = torch.cat([model.log_likelihood(part, x, y) for part in samples.split(100)])
    return float((torch.logsumexp(values, 0) - torch.log(torch.tensor(float(len(samples))))).mean())


def thin(samples: Tensor, count: int = SAMPLES_COMPARED) -> Tensor:
    """``count`` evenly spaced draws, or all if there are fewer."""
    if len(samples) <= count:
        return samples
    return samples[torch.linspace(0, len(samples) - 1, count).round().long()]


def _squared_distances(first: Tensor, second: Tensor) -> Tensor:
    products = first @ second.T
    return (first.square().sum(1)[:, None] + second.square().sum(1) - 2 * products).clamp_min(0)


def _mean_off_diagonal(kernel: Tensor) -> float:
    count = len(kernel)
    return float((kernel.sum() - kernel.diagonal().sum()) / (count * (count - 1)))
