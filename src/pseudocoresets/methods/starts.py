"""Where searches for pseudo-points start: real points that say much about theta, moved to match q's moments.

Points drawn uniformly are a bad start. Most are so far from the decision boundary that their likelihood is flat, no
gradient moves them, and the directions that they should cover stay at the prior; the divergences have local minima
there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.methods.lbfgs import minimise, minimise_again, points_of
from pseudocoresets.methods.nearby import forward_kl_near
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.hilbert import hilbert_coreset
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.vectors import likelihood_vectors
from pseudocoresets.methods.solver import check_size, nearest_gaussian, smooth_model, yardstick_of
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import GaussianFit

POINTS_TO_CHOOSE_FROM = 500
START_NEAR = 0.5
"""Nats below which a short search for a start has not lost a direction."""
START_ENOUGH = 1e-3
"""Nats below which a start is left to the method that asked for it."""
SHARPENED_BELOW = 5.0
"""Nats above which draws of pi say too little about pi_u."""
SHARPENING_STEPS = (100, 200, 400, 800)
"""Steps of the rounds of a search: each begins without a memory of the curvature, so that many short ones get stuck."""
SHARP_ENOUGH = 2e-4
"""Nats below which no search goes on."""
WORTH_A_ROUND = 0.97
"""The share of a divergence that a round must leave at most for another one to be worth its time."""


@runtime_checkable
class GroupedModel(Protocol):
    """A model whose data belong to groups, each of which needs points of its own."""

    def group_of(self, x: Tensor) -> Tensor:
        """The group of each point, (m,)."""
        ...


def starting_points(
    problem: Problem, size: int, seed: int, learn_weights: bool = False, starts: int = 4, sharpen: bool = False
) -> Parameterisation:
    """Real points, moved to the least :func:`forward_kl_near`, as the start of a parameterisation.

    They are those of a Hilbert coreset with its weights and, where that leads nowhere, informative ones: about one
    search in four ends where two points share a direction and another has none. The best of several short searches is
    continued, or the first that comes near. ``sharpen`` goes on by :func:`sharpened`. Where that is not enough, weights
    are searched for too, whether they are learned afterwards or not: points that a Hilbert coreset gave little weight
    would be lost. A source that fits the full posterior's Gaussian keeps them for other methods.
    """
    kept: dict[Hashable, Parameterisation] = problem.source.starts if isinstance(problem.source, GaussianFit) else {}
    wanted = size, seed, learn_weights, starts, sharpen
    if wanted not in kept:
        kept[wanted] = _searched(problem, *wanted)
    return kept[wanted]


def _searched(
    problem: Problem, size: int, seed: int, learn_weights: bool, starts: int, sharpen: bool
) -> Parameterisation:
    forward = forward_kl_near(smooth_model(problem), nearest_gaussian(problem))
    best: tuple[Parameterisation, Tensor, float] | None = None
    for form in _real_starts(problem, size, seed, learn_weights, starts):
        search = form, *minimise(form, form.flattened(form.initial()), forward, 100, START_ENOUGH)
        best = search if best is None or search[2] < best[2] else best
        if best[2] < START_NEAR:
            break
    assert best is not None
    form = moved(best[0], best[1])
    if best[2] >= START_ENOUGH:
        form = replace(form, learn_weights=True)
        form = moved(form, minimise_again(form, form.flattened(form.initial()), forward, 300, 3, START_ENOUGH))
    form = moved(form, sharpened(problem, form, form.flattened(form.initial()))) if sharpen else form
    return replace(form, learn_weights=learn_weights)


def _real_starts(
    problem: Problem, size: int, seed: int, learn_weights: bool, starts: int
) -> Iterator[Parameterisation]:
    check_size(problem.energy.data_size, size)
    with contextlib.suppress(DivergenceError):
        chosen = hilbert_coreset(problem, size, seed)
        yield parameterised(problem, split_to(chosen, size), learn_weights, seed)
    yield from informative_points(problem, size, seed, learn_weights, starts)


def split_to(points: Points, size: int) -> Points:
    """``size`` points with the same posterior: the heaviest is split into two of half the weight, again and again."""
    positions, weights = list(range(len(points))), points.weights.tolist()
    while len(positions) < size:
        heaviest = max(range(len(weights)), key=weights.__getitem__)
        weights[heaviest] /= 2
        positions.append(positions[heaviest])
        weights.append(weights[heaviest])
    order = torch.tensor(positions)
    return Points(points.x[order], points.y[order], torch.tensor(weights, dtype=points.weights.dtype))


def sharpened(problem: Problem, form: Parameterisation, free: Tensor) -> Tensor:
    """Go on to the least KL(pi || pi_u) over weighted draws of pi (``Yardstick.near``), where pi_u is near pi.

    A Gaussian fit cannot see the shape of a posterior that is none. Rounds of L-BFGS go on while other draws than those
    that they use find the divergence lower.
    """
    yardstick = yardstick_of(problem)
    draws = yardstick.learning
    if draws is None or yardstick.judging is None:
        return free
    best = yardstick.divergence(points_of(form, free))
    if best > SHARPENED_BELOW:
        return free
    for steps in SHARPENING_STEPS:
        proposal, _ = minimise(form, free, lambda points: yardstick.near(points, draws), steps, SHARP_ENOUGH)
        there = yardstick.divergence(points_of(form, proposal))
        if not SHARP_ENOUGH < there < WORTH_A_ROUND * best:
            return proposal if there < best else free
        free, best = proposal, there
    return free


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
