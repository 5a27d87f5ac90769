"""Where the mass of a posterior lies: its modes, looked for from several starts, and how much each of them holds.

A chain that starts near one mode of several never tells of the others, and neither do four of them. So the mode is
searched for from draws of the prior (of the Gaussian that its curvature at the origin implies) as well, in pairs of
which one is the other's mirror image: of two modes that differ by the names of their components, these lead to both.
There are eight searches for every mode that is found. Modes that Laplace's approximation gives less than e^-10 of the
mass are forgotten.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import (
    expected_log_joint,
    find_mode,
    fit_gaussian,
    nearly_a_point,
    prior_gaussian,
)

SEARCHES_PER_MODE = 8
SEARCH_STEPS, SEARCH_TOLERANCE = 50, 1e-4
LARGEST_SEARCHED = 20_000_000
"""Data times parameters times searches for a mode."""
SAME_MODE = 9.0
"""Squared distance, in units of a mode's own covariance, below which two modes are one."""
SMALLEST_LOG_SHARE = -10.0


def find_regions(model: SmoothModel, data: FullData | Points, known: Gaussian, seed: int) -> list[Gaussian]:
    """A Gaussian for each mode that holds a share of the mass, ``known`` standing for its own."""
    if model.has_gaussian_posterior:
        return [known]
    found = [(known, _log_mass(model, data, known))]
    affordable = max(1, LARGEST_SEARCHED // (len(data) * model.size))
    for searches, start in enumerate(itertools.islice(_mirrored_draws(model, seed), affordable)):
        if searches == SEARCHES_PER_MODE * len(found):
            break
        try:
            mode = find_mode(model, data, start, SEARCH_STEPS, SEARCH_TOLERANCE)
        except DivergenceError:
            continue
        if all(_apart(mode, other) for other, _ in found):
            found.append((mode, _log_mass(model, data, mode)))
    most = max(mass for _, mass in found)
    kept = [mode for mode, mass in found if mass - most > SMALLEST_LOG_SHARE]
    return [mode if mode is known else _nearest(model, data, mode) for mode in kept]


def log_evidence(draws: Tensor, log_joint: Callable[[Tensor], Tensor], seed: int = 0) -> float:
    """log of the integral of exp(log_joint) from draws (draws, size) of it, by bridge sampling (Meng & Wong 1996).

    g is a Gaussian with the moments of half of the draws. With l = p / g, the N_1 other draws theta of p and N_2 draws
    phi of g, s_i = N_i / (N_1 + N_2), the evidence is the fixed point of

        Z <- mean_phi[l / (s_1 l + s_2 Z)] / mean_theta[1 / (s_1 l + s_2 Z)]
    """
    proposal, own = Gaussian.fit(draws[::2]), draws[1::2]
    others = proposal.sample(len(own), generator_for(seed, "bridge"))
    with torch.no_grad():
        first, second = (log_joint(theta) - proposal.log_density(theta) for theta in (own, others))
    value, half = first.median(), math.log(0.5)
    for _ in range(1000):
        top = torch.logsumexp(second - torch.logaddexp(half + second, half + value), 0)
        bottom = torch.logsumexp(-torch.logaddexp(half + first, half + value), 0)
        value, before = top - bottom, value
        if abs(float(value - before)) < 1e-9:
            break
    return float(value)


def _mirrored_draws(model: SmoothModel, seed: int) -> Iterator[Tensor]:
    """Draws of the prior without end, each followed by its mirror image."""
    standard = Gaussian(torch.zeros(model.size, dtype=torch.float64), torch.eye(model.size, dtype=torch.float64))
    wide, generator = prior_gaussian(model) or standard, generator_for(seed, "searches for modes")
    while True:
        (draw,) = wide.sample(1, generator)
        yield draw
        yield 2 * wide.mean - draw


def _log_mass(model: SmoothModel, data: FullData | Points, mode: Gaussian) -> float:
    """Laplace's approximation of the log-evidence, up to a constant: log p(y, theta) + log det(S) / 2."""
    joint = expected_log_joint(model, nearly_a_point(mode.mean), data)
    return float(joint.value + mode.factor.diagonal().log().sum())


def _apart(first: Gaussian, second: Gaussian) -> bool:
    return all(
        float(near.whitened(far.mean[None]).square().sum()) > SAME_MODE
        for near, far in ((first, second), (second, first))
    )


def _nearest(model: SmoothModel, data: FullData | Points, mode: Gaussian) -> Gaussian:
    try:
        return fit_gaussian(model, data, mode)
    except DivergenceError:
        return mode
