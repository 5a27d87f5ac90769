"""The full posterior by long MCMC runs: what coresets are measured against.

Mean and covariance are in closed form where there is one (a Gaussian mean, linear regression). The draws, and elsewhere
mean and covariance too, are those of NUTS on all the data, in coordinates whitened by the nearest Gaussian, with R-hat
below 1.01 checked. Modes are looked for from several starts (``regions``); of modes that chains do not pass between,
each is sampled by itself and weighs what bridge sampling says it holds. A reference is kept in a cache folder under the
fingerprint of model, data and settings.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io.files import TensorFile, naming, write_tensors
from pseudocoresets._io.schema import ANY_SIZE, FLAG, NON_NEGATIVE, Array, Object
from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import DivergenceError, FileFormatError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import AnyRows, Points, as_rows
from pseudocoresets.core.progress import Progress, by_default
from pseudocoresets.core.seeds import Randomness, derive_seed, generator_for
from pseudocoresets.core.source import Draw
from pseudocoresets.core.targets import WhitenedTarget, all_points, posterior_target, whitened_target
from pseudocoresets.kernels import NUTS, AnyKernel, sample_chains
from pseudocoresets.kernels.diagnostics import bulk_ess, mean_ess, rank_r_hat
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.functions import as_smooth
from pseudocoresets.sources.gaussian_fit import GaussianFit, fit_gaussian
from pseudocoresets.sources.regions import find_regions, log_evidence

LARGEST_R_HAT = 1.01
CACHE_VERSION = 6
"""Goes up when the same request would be answered by other draws."""
CACHE_DOCUMENT = Object(
    {
        "exact": FLAG,
        "r_hat": NON_NEGATIVE,
        "ess": NON_NEGATIVE,
        "seconds": NON_NEGATIVE,
        "seconds_per_draw": NON_NEGATIVE,
        "divergences": ANY_SIZE,
        "modes": ANY_SIZE,
    }
)
CACHE_ARRAYS = {
    "parameters": Array(["(chains, draws, size) float64"]),
    "mean": Array(["(size,) float64"]),
    "covariance": Array(["(size, size) float64"]),
}
MOST_DRAWS_FACTOR = 8
"""A reference whose chains do not agree is drawn again up to this many times longer."""
OVERDISPERSION = 2.0
"""Standard deviation of the chains' starts, in units of the nearest Gaussian's."""
LARGEST_GAP = 5.0
"""Standard errors by which two references may differ; by chance one of a million pairs of quantities does."""


@dataclass(frozen=True)
class ReferenceRun:
    """Draws of a posterior, the Gaussian that describes it, and what they cost; also a source for methods."""

    parameters: Tensor
    """(chains, draws, size)"""
    gaussian: Gaussian
    """Exact where ``exact``, otherwise mean and covariance of the draws."""
    exact: bool
    r_hat: float
    ess: float
    """The smallest effective sample size over the parameters."""
    seconds: float
    seconds_per_draw: float
    divergences: int = 0
    modes: int = 1
    """How many modes were found that chains do not pass between."""
    how: str = "NUTS draws"
    """What the draws are."""

    @property
    def draws(self) -> Tensor:
        """(draws, size), all chains together."""
        return self.parameters.flatten(0, 1)

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        """Draws of the run, picked at random; ``later`` is ``start`` for no epochs, and independent of it for any."""
        start = self._picked(count, randomness)
        return Draw(start, start if expert_epochs == 0 else self._picked(count, randomness))

    def _picked(self, count: int, randomness: Randomness) -> Tensor:
        draws, device = self.draws, randomness.device.device
        return draws[torch.randint(len(draws), (count,), generator=randomness.device, device=device)]

    def summary(self) -> dict[str, Any]:
        numbers = {"r_hat": self.r_hat, "ess": self.ess, "divergences": self.divergences, "modes": self.modes}
        times = {"seconds": self.seconds, "seconds_per_draw": self.seconds_per_draw}
        return {"exact": self.exact, "draws": len(self.draws), **numbers, **times}


def reference_posterior(
    data: AnyRows,
    model: Model,
    draws: int = 1000,
    warmup: int = 300,
    chains: int = 4,
    *,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    fit: GaussianFit | None = None,
    progress: Progress | None = None,
) -> ReferenceRun:
    """The full posterior, by NUTS with R-hat below 1.01, with all the modes that searches from draws of the prior find.

    Args:
        data: Rows, or a pair (x, y) of tensors or arrays.
        draws: Draws of each chain; up to eight times as many where the chains do not agree.
        cache: A folder in which references are kept, known by the content of model, data and settings.
        fit: The nearest Gaussian, where it is known already.
    """
    data, model = as_rows(data), as_smooth(model)
    path = None
    if cache is not None:
        identity = fingerprint(model, *data.batches(), draws, warmup, chains, seed, CACHE_VERSION)
        path = Path(cache) / f"{identity}.safetensors"
        if path.is_file():
            try:
                return _load(path)
            except FileFormatError:
                path.unlink()
    nearest = (fit or GaussianFit(model, data)).gaussian
    search = _Search(model, all_points(data), chains, seed, progress or by_default())
    regions = find_regions(model, data, nearest, seed)
    for factor in (1, 2, 4, MOST_DRAWS_FACTOR):
        found = search.joined(search.runs(regions, factor * draws, factor * warmup))
        if found is not None and found.r_hat < LARGEST_R_HAT:
            if path is not None:
                _save(path, found)
            return found
    how = f"R-hat {found.r_hat:.3f}, must be below {LARGEST_R_HAT}" if found is not None else "they mix modes"
    modes = f" of {len(regions)} modes" if len(regions) > 1 else ""
    raise DivergenceError(f"The reference chains{modes} disagree ({how}); ask for more draws.")


def sample_points(
    model: SmoothModel,
    points: Points,
    kernel: AnyKernel,
    draws: int,
    warmup: int,
    chains: int,
    seed: int,
    thin: int = 1,
    progress: Progress | None = None,
) -> ReferenceRun:
    """The posterior of weighted points with all the modes that are found, as :func:`reference_posterior` treats them.

    Where some chains pass between modes, the chains start at each of these in turn.
    """
    search = _Search(model, points, chains, seed, progress, kernel, thin)
    runs = search.runs(find_regions(model, points, fit_gaussian(model, points), seed), draws, warmup)
    found = search.joined(runs)
    if found is not None and len(found.parameters) == chains:
        return found
    return _described(runs, torch.stack([runs[chain % len(runs)].parameters[chain] for chain in range(chains)]))


@dataclass(frozen=True)
class _Search:
    """Chains on a posterior, from every region that holds a share of it."""

    model: SmoothModel
    points: Points
    chains: int
    seed: int
    progress: Progress | None
    kernel: AnyKernel = field(default_factory=NUTS)
    thin: int = 1

    def runs(self, regions: Sequence[Gaussian], draws: int, warmup: int) -> list[ReferenceRun]:
        """Chains from each of the regions."""
        spread = OVERDISPERSION if len(regions) == 1 else 1.0
        return [self._region(region, draws, warmup, spread, index) for index, region in enumerate(regions)]

    def joined(self, runs: Sequence[ReferenceRun]) -> ReferenceRun | None:
        """The only run, all chains where they pass between all modes, or else draws of the modes by their mass.

        None where some chains of a mode pass to another and some do not.
        """
        if len(runs) == 1:
            return runs[0]
        together = torch.cat([run.parameters for run in runs])
        if float(rank_r_hat(together).max()) < LARGEST_R_HAT:
            return _described(runs, together)
        if not _separate([run.draws for run in runs]):
            return None
        masses = [log_evidence(run.draws, self._log_joint, self.seed) for run in runs]
        shares = torch.tensor(masses, dtype=torch.float64).softmax(0)
        return _described(runs, self._mixed([run.draws for run in runs], shares, runs[0].parameters.shape[1]))

    def _region(self, region: Gaussian, draws: int, warmup: int, spread: float, index: int) -> ReferenceRun:
        target, seed = whitened_target(self.model, self.points, region), self.seed
        if index:
            seed = derive_seed(seed, "region", index)
        return sample_whitened(
            self.model, target, self.kernel, draws, warmup, self.chains, seed, self.thin, self.progress, spread
        )

    def _mixed(self, parts: Sequence[Tensor], shares: Tensor, draws: int) -> Tensor:
        """(chains, draws, size) picked from the modes' draws in proportion to what the modes hold."""
        generator = generator_for(self.seed, "modes")
        which = torch.multinomial(shares, self.chains * draws, replacement=True, generator=generator)
        picks = torch.rand(len(which), generator=generator, dtype=torch.float64)
        rows = [parts[mode][int(pick * len(parts[mode]))] for mode, pick in zip(which.tolist(), picks, strict=True)]
        return torch.stack(rows).unflatten(0, (self.chains, draws))

    def _log_joint(self, theta: Tensor) -> Tensor:
        target = posterior_target(self.model, self.points)
        return -torch.cat([target.potential(part) for part in theta.split(500)])


def _described(runs: Sequence[ReferenceRun], parameters: Tensor) -> ReferenceRun:
    """Several runs as one with these parameters."""
    return ReferenceRun(
        parameters,
        Gaussian.fit(parameters.flatten(0, 1)),
        False,
        max(float(rank_r_hat(parameters).max()), *(run.r_hat for run in runs)),
        float(bulk_ess(parameters).min()),
        sum(run.seconds for run in runs),
        statistics.fmean(run.seconds_per_draw for run in runs),
        sum(run.divergences for run in runs),
        len(runs),
    )


def _separate(parts: Sequence[Tensor]) -> bool:
    """Whether no draw of a mode belongs to another, by the Gaussians that describe the modes' draws."""
    fits = [Gaussian.fit(part) for part in parts]
    densities = (torch.stack([fit.log_density(part) for fit in fits]) for part in parts)
    return all(bool((density.argmax(0) == index).all()) for index, density in enumerate(densities))


def require_agreement(first: ReferenceRun, second: ReferenceRun) -> None:
    """Refuse a reference that a second one, with other starts and other random numbers, does not confirm.

    Means and variances may differ by chance, by five standard errors at most: the variance of theta and of
    (theta - mean)^2 over the chains, divided by their effective sample sizes.
    """
    centre = first.draws.mean(0)
    one, two = (torch.cat([run.parameters, (run.parameters - centre).square()], -1) for run in (first, second))
    errors = sum(each.flatten(0, 1).var(0) / torch.from_numpy(mean_ess(each)) for each in (one, two))
    gap = (one.mean((0, 1)) - two.mean((0, 1))).abs() / torch.as_tensor(errors).sqrt().clamp_min(1e-300)
    if not float(gap.max()) < LARGEST_GAP:
        raise DivergenceError(
            f"Two references that were started independently disagree by {float(gap.max()):.1f} standard errors, and "
            f"chance explains {LARGEST_GAP:g} at most: the posterior is not known; ask for more draws."
        )


def sample_whitened(
    model: SmoothModel,
    target: WhitenedTarget,
    kernel: AnyKernel,
    draws: int,
    warmup: int,
    chains: int,
    seed: int,
    thin: int = 1,
    progress: Progress | None = None,
    spread: float = OVERDISPERSION,
) -> ReferenceRun:
    """A run of ``kernel`` in whitened coordinates from overdispersed starts, and what it says about itself."""
    nearest = target.gaussian
    noise = generator_for(seed, "overdispersed starts")
    starts = spread * torch.randn(chains, nearest.size, generator=noise, dtype=torch.float64)
    began = time.perf_counter()
    run = sample_chains(kernel, target, starts, draws, warmup, derive_seed(seed, "nuts"), thin, progress)
    seconds = time.perf_counter() - began
    parameters = target.theta(run.samples.flatten(0, 1)).unflatten(0, (chains, draws))
    exact = model.has_gaussian_posterior
    return ReferenceRun(
        parameters,
        nearest if exact else Gaussian.fit(parameters.flatten(0, 1)),
        exact,
        float(rank_r_hat(run.samples).max()),
        float(bulk_ess(run.samples).min()),
        seconds,
        seconds / (chains * (draws * thin + warmup)),
        int(run.divergences.sum()),
    )


def _save(path: Path, run: ReferenceRun) -> None:
    tensors = {"parameters": run.parameters, "mean": run.gaussian.mean, "covariance": run.gaussian.covariance}
    write_tensors(path, tensors, run.summary())


def _load(path: Path) -> ReferenceRun:
    file = TensorFile.open(path)
    with naming(path):
        CACHE_DOCUMENT.check(file.document, "its metadata")
    tensors = file.tensors(CACHE_ARRAYS)
    gaussian = Gaussian(tensors["mean"], tensors["covariance"])
    return ReferenceRun(
        tensors["parameters"], gaussian, **{name: file.document[name] for name in CACHE_DOCUMENT.required}
    )
