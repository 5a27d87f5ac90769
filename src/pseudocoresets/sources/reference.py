"""The posterior that coresets are measured against, and the posteriors of coresets.

Mean and covariance are in closed form where there is one (a Gaussian mean, linear regression). The draws, and elsewhere
mean and covariance too, are those of NUTS on all the data, in coordinates whitened by the nearest Gaussian, with R-hat
below 1.01 checked. A reference is kept in a cache folder under the hash of
model, data and settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import DivergenceError, FileFormatError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.seeds import derive_seed, generator_for
from pseudocoresets.core.targets import WhitenedTarget, all_points, posterior_target, whitened_target
from pseudocoresets.methods.posterior_problem import PosteriorProblem
from pseudocoresets.models.glm import GaussianMean, LinearRegression, SmoothModel
from pseudocoresets.sources.gaussian_fit import find_mode, fit_gaussian

LARGEST_R_HAT = 1.01
CACHE_VERSION = 2
"""Goes up when the same request would be answered by other draws."""
MOST_DRAWS_FACTOR = 8
"""A reference whose chains do not agree is drawn again up to this many times longer."""


@dataclass(frozen=True)
class PosteriorSample:
    """Draws of a posterior, the Gaussian that describes it, and what they cost."""

    samples: Tensor
    """(draws, size), all chains together"""
    gaussian: Gaussian
    """Exact where ``exact``, otherwise mean and covariance of the draws."""
    exact: bool
    r_hat: float
    ess: float
    """The smallest effective sample size over the parameters."""
    seconds: float
    seconds_per_draw: float
    divergences: int = 0

    def summary(self) -> dict[str, Any]:
        numbers = {"r_hat": self.r_hat, "ess": self.ess, "divergences": self.divergences}
        times = {"seconds": self.seconds, "seconds_per_draw": self.seconds_per_draw}
        return {"exact": self.exact, "draws": len(self.samples), **numbers, **times}


@dataclass(frozen=True)
class NutsPlan:
    """How long and how wide to sample."""

    draws: int = 1000
    """Draws of each chain."""
    warmup: int = 300
    chains: int = 4


def is_gaussian(model: SmoothModel) -> bool:
    """Whether every posterior of the model is a Gaussian."""
    return isinstance(model, GaussianMean | LinearRegression)


def sample_posterior_of(
    model: SmoothModel,
    points: Points,
    plan: NutsPlan | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> PosteriorSample:
    """NUTS on the posterior of weighted points; the Gaussian is in closed form for Gaussian posteriors."""
    target = whitened_target(model, points, fit_gaussian(model, points))
    return _sample(model, target, plan or NutsPlan(), seed, progress)


def reference_posterior(
    problem: PosteriorProblem,
    plan: NutsPlan | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> PosteriorSample:
    """The full posterior, by NUTS with R-hat below 1.01; read from ``cache`` if it is there."""
    plan = plan or NutsPlan()
    path = None if cache is None else Path(cache) / f"{_content_hash(problem, plan, seed)}.safetensors"
    if path is not None and path.is_file():
        try:
            return _load(path)
        except FileFormatError:
            path.unlink()
    target = whitened_target(problem.model, all_points(problem.data), problem.approximation)
    sample = _sample(problem.model, target, plan, seed, progress)
    factor = 2
    while sample.r_hat >= LARGEST_R_HAT and factor <= MOST_DRAWS_FACTOR:
        longer = NutsPlan(factor * plan.draws, factor * plan.warmup, plan.chains)
        sample = _sample(problem.model, target, longer, seed, progress)
        factor *= 2
    if sample.r_hat >= LARGEST_R_HAT:
        raise DivergenceError(
            f"The reference chains disagree (R-hat {sample.r_hat:.3f}, must be below {LARGEST_R_HAT}); "
            "ask for more draws."
        )
    if path is not None:
        _save(path, sample)
    return sample


def _sample(
    model: SmoothModel, target: WhitenedTarget, plan: NutsPlan, seed: int, progress: Progress | None
) -> PosteriorSample:
    from pseudocoresets.kernels.diagnostics import bulk_ess, rank_r_hat
    from pseudocoresets.kernels.nuts import sample_nuts

    nearest = target.gaussian
    generator = generator_for(seed, "overdispersed starts")
    starts = 2 * torch.randn(plan.chains, nearest.size, generator=generator, dtype=torch.float64)
    began = time.perf_counter()
    run = sample_nuts(
        target,
        starts,
        plan.draws,
        plan.warmup,
        derive_seed(seed, "nuts"),
        metric="diagonal",
        progress=progress,
    )
    seconds = time.perf_counter() - began
    draws = target.theta(run.samples.reshape(-1, nearest.size))
    exact = is_gaussian(model)
    return PosteriorSample(
        draws,
        nearest if exact else Gaussian.fit(draws),
        exact,
        float(rank_r_hat(run.samples).max()),
        float(bulk_ess(run.samples).min()),
        seconds,
        seconds / (plan.chains * (plan.draws + plan.warmup)),
        int(run.divergences.sum()),
    )


def gaussian_fit(
    model: SmoothModel,
    points: Points,
    samples: int = 20000,
    seed: int = 0,
    plan: NutsPlan | None = None,
) -> tuple[Gaussian, str]:
    """Mean and covariance of a coreset's posterior, with little noise, and how they were found.

    Importance sampling from the nearest Gaussian, which for a posterior that is nearly one beats any chain; where fewer
    than a tenth of the draws count, NUTS by ``plan``.
    """
    nearest = fit_gaussian(model, points)
    if is_gaussian(model):
        return nearest, "exact"
    wide = Gaussian(nearest.mean, 1.1 * nearest.covariance)
    theta = wide.sample(samples, generator_for(seed, "importance sampling"))
    with torch.no_grad():
        joint = -torch.cat([posterior_target(model, points).potential(part) for part in theta.split(2000)])
    weights = torch.softmax(joint - wide.log_density(theta), 0)
    if float(weights.square().sum()) * samples < 10:
        return Gaussian.fit(theta, weights), "importance sampling"
    return sample_posterior_of(model, points, plan or NutsPlan(1000, 500, 4), seed).gaussian, "nuts"


def laplace_fit(model: SmoothModel, data: FullData | Points) -> Gaussian:
    """The Laplace approximation at the mode."""
    return find_mode(model, data, torch.zeros(model.size, dtype=torch.float64))


# --- the cache ------------------------------------------------------------------------------------


def _content_hash(problem: PosteriorProblem, plan: NutsPlan, seed: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(_describe(problem.model).encode())
    digest.update(json.dumps([plan.draws, plan.warmup, plan.chains, seed, CACHE_VERSION]).encode())
    for x, y in problem.data.batches():
        digest.update(x.contiguous().numpy().tobytes())
        digest.update(y.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _describe(model: SmoothModel) -> str:
    """A text that differs between models; functions count by their code, constants and what they enclose."""
    fields = getattr(model, "__dataclass_fields__", {})
    parts = [type(model).__qualname__]
    for name in sorted(fields):
        value = getattr(model, name)
        parts.append(f"{name}={_describe_value(value)}")
    return ";".join(parts)


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return hashlib.blake2b(value.contiguous().numpy().tobytes()).hexdigest()
    code = getattr(value, "__code__", None)
    if code is not None:
        enclosed = [_describe_value(cell.cell_contents) for cell in getattr(value, "__closure__", None) or ()]
        constants = [str(constant) for constant in code.co_consts if not hasattr(constant, "co_code")]
        return f"{code.co_code.hex()}{code.co_names}{constants}{enclosed}"
    return repr(value)


def _save(path: Path, sample: PosteriorSample) -> None:
    tensors = {"samples": sample.samples, "mean": sample.gaussian.mean, "covariance": sample.gaussian.covariance}
    write_tensors(path, tensors, sample.summary())


def _load(path: Path) -> PosteriorSample:
    tensors, document = read_tensors(path)
    try:
        return PosteriorSample(
            tensors["samples"],
            Gaussian(tensors["mean"], tensors["covariance"]),
            document["exact"],
            document["r_hat"],
            document["ess"],
            document["seconds"],
            document["seconds_per_draw"],
            document["divergences"],
        )
    except KeyError as error:
        raise FileFormatError(f"'{path}' is not a cached reference: {error} is missing.") from None


def finite_or_none(value: float) -> float | None:
    """For JSON, which has no infinities."""
    return value if math.isfinite(value) else None
