"""Where searches for pseudo-points start: real points that say much about theta, moved to match q's moments.

Points drawn uniformly are a bad start. Most are so far from the decision boundary that their likelihood is flat, no
gradient moves them, and the directions that they should cover stay at the prior; the divergences have local minima
there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocoresets.core.gaussian import Gaussian, cholesky, kl_divergence
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.methods.lbfgs import Objective, minimise, minimise_again, points_of
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.vectors import likelihood_vectors
from pseudocoresets.methods.solver import check_size, nearest_gaussian, smooth_model
from pseudocoresets.models.expectation import Expectation, SmoothModel

POINTS_TO_CHOOSE_FROM = 500
START_NEAR = 0.5
"""Nats below which a short search for a start has not lost a direction."""
START_ENOUGH = 1e-3
"""Nats below which a start is left to the method that asked for it."""


@runtime_checkable
class GroupedModel(Protocol):
    """A model whose data belong to groups, each of which needs points of its own."""

    def group_of(self, x: Tensor) -> Tensor:
        """The group of each point, (m,)."""
        ...


def starting_points(
    problem: Problem, size: int, seed: int, learn_weights: bool = False, starts: int = 4
) -> Parameterisation:
    """Informative real points, moved to the least :func:`forward_kl_near`, as the start of a parameterisation.

    About one search in four ends where two points share a direction and another has none. The best of several short
    ones is continued, or the first that comes near.
    """
    forward = forward_kl_near(smooth_model(problem), nearest_gaussian(problem))
    best: tuple[Parameterisation, Tensor, float] | None = None
    for form in informative_points(problem, size, seed, learn_weights, starts):
        search = form, *minimise(form, form.flattened(form.initial()), forward, 100, START_ENOUGH)
        best = search if best is None or search[2] < best[2] else best
        if best[2] < START_NEAR:
            break
    assert best is not None
    form, free, _ = best
    return moved(form, minimise_again(form, free, forward, 300, 3, START_ENOUGH))


def moved(form: Parameterisation, free: Tensor) -> Parameterisation:
    """The same parameterisation, starting from the points behind a flat vector."""
    return replace(form, start=points_of(form, free).detached())


def informative_points(
    problem: Problem, size: int, seed: int, learn_weights: bool, starts: int = 1
) -> list[Parameterisation]:
    """Real points out of a uniform subsample, drawn ``starts`` times in proportion to Var_q of log p(y_i | x_i).

    Where data belong to groups, these take turns. The unit of each feature is its standard deviation in the subsample.
    """
    model, data_size = smooth_model(problem), problem.energy.data_size
    check_size(data_size, size)
    many = uniform_points(problem, min(data_size, max(2 * size, POINTS_TO_CHOOSE_FROM)), seed)
    variances = likelihood_vectors(model, nearest_gaussian(problem), many.x, many.y, seed=seed).squared_norms
    chances = variances.clamp_min(0) + 1e-9 * variances.mean() + 1e-300
    generator = generator_for(seed, "informative points", size)
    weights = torch.full((size,), data_size / size, dtype=many.x.dtype)
    groups = model.group_of(many.x) if isinstance(model, GroupedModel) else None
    draws = (draw_positions(chances, groups, size, generator) for _ in range(starts))
    chosen = (Points(many.x[drawn], many.y[drawn], weights) for drawn in draws)
    return [_parameterised(model, points, learn_weights, many.x) for points in chosen]


def draw_positions(chances: Tensor, groups: Tensor | None, size: int, generator: torch.Generator) -> Tensor:
    """``size`` positions without repetition with these chances; of groups, one of each after another."""
    if groups is None:
        return torch.multinomial(chances, size, generator=generator)
    arrivals = torch.empty_like(chances).exponential_(generator=generator) / chances
    order = arrivals.argsort()
    by_group = order[groups[order].argsort(stable=True)]
    counts = groups.bincount()
    firsts = counts.cumsum(0) - counts
    turn = torch.empty_like(order)
    turn[by_group] = torch.arange(len(order)) - firsts[groups[by_group]]
    return order[turn[order].argsort(stable=True)][:size]


def parameterised(problem: Problem, points: Points, learn_weights: bool, seed: int) -> Parameterisation:
    """How pseudo-points are learned for a smooth model, starting from ``points``.

    The unit of each feature is its standard deviation in a uniform subsample.
    """
    many = uniform_points(problem, min(problem.energy.data_size, POINTS_TO_CHOOSE_FROM), seed)
    return _parameterised(smooth_model(problem), points, learn_weights, many.x)


def _parameterised(model: SmoothModel, points: Points, learn_weights: bool, many: Tensor) -> Parameterisation:
    scale = many.std(0) if len(many) > 1 else torch.ones_like(many[0])
    return Parameterisation(
        points,
        model.pseudo_target,
        learn_weights,
        keep_total=False,
        scale=torch.where(scale > 0, scale, torch.ones_like(scale)),
        classes=model.classes,
    )


def gaussian_near(centre: Gaussian, joint: Expectation) -> Gaussian:
    """The Gaussian that a log-joint averaged over N(mu, S) implies: precision P = -E[grad^2], mean mu + P^-1 E[grad].

    At q_u this is q_u itself; elsewhere it is one step of the search for it.
    """
    covariance = torch.cholesky_inverse(cholesky(-joint.hessian, "The curvature near a Gaussian"))
    return Gaussian(centre.mean + covariance @ joint.gradient, covariance)


def coreset_near(model: SmoothModel, points: Points, centre: Gaussian) -> Gaussian:
    """:func:`gaussian_near` of a coreset's posterior, differentiable in the points and without any inner search."""
    likelihood = model.expected_log_likelihood(centre, points.x, points.y, points.weights)
    return gaussian_near(centre, likelihood + model.expected_log_prior(centre))


def forward_kl_near(model: SmoothModel, q: Gaussian) -> Objective:
    """KL(q || g_u), g_u = :func:`coreset_near` q: what ``MomentMatching`` minimises, for a fiftieth of the work."""
    return lambda points: kl_divergence(q, coreset_near(model, points, q))
