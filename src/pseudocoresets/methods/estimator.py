"""What several methods share: the coreset's descent, energies of many parameter sets, and gradients found piecewise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.gradients.learned import detached_leaves, learned_tensors, with_gradient
from pseudocoresets.kernels import Langevin
from pseudocoresets.methods.method import Loss
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, Shape, build_network


def descend(
    points: Points, problem: Problem, start: Tensor, steps: int, step_size: float, randomness: Randomness
) -> Tensor:
    """theta <- theta - eta grad U(theta), ``steps`` times, each under its own augmentation; no graph.

    It is the Langevin kernel at temperature zero: the coreset's gradient descent, which finds a mode near ``start``.
    """
    if steps == 0:
        return start
    return problem.run_chain(Langevin(step_size=step_size), start, points, steps, randomness, noisy=False)


def gaussian_samples(
    points: Points, problem: Problem, centres: Tensor, count: int, sigma: float, randomness: Randomness
) -> Tensor:
    """``count`` samples of N(centre, sigma^2 I) for each of the centres (chains, size), as (chains * count, size)."""
    return problem.perturbed(centres.repeat_interleave(count, 0), sigma, points, randomness)


def phase_difference(
    points: Points, problem: Problem, positive: Tensor, negative: Tensor, randomness: Randomness
) -> Loss:
    """mean_j E(x, theta+_j) - mean_j E(x, theta-_j), per datum, both under the same augmentation of x."""
    x = problem.transformation(len(points.x), randomness)(points.x)
    energies = problem.energies(torch.cat([positive, negative]).detach(), x, points)
    up, down = energies[: len(positive)].mean(), energies[len(positive) :].mean()
    terms = {"positive": up.detach(), "negative": down.detach()}
    return Loss(up - down, terms, energies=tuple(terms))


def repeated_loss(
    key: Hashable,
    loss: Callable[[Points, Mapping[str, Tensor], Randomness], Mapping[str, Tensor]],
    points: Points,
    given: Mapping[str, Tensor],
    problem: Problem,
    randomness: Randomness,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The ``value`` among what ``loss`` finds, as a function of the points, and all that it finds, without a graph.

    Loss and gradient are one piece of ``problem.repeated``: ``loss`` sees the points and the tensors ``given``.
    """
    wanted = learned_tensors(points)
    own = {"x": points.x, "y": points.y, "weights": points.weights}

    def work(tensors: Mapping[str, Tensor], randomness: Randomness) -> Mapping[str, Tensor]:
        with torch.enable_grad():
            x, y, weights = (tensors[name].detach().requires_grad_(name in wanted) for name in own)
            at = Points(x, y, weights)
            found = loss(at, tensors, randomness)
        gradients = torch.autograd.grad(found["value"], list(learned_tensors(at).values()))
        named = {f"gradient {name}": each for name, each in zip(wanted, gradients, strict=True)}
        return {name: each.detach() for name, each in found.items()} | named

    found = problem.repeated((key, tuple(wanted)), work, {**own, **given}, randomness)
    value = with_gradient(found["value"], wanted, {name: found[f"gradient {name}"] for name in wanted})
    return value, found


def energy_difference(
    points: Points, problem: Problem, positive: Tensor, negative: Tensor, randomness: Randomness, at_once: int
) -> Loss:
    """mean_j E(x, theta+_j) - mean_j E(x, theta-_j) per datum, with the gradient gathered ``at_once`` pairs at a time.

    Each group of pairs has an augmentation of its own, the same for both of its terms. Memory is that of one group.
    """
    groups = list(zip(positive.split(at_once), negative.split(at_once), strict=True))
    if len(groups) == 1:
        return phase_difference(points, problem, positive, negative, randomness)
    gatherer = GradientGatherer(points)
    terms: dict[str, Tensor] = {}
    for up, down in groups:
        share = len(up) / len(positive)
        loss = phase_difference(gatherer.points, problem, up, down, randomness)
        gatherer.add(share * loss.value)
        terms = {name: terms.get(name, 0.0) + share * value for name, value in loss.terms.items()}
    return Loss(gatherer.total(), terms, energies=tuple(terms))


class GradientGatherer:
    """Adds up losses one after another, keeping only their values and gradients, never two graphs at once."""

    def __init__(self, points: Points) -> None:
        self._original = learned_tensors(points)
        self.points = detached_leaves(points)
        """A copy of the points for the losses to depend on."""
        self._leaves = learned_tensors(self.points)
        self._gradients = {name: torch.zeros_like(leaf) for name, leaf in self._leaves.items()}
        self._value = points.x.new_zeros(())

    def add(self, loss: Tensor) -> None:
        """Add a loss that depends on ``points``; its graph is used up."""
        gradients = torch.autograd.grad(loss, list(self._leaves.values()), allow_unused=True)
        for name, gradient in zip(self._leaves, gradients, strict=True):
            if gradient is not None:
                self._gradients[name] += gradient
        self._value = self._value + loss.detach()

    def total(self, value: Tensor | None = None) -> Tensor:
        """The sum of the losses as a function of the original points, or another value with that gradient."""
        return with_gradient(self._value if value is None else value, self._original, self._gradients)


def covariance_loss(
    points: Points,
    problem: Problem,
    samples: Tensor,
    real_energies: Tensor,
    scale: float,
    randomness: Randomness,
    at_once: int,
    transformation: str | None = None,
    shares: Tensor | None = None,
) -> Loss:
    """(scale / 2) Var_s[ E(x, theta_s) / n - r_s ] over fixed samples theta_s, where r_s are ``real_energies``.

    Its gradient is scale * Cov_s[ grad E / n, E / n - r ], the gradient of a reverse Kullback-Leibler divergence: both
    factors are centred over the samples (centring one of them is the same), with the unbiased 1 / (S - 1).
    The gradient is gathered ``at_once`` samples at a time. ``transformation`` names a kind of augmentation. ``shares``
    (summing to one) are importance weights of the samples, under which variance and covariance are then taken.
    """
    apply = _transformation_of_kind(problem, transformation, len(points.x), randomness)
    fixed = points.detached()
    with torch.no_grad():
        seen = apply(fixed.x)
        energies = torch.cat([problem.energies(group, seen, fixed) for group in samples.split(at_once)])
    gap = energies - real_energies
    if shares is None:
        shares = torch.full_like(gap, 1 / (len(samples) - 1))
    away = gap - shares @ gap / shares.sum()
    centred = shares * away
    gatherer = GradientGatherer(points)
    for group, residual in zip(samples.split(at_once), centred.split(at_once), strict=True):
        seen = apply(gatherer.points.x)
        mine = problem.energies(group, seen, gatherer.points)
        gatherer.add(scale * (residual * mine).sum())
    value = gatherer.total(value=scale / 2 * (centred @ away))
    terms = {"core": energies.mean(), "real": real_energies.mean()}
    return Loss(value, terms, energies=tuple(terms))


def real_energies(
    problem: Problem,
    method: str,
    samples: Tensor,
    batch_size: int,
    randomness: Randomness,
    at_once: int,
    transformation: str | None = None,
) -> Tensor:
    """r_s = - mean over a batch of real data of log p(y | x, theta_s): (samples,), unbiased, without a graph."""
    x, y = problem.real_batch(method, batch_size, randomness)
    x = _transformation_of_kind(problem, transformation, len(x), randomness)(x)
    return torch.cat([problem.real_energies(group, x, y) for group in samples.split(at_once)])


def draw_kind(problem: Problem, wanted: bool, randomness: Randomness) -> str | None:
    """A kind of augmentation for real and synthetic points alike, or none."""
    if not wanted or problem.augmentation is None:
        return None
    return randomness.host.choice(problem.augmentation.kinds)


def network_of(problem: Problem, method: str) -> Network:
    """The network of a method that starts from its initialisation."""
    return _classifier(problem, method).network


def with_network(problem: Problem, name: str, method: str) -> Problem:
    """The same problem for another network, under the same prior."""
    model = _classifier(problem, method)
    spec = model.network.spec
    other = replace(model, network=known_network(name, spec.shape, spec.classes))
    return replace(problem, energy=replace(problem.energy, model=other))


@lru_cache
def known_network(name: str, shape: Shape, classes: int) -> Network:
    """The network of that name, the same object each time, for which a backend captures its work once."""
    return build_network(name, shape, classes)


def _classifier(problem: Problem, method: str) -> Classifier:
    model = problem.energy.model
    if not isinstance(model, Classifier):
        raise InputError(
            f"The method '{method}' starts from a network's initialisation; it needs a model that is a Classifier, "
            f"got {type(model).__name__}."
        )
    return model


def fresh_parameters(network: Network, count: int, like: Tensor, randomness: Randomness) -> Tensor:
    """Parameters (count, size) as the network's own initialisation draws them, where it can on the device itself."""
    return network.draw(count, randomness.device).to(like)


def _transformation_of_kind(problem: Problem, kind: str | None, count: int, randomness: Randomness) -> Transformation:
    if kind is None or problem.augmentation is None:
        return lambda x: x
    return problem.augmentation.draw_kind(kind, count, randomness.device)
