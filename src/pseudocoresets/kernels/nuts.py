"""The no-U-turn sampler for small models (Hoffman & Gelman 2014; multinomial form of Betancourt 2017).

With V = U / T, momentum p ~ N(0, M) and H(q, p) = V(q) + p^T M^-1 p / 2, one draw is

    1. a trajectory of leapfrog points, doubled forwards or backwards at random, until it turns back:
       M^-1 p_first . rho <= 0  or  M^-1 p_last . rho <= 0,  rho the sum of the momenta of a (sub)trajectory;
    2. one point of it, with probability proportional to exp(-H); at the doublings the new half, of weight
       w_new, is preferred with probability min(1, w_new / w_old): this favours points far from the start and
       keeps the target invariant.

A step of size eps is one of eps sqrt(T) on V, so that, as for HMC, what is stable depends on U alone.
The warm-up of a whole run adapts the step size by dual averaging and M^-1 to the covariance of the draws, in
windows that double in length.

Every chain is a coroutine: it yields the position at which it wants V and its gradient and is resumed with
them. The driver answers all chains by one batched evaluation, so chains with trajectories of unequal length
never wait for each other. Positions are NumPy arrays: for a few parameters a call to NumPy costs a fraction of
one to PyTorch, and a target that evaluates itself in NumPy (:class:`ArrayTarget`) is not converted at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, potential_and_gradient
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.core.targets import Array
from pseudocoresets.kernels.adaptation import DualAveraging
from pseudocoresets.kernels.kernel import EvaluatedState, Info, Run, positive_step_size, positive_temperature

MetricKind: TypeAlias = Literal["dense", "diagonal"]

R = TypeVar("R")
Evaluating: TypeAlias = Generator[Array, tuple[float, Array], R]
"""A computation that yields positions, is sent (V, grad V) there, and returns an R."""

Evaluate: TypeAlias = Callable[[Array], tuple[Array, Array]]
"""V and grad V at positions (chains, size): (chains,) and (chains, size)."""

LARGEST_ENERGY_ERROR = 1000.0
"""A leapfrog point whose energy is off by more than this is a divergence."""


@runtime_checkable
class ArrayTarget(Target, Protocol):
    """A target that also knows U and its gradient in NumPy and double precision."""

    def potential_and_gradient_of_array(self, positions: Array) -> tuple[Array, Array]:
        """(chains, size) gives (chains,) and (chains, size)."""
        ...


@dataclass(frozen=True)
class NUTS:
    """One trajectory of at most 2^``max_depth`` leapfrog steps of size ``step_size``, and one point of it.

    The potential must be a function of theta alone: no fresh augmentation or minibatch at each evaluation. It is
    evaluated in the type of the position; use double precision unless memory forbids it.

    Args:
        step_size: eps; a whole run starts its search for a better one here.
        metric: What a run learns of the covariance: its ``"diagonal"`` or, for at most some hundred parameters,
            all of it, ``"dense"``.
        covariance: (size, size), M^-1; close to that of the target, such as Laplace's, it spares a run the slow search
            from the identity. The answer does not depend on it.
    """

    step_size: float = 1.0
    max_depth: int = 10
    metric: MetricKind = "diagonal"
    covariance: Tensor | None = field(default=None, compare=False)
    preferred_acceptance: float = 0.8

    adjusted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)
        if self.max_depth < 1:
            raise InputError(f"NUTS doubles its trajectory at least once; got max_depth {self.max_depth}.")
        if self.metric not in ("dense", "diagonal"):
            raise InputError(f"The metric must be 'dense' or 'diagonal'; got '{self.metric}'.")

    def init(self, position: Tensor, target: Target) -> EvaluatedState:
        positive_temperature(target.temperature, "NUTS")
        return EvaluatedState.at(position, target)

    def step(self, state: EvaluatedState, target: Target, generator: torch.Generator) -> tuple[EvaluatedState, Info]:
        """One transition of each chain; their random numbers come from a stream seeded by ``generator``."""
        size, temperature = state.position.shape[-1], target.temperature
        metric = _first_metric(size, self.metric, self.covariance)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        parts = zip(*(_as_rows(part, size if part.ndim == state.position.ndim else 1) for part in state), strict=True)
        places = [_Place(q, float(v) / temperature, g / temperature) for q, (v,), g in parts]
        streams = np.random.SeedSequence(seed).spawn(len(places))
        coroutines = [
            _draw(place, self.step_size * math.sqrt(temperature), metric, self.max_depth, np.random.default_rng(stream))
            for place, stream in zip(places, streams, strict=True)
        ]
        drawn = _drive(coroutines, _evaluator(target, state.position))

        def gathered(values: list[Any], like: Tensor) -> Tensor:
            return torch.as_tensor(np.array(values)).to(like).view_as(like)

        moved = EvaluatedState(
            gathered([draw.place.q for draw in drawn], state.position),
            gathered([temperature * draw.place.potential for draw in drawn], state.potential),
            gathered([temperature * draw.place.gradient for draw in drawn], state.gradient),
        )
        return moved, Info(state.potential, gathered([draw.acceptance for draw in drawn], state.potential))

    def run(
        self,
        target: Target,
        position: Tensor,
        draws: int = 1000,
        warmup: int = 1000,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Run:
        """Draws of exp(-U / T), one chain from each row of ``position`` (chains, size).

        The warm-up adapts step size and metric; chains of unequal trajectories do not wait for each other.
        """
        _check_request(target, position, draws, warmup)
        first_metric = _first_metric(position.shape[-1], self.metric, self.covariance)
        scale = math.sqrt(target.temperature)
        plan = _Plan(self, draws, warmup, first_metric, self.step_size * scale)
        starts = position.detach().cpu().double().numpy()
        with task(progress or Silent(), "drawing from the posterior by NUTS", len(starts) * (warmup + draws)) as shown:
            coroutines = [
                _run_one_chain(start, plan, np.random.default_rng(derive_seed(seed, "nuts", index)), shown)
                for index, start in enumerate(starts)
            ]
            chains = _drive(coroutines, _evaluator(target, position))
        return Run(
            torch.as_tensor(np.stack([chain.samples for chain in chains])).to(position),
            torch.tensor([chain.acceptance for chain in chains]),
            torch.tensor([chain.step_size / scale for chain in chains]),
            torch.tensor([chain.divergences for chain in chains]),
            torch.tensor([chain.leapfrogs for chain in chains]),
        )


def _as_rows(tensor: Tensor, width: int) -> Array:
    return tensor.detach().cpu().double().reshape(-1, width).numpy()


def _check_request(target: Target, position: Tensor, draws: int, warmup: int) -> None:
    positive_temperature(target.temperature, "NUTS")
    if position.ndim != 2:
        raise InputError(f"NUTS needs starts of shape (chains, size); got {tuple(position.shape)}.")
    if draws < 1 or warmup < 1:
        raise InputError(f"NUTS needs at least one draw and one warm-up step; got {draws} and {warmup}.")


def _first_metric(size: int, kind: MetricKind, covariance: Tensor | None) -> _Metric:
    if covariance is None:
        return _Metric.from_covariance(np.eye(size), kind)
    if covariance.shape != (size, size):
        raise InputError(
            f"NUTS on {size} parameters needs a covariance of shape {(size, size)}; got {tuple(covariance.shape)}."
        )
    try:
        return _Metric.from_covariance(covariance.detach().cpu().double().numpy(), kind)
    except np.linalg.LinAlgError:
        raise InputError("The covariance for NUTS must be positive definite; this one is not.") from None


class _ChainRun(NamedTuple):
    samples: Array
    acceptance: float
    step_size: float
    divergences: int
    leapfrogs: int


def _evaluator(target: Target, like: Tensor) -> Evaluate:
    """V = U / T and its gradient, in NumPy if the target offers that and ``like`` asks for no other type or device."""
    if isinstance(target, ArrayTarget) and like.dtype == torch.float64 and like.device.type == "cpu":
        if target.temperature == 1:
            return target.potential_and_gradient_of_array
        return lambda positions: _over(target.temperature, *target.potential_and_gradient_of_array(positions))

    def through_torch(positions: Array) -> tuple[Array, Array]:
        batch = torch.as_tensor(positions, dtype=like.dtype, device=like.device)
        potential, gradient = potential_and_gradient(target, batch)
        return _over(target.temperature, potential.double().cpu().numpy(), gradient.double().cpu().numpy())

    return through_torch


def _over(temperature: float, potential: Array, gradient: Array) -> tuple[Array, Array]:
    return potential / temperature, gradient / temperature


@np.errstate(over="ignore", invalid="ignore")
def _drive(coroutines: list[Evaluating[R]], evaluate: Evaluate) -> list[R]:
    """Answer the chains' requests in batches until every chain has returned."""
    finished: dict[int, R] = {}
    requests = {index: next(coroutine) for index, coroutine in enumerate(coroutines)}
    while requests:
        potentials, gradients = evaluate(np.array(list(requests.values())))
        for index, potential, gradient in zip(list(requests), potentials.tolist(), gradients, strict=True):
            try:
                requests[index] = coroutines[index].send((potential, gradient))
            except StopIteration as stop:
                finished[index] = stop.value
                del requests[index]
    return [finished[index] for index in range(len(coroutines))]


# --- one chain --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    kernel: NUTS
    draws: int
    warmup: int
    first_metric: _Metric
    first_step_size: float


class _Place(NamedTuple):
    """A position with its potential V and gradient."""

    q: Array
    potential: float
    gradient: Array


class _Draw(NamedTuple):
    place: _Place
    acceptance: float
    diverged: bool
    leapfrogs: int


def _run_one_chain(start: Array, plan: _Plan, rng: np.random.Generator, progress: Progress) -> Evaluating[_ChainRun]:
    potential, gradient = yield start
    if not (math.isfinite(potential) and np.isfinite(gradient).all()):
        raise DivergenceError("The potential or its gradient is not finite at the start of a NUTS chain.")
    place = _Place(start, potential, gradient)
    place, metric, step_size = yield from _warm_up(place, plan, rng, progress)
    samples, acceptance, divergences, leapfrogs = [], 0.0, 0, 0
    for _ in range(plan.draws):
        draw = yield from _draw(place, step_size, metric, plan.kernel.max_depth, rng)
        place = draw.place
        samples.append(place.q)
        acceptance += draw.acceptance / plan.draws
        divergences += draw.diverged
        leapfrogs += draw.leapfrogs
        progress.advance()
    return _ChainRun(np.stack(samples), acceptance, step_size, divergences, leapfrogs)


def _warm_up(
    place: _Place, plan: _Plan, rng: np.random.Generator, progress: Progress
) -> Evaluating[tuple[_Place, _Metric, float]]:
    metric = plan.first_metric
    step_size = yield from _reasonable_step_size(place, metric, plan.first_step_size, rng)
    averaging = DualAveraging(step_size, plan.kernel.preferred_acceptance)
    windows = _metric_windows(plan.warmup)
    if plan.kernel.covariance is not None:  # it need not be searched in several windows, only refined in the last
        windows = dict(list(windows.items())[-1:])
    visited: list[Array] = []
    for t in range(1, plan.warmup + 1):
        draw = yield from _draw(place, averaging.step_size, metric, plan.kernel.max_depth, rng)
        place = draw.place
        averaging = averaging.update(draw.acceptance)
        visited.append(place.q)
        progress.advance()
        if t in windows:
            metric = metric.learnt_from(np.stack(visited[windows[t] :]), plan.kernel.metric)
            step_size = yield from _reasonable_step_size(place, metric, averaging.average, rng)
            averaging = DualAveraging(step_size, plan.kernel.preferred_acceptance)
    return place, metric, averaging.average


def _metric_windows(warmup: int) -> dict[int, int]:
    """The ends of the windows after which the metric is learnt, each with the draw at which its window began.

    A stretch before the first window finds the bulk and one after the last settles the step size: 75 and 50
    of 1000 draws. The windows start at 25 draws and double, and the last one takes what is left. A short
    warm-up has one window, or none.
    """
    first = max(warmup * 3 // 40, min(15, warmup // 4))
    last = warmup - max(warmup // 20, min(50, warmup // 5))
    windows, start, length = {}, first, 25
    while start < last:
        end = start + length
        if end + 2 * length > last:
            end = last
        windows[end] = start
        start, length = end, 2 * length
    return {end: start for end, start in windows.items() if end - start >= 10}


def _reasonable_step_size(
    place: _Place, metric: _Metric, step_size: float, rng: np.random.Generator
) -> Evaluating[float]:
    """Double or halve the step size until one leapfrog step's acceptance crosses 0.8."""
    direction = 0
    for _ in range(60):
        start = _Point.at(place, metric.draw_momentum(rng), metric)
        end = yield from _leapfrog(start, step_size, metric)
        change = start.energy - end.energy
        wanted = 1 if change > math.log(0.8) else -1
        if direction not in (0, wanted):
            break
        direction = wanted
        step_size *= 2.0**direction
    return step_size


# --- the metric -------------------------------------------------------------------------------------------


class _Metric(NamedTuple):
    """M^-1, a matrix or the diagonal of one, and the L with p = L z ~ N(0, M) for z ~ N(0, I)."""

    inverse_mass: Array
    momentum_factor: Array

    @classmethod
    def from_covariance(cls, covariance: Array, kind: MetricKind) -> _Metric:
        if kind == "diagonal":
            variance = np.diag(covariance)
            return cls(variance, variance**-0.5)
        return cls(covariance, np.linalg.inv(np.linalg.cholesky(covariance)).T)

    def learnt_from(self, draws: Array, kind: MetricKind) -> _Metric:
        """The covariance of the draws, shrunk towards a multiple of this metric by as much as it is noise.

        Shrinking in coordinates in which this metric is the identity keeps what earlier windows have learnt. For a
        matrix the amount is Ledoit & Wolf's estimate; for a diagonal see ``_shrunk_variances``.
        """
        if kind == "diagonal":
            ratios = _shrunk_variances(draws.var(0, ddof=1) / self.inverse_mass, len(draws))
            return _Metric.from_covariance(np.diag(self.inverse_mass * ratios + np.finfo(float).tiny), kind)
        from sklearn.covariance import ledoit_wolf

        whitened, _ = ledoit_wolf(draws @ self.momentum_factor)
        back = np.linalg.inv(self.momentum_factor).T
        return _Metric.from_covariance(back @ whitened @ back.T, kind)

    def draw_momentum(self, rng: np.random.Generator) -> Array:
        z = rng.standard_normal(self.inverse_mass.shape[0])
        return self.momentum_factor @ z if self.momentum_factor.ndim == 2 else self.momentum_factor * z

    def velocity(self, p: Array) -> Array:
        return self.inverse_mass @ p if self.inverse_mass.ndim == 2 else self.inverse_mass * p


def _shrunk_variances(variances: Array, draws: int) -> Array:
    """Estimates v_i of variances from so many draws, moved towards their mean m by their share of noise.

    An estimate of a variance s^2 from n draws of a Gaussian has the variance 2 s^4 / (n - 1), so
        v_i <- m + k (v_i - m),    k = max(0, 1 - (2 m^2 / (n - 1)) / Var_i[v_i]).
    """
    mean, spread = variances.mean(), variances.var(ddof=1) if len(variances) > 1 else 0.0
    noise = 2 * mean**2 / (draws - 1)
    kept = 1 - noise / spread if spread > noise else 0.0
    return np.asarray(mean + kept * (variances - mean))


# --- one draw ---------------------------------------------------------------------------------------------


class _Point(NamedTuple):
    """A point of a trajectory; ``velocity`` is M^-1 p and ``energy`` is H."""

    place: _Place
    p: Array
    velocity: Array
    energy: float

    @classmethod
    def at(cls, place: _Place, p: Array, metric: _Metric) -> _Point:
        velocity = metric.velocity(p)
        energy = place.potential + 0.5 * float(p @ velocity)
        return cls(place, p, velocity, energy if math.isfinite(energy) else math.inf)


class _Tree(NamedTuple):
    """A stretch of trajectory: its two ends in time, the point chosen from it and sums over its points."""

    left: _Point
    right: _Point
    chosen: _Place
    log_weight: float
    """log sum exp(H_0 - H)."""
    momentum_sum: Array
    stopped: bool
    diverged: bool
    acceptance_sum: float
    leapfrogs: int


def _draw(
    place: _Place, step_size: float, metric: _Metric, max_depth: int, rng: np.random.Generator
) -> Evaluating[_Draw]:
    start = _Point.at(place, metric.draw_momentum(rng), metric)
    tree = _Tree(start, start, place, 0.0, start.p, False, False, 0.0, 0)
    for depth in range(max_depth):
        sign = 1 if rng.random() < 0.5 else -1
        end = tree.right if sign > 0 else tree.left
        half = yield from _build(end, sign * step_size, depth, start.energy, metric, rng)
        probability = 0.0 if half.stopped else math.exp(min(0.0, half.log_weight - tree.log_weight))
        tree = _join(tree, half, sign, take_second=rng.random() < probability)
        if tree.stopped:
            break
    return _Draw(tree.chosen, tree.acceptance_sum / tree.leapfrogs, tree.diverged, tree.leapfrogs)


def _build(
    point: _Point, step: float, depth: int, energy: float, metric: _Metric, rng: np.random.Generator
) -> Evaluating[_Tree]:
    """A subtree of 2^depth points beyond ``point``; it stops early where it turns or diverges."""
    if depth == 0:
        new = yield from _leapfrog(point, step, metric)
        change = energy - new.energy
        diverged = not change > -LARGEST_ENERGY_ERROR
        acceptance = math.exp(min(0.0, change))
        return _Tree(new, new, new.place, change, new.p, diverged, diverged, acceptance, 1)
    first = yield from _build(point, step, depth - 1, energy, metric, rng)
    if first.stopped:
        return first
    sign = 1 if step > 0 else -1
    outer = first.right if sign > 0 else first.left
    second = yield from _build(outer, step, depth - 1, energy, metric, rng)
    share = 1 / (1 + math.exp(min(700.0, first.log_weight - second.log_weight)))
    return _join(first, second, sign, take_second=rng.random() < share)


def _join(first: _Tree, second: _Tree, sign: int, take_second: bool) -> _Tree:
    """Two neighbouring stretches as one; ``sign`` says on which side of the first the second lies."""
    left, right = (first, second) if sign > 0 else (second, first)
    momentum_sum = first.momentum_sum + second.momentum_sum
    return _Tree(
        left.left,
        right.right,
        second.chosen if take_second else first.chosen,
        _log_add(first.log_weight, second.log_weight),
        momentum_sum,
        second.stopped or _turns(left, right, momentum_sum),
        second.diverged,
        first.acceptance_sum + second.acceptance_sum,
        first.leapfrogs + second.leapfrogs,
    )


def _log_add(first: float, second: float) -> float:
    """log(exp(first) + exp(second))"""
    larger = max(first, second)
    return larger + math.log1p(math.exp(min(first, second) - larger)) if larger > -math.inf else larger


def _turns(left: _Tree, right: _Tree, momentum_sum: Array) -> bool:
    """The U-turn criterion over both stretches, and over each with the nearest point of the other.

    The latter two catch turns between the stretches, which the first misses when both are half a period long.
    For two single points they are the first.
    """
    if _turned(momentum_sum, left.left, right.right):
        return True
    if left.left is left.right and right.left is right.right:
        return False
    return _turned(left.momentum_sum + right.left.p, left.left, right.left) or _turned(
        left.right.p + right.momentum_sum, left.right, right.right
    )


def _turned(momentum_sum: Array, first: _Point, last: _Point) -> bool:
    return bool(first.velocity.dot(momentum_sum) <= 0 or last.velocity.dot(momentum_sum) <= 0)


def _leapfrog(point: _Point, step: float, metric: _Metric) -> Evaluating[_Point]:
    half = point.p - 0.5 * step * point.place.gradient
    q = point.place.q + step * metric.velocity(half)
    potential, gradient = yield q
    return _Point.at(_Place(q, potential, gradient), half - 0.5 * step * gradient, metric)
