"""The full posterior by long MCMC runs: what coresets are measured against.

Mean and covariance are in closed form where there is one (a Gaussian mean, linear regression). The draws, and elsewhere
mean and covariance too, are those of NUTS on all the data, in coordinates whitened by the nearest Gaussian, with R-hat
below 1.01 checked. A reference is kept in a cache folder under the fingerprint of model, data and settings.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
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
from pseudocoresets.core.points import AnyRows, as_rows
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.seeds import Randomness, derive_seed, generator_for
from pseudocoresets.core.source import Draw
from pseudocoresets.core.targets import WhitenedTarget, all_points, whitened_target
from pseudocoresets.kernels import NUTS, AnyKernel, sample_chains
from pseudocoresets.kernels.diagnostics import bulk_ess, rank_r_hat
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.functions import as_smooth
from pseudocoresets.sources.gaussian_fit import GaussianFit

LARGEST_R_HAT = 1.01
CACHE_VERSION = 3
"""Goes up when the same request would be answered by other draws."""
CACHE_DOCUMENT = Object(
    {
        "exact": FLAG,
        "r_hat": NON_NEGATIVE,
        "ess": NON_NEGATIVE,
        "seconds": NON_NEGATIVE,
        "seconds_per_draw": NON_NEGATIVE,
        "divergences": ANY_SIZE,
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
        numbers = {"r_hat": self.r_hat, "ess": self.ess, "divergences": self.divergences}
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
    """The full posterior, by NUTS with R-hat below 1.01.

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
    target = whitened_target(model, all_points(data), nearest)
    factor = 1
    while True:
        found = sample_whitened(model, target, NUTS(), factor * draws, factor * warmup, chains, seed, progress=progress)
        if found.r_hat < LARGEST_R_HAT or factor == MOST_DRAWS_FACTOR:
            break
        factor *= 2
    if not found.r_hat < LARGEST_R_HAT:
        raise DivergenceError(
            f"The reference chains disagree (R-hat {found.r_hat:.3f}, must be below {LARGEST_R_HAT}); "
            "ask for more draws."
        )
    if path is not None:
        _save(path, found)
    return found


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
) -> ReferenceRun:
    """A run of ``kernel`` in whitened coordinates from overdispersed starts, and what it says about itself."""
    nearest = target.gaussian
    noise = generator_for(seed, "overdispersed starts")
    starts = OVERDISPERSION * torch.randn(chains, nearest.size, generator=noise, dtype=torch.float64)
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
    names = ("exact", "r_hat", "ess", "seconds", "seconds_per_draw", "divergences")
    return ReferenceRun(tensors["parameters"], gaussian, *(file.document[name] for name in names))
