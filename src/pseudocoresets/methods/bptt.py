"""The full data's energy, differentiated through the last steps of the coreset's own chain.

With q_x the law of the coreset's chain and pi the full posterior, KL(q_x || pi) = E_q[U_full] / T - H(q_x) + const. The
method descends its energy part, along W = ``steps`` steps of the chain:

    v_{t+1}     = mu v_t + grad_theta U(theta_t; A_t x),           t = 0 .. W-1,   from a chain's present place
    theta_{t+1} = theta_t - eta P v_{t+1}
    L           = - mean over a batch of real data of log p(y | x_real, theta_W)

averaged over ``unrolls`` chains, which see the same A_t x and the same batch; A_t is the augmentation of step t.
``gradient`` is how L is differentiated (see ``gradients``), from lambda_W = grad_theta L(theta_W). For differences,
the default, h P lambda_W / (1 - mu) has ``radius`` times the length of the chain's own path theta_W - theta_0.

With ``momentum`` mu the chain is that of SGHMC, and W steps go as far as W / (1 - mu) of Langevin's: an unroll sees
that much more of a chain, and the posterior's samples lie so many fewer steps from its start.

With ``preconditioned``, P has a speed for each tensor of the network, as the kernel ``psghmc`` gives them, and the
chain is that kernel's; otherwise P = I. The speeds are found once, from the gradients of the first points at fresh
parameters, and are the same for all chains: they hardly depend on the points.

It is the truncated backpropagation through training of dataset distillation (RaT-BPTT, Feng et al. 2023), which runs a
network from its initialisation to a random step and differentiates the last W. Here chains persist instead: a pool of
``chains`` places is kept from one iteration to the next. Each iteration picks some at random, restarts each from
the network's random initialisation with a probability p, and leaves it at theta_W. As in persistent contrastive
divergence, the steps before the unroll were taken on earlier points.

A restarted chain first takes B = ``burn_in`` steps on the present points, a multiple of W, which no gradient sees. An
unroll that is the k-th since the restart ends at age B + k W, and k is geometric, P(k) = p (1 - p)^(k-1), of mean
1 / p. With

    p = W / (horizon - B)

unrolls end at ages of mean ``horizon``, which should be that of the posterior sampler, and none below B + W. An
iteration costs p B plain steps beside its unroll. The chains of the first iteration are all B steps old; with
``spread`` their ages are already those that restarts lead to in the long run, chain i = 0 .. C-1 having the quantile
(i + 1/2) / C of the distribution of B + k W.

With ``networks``, each iteration draws one of a pool of networks and unrolls one of that network's own chains, so
that L is an average over the pool: the coreset is made for all of them, and not for the one it is named after.

Gradients differ in length with the age and from chain to chain. With ``equal_weight`` the gradient of an iteration is
divided, in everything that is learned, by its norm over the images, so that no iteration counts for more than another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE, Motion, at_rest
from pseudocoresets.gradients import Descent, Differences, GradientEstimator, Outcome, Terminal, build_gradient
from pseudocoresets.gradients.learned import learned_tensors, with_gradient
from pseudocoresets.kernels import speeds_one_by_one
from pseudocoresets.kernels.kernel import positive_step_size
from pseudocoresets.methods.estimator import fresh_parameters, network_of, with_network
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss, StateShape
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.networks import network_names, require_network

POOL, VELOCITIES, SPEEDS = "chains", "velocities", "speeds"
"""Names in the state: the places of the chains (chains, parameters), their velocities, and the diagonal of P."""


@dataclass(frozen=True)
class BPTT(GradientMethod):
    """``steps`` differentiable steps at the end of persistent chains of mean length ``horizon``."""

    steps: int = 40
    step_size: float = 0.05
    momentum: float = 0.0
    preconditioned: bool = False
    """Whether each tensor of the network has a speed of its own."""
    horizon: int = 400
    chains: int = 8
    batch_size: int = 512
    gradient: str | GradientEstimator = "differences"
    """An estimator of ``gradients``, or the name of one and its options, such as ``differences:radius=1.0``."""
    augment_real: bool = False
    step_size_learning_rate: float = 0.0
    points_per_step: int = 0
    """How many of the points each step of an unroll sees, chosen at random; 0: all of them."""
    burn_in: int = 0
    """Steps that a chain takes after a restart before its first unroll."""
    spread: bool = False
    """Whether the first chains have different ages, as later ones do, rather than all the same."""
    equal_weight: bool = False
    """Whether the gradient of an iteration is divided by its norm over the images."""
    unrolls: int = 1
    """How many chains are unrolled in each iteration, side by side."""
    networks: str | Sequence[str] = ""
    """Names of networks, such as ``convnet,alexnet``, of which each iteration draws one; none: the coreset's own."""

    name: ClassVar[str] = "bptt"
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require_at_least(
            steps=1,
            burn_in=0,
            horizon=self.burn_in + self.steps,
            unrolls=1,
            chains=self.unrolls,
            batch_size=1,
            step_size_learning_rate=0,
            points_per_step=0,
        )
        positive_step_size(self.step_size)
        build_gradient(self.gradient)
        names = network_names(self.networks)
        for name in names:
            require_network(name)
        object.__setattr__(self, "networks", ",".join(names))
        if not 0 <= self.momentum < 1:
            raise InputError(f"The momentum of a chain must lie in [0, 1); got {self.momentum}.")
        if self.burn_in % self.steps:
            raise InputError(f"The burn-in must be a multiple of the {self.steps} steps; got {self.burn_in}.")

    @property
    def repeats(self) -> bool:
        return not self.networks and self.burn_in == 0 and isinstance(build_gradient(self.gradient), Differences)

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        if self.step_size_learning_rate == 0:
            return {}
        return {STEP_SIZE: Hyperparameter(self.step_size, self.step_size_learning_rate)}

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape]:
        named = {f" of {name}": with_network(problem, name, self.name) for name in network_names(self.networks)}
        sizes = {ending: each.energy.model.size for ending, each in (named or {"": problem}).items()}
        rows = {POOL: self.chains, VELOCITIES: self.chains} | ({SPEEDS: 1} if self.preconditioned else {})
        return {key + ending: (count, size) for key, count in rows.items() for ending, size in sizes.items()}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        if not self.networks:
            return self._unrolled(points, problem, randomness)
        name = randomness.host.choice(network_names(self.networks))
        ending = f" of {name}"
        own = {key.removesuffix(ending): value for key, value in points.state.items() if key.endswith(ending)}
        loss = self._unrolled(replace(points, state=own), with_network(problem, name, self.name), randomness)
        mine = {key + ending: value for key, value in loss.state.items()}
        return loss._replace(state={**points.state, **mine})

    def _unrolled(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        """One unroll of the chains of the problem's network."""
        stepping = self._with_speeds(self._with_step_size(points), problem, randomness)
        pool = self._pool(stepping, problem, randomness)
        chosen = _random_order(self.chains, randomness)[: self.unrolls]
        start = self._restarted(pool.of(chosen), stepping, problem, randomness)
        outcome = self.descend(stepping, problem, start, randomness)
        pool = pool.replaced(chosen, outcome.end)
        terms = {STEP_SIZE: points.hyperparameters[STEP_SIZE].detach()} if STEP_SIZE in points.hyperparameters else {}
        value = _of_unit_gradient(outcome.loss, points) if self.equal_weight else outcome.loss
        speeds = {SPEEDS: stepping.state[SPEEDS]} if self.preconditioned else {}
        return Loss(value, terms, {POOL: pool.position, VELOCITIES: pool.velocity, **speeds})

    def _restarted(self, chains: Motion, points: Points, problem: Problem, randomness: Randomness) -> Motion:
        """Where the unrolls start: where the chains are, or, for some, after a restart and its burn-in."""
        if self.burn_in == 0:
            generator = randomness.device
            restarts = torch.rand(self.unrolls, 1, generator=generator, device=generator.device)
            fresh = at_rest(self._fresh(points, problem, randomness))
            return Motion(
                *(torch.where(restarts < self._restart_probability, *each) for each in zip(fresh, chains, strict=True))
            )
        again = [i for i in range(self.unrolls) if randomness.host.random() < self._restart_probability]
        if not again:
            return chains
        fresh = at_rest(self._fresh(points, problem, randomness))
        for _ in range(self.burn_in // self.steps):
            fresh = self._moved_on(fresh, points, problem, randomness)
        return chains.replaced(again, fresh.of(again))

    def descend(self, points: Points, problem: Problem, start: Motion, randomness: Randomness) -> Outcome:
        """The steps from ``start`` and the loss of a batch of real data at their ends."""
        x, y = problem.real_batch(self.title, self.batch_size, randomness)
        if self.augment_real:
            x = problem.transformation(len(x), randomness)(x)
        descent = self._descent(points, problem)
        terminal_loss = partial(real_energy, problem, x, y, start.position, self.momentum)
        return build_gradient(self.gradient).differentiate(descent, start, terminal_loss, problem.backend, randomness)

    def _pool(self, points: Points, problem: Problem, randomness: Randomness) -> Motion:
        places, velocities = (points.state.get(name) for name in (POOL, VELOCITIES))
        if places is not None:
            return at_rest(places) if velocities is None else Motion(places, velocities)
        ages = self.first_ages()
        groups = [ages[i : i + self.unrolls] for i in range(0, self.chains, self.unrolls)]
        made = [self._of_ages(group, points, problem, randomness) for group in groups]
        return Motion(*(torch.cat(parts) for parts in zip(*made, strict=True)))

    def _of_ages(self, ages: list[int], points: Points, problem: Problem, randomness: Randomness) -> Motion:
        """At most ``unrolls`` chains of these ages, in steps; all run side by side as long as one of them needs.

        ``unrolls`` of them in pieces of W steps, so that a device captures only one kind.
        """
        moving = at_rest(self._fresh(points, problem, randomness))
        aged = moving.of(list(range(len(ages))))
        for age in range(self.steps, max(ages) + 1, self.steps):
            moving = self._moved_on(moving, points, problem, randomness)
            there = [i for i, wanted in enumerate(ages) if wanted == age]
            if there:
                aged = aged.replaced(there, moving.of(there))
        return aged

    def _fresh(self, points: Points, problem: Problem, randomness: Randomness) -> Tensor:
        return fresh_parameters(network_of(problem, self.name), self.unrolls, points.x, randomness)

    def first_ages(self) -> list[int]:
        """The ages, in steps, of the places in the pool that the first iteration finds."""
        if not self.spread:
            return [self.burn_in] * self.chains
        quantiles = [(chain + 0.5) / self.chains for chain in range(self.chains)]
        counts = [_geometric_quantile(quantile, self._restart_probability) for quantile in quantiles]
        return [self.burn_in + count * self.steps for count in counts]

    @property
    def _restart_probability(self) -> float:
        return self.steps / (self.horizon - self.burn_in)

    def _moved_on(self, start: Motion, points: Points, problem: Problem, randomness: Randomness) -> Motion:
        descent = self._descent(points, problem).without_gradients()
        return problem.backend.trajectory(descent, len(start.position), self.steps, randomness).run(start)

    def _descent(self, points: Points, problem: Problem) -> Descent:
        return problem.descent(points, self.steps, self.points_per_step, self.momentum, points.state.get(SPEEDS))

    def _with_speeds(self, points: Points, problem: Problem, randomness: Randomness) -> Points:
        if not self.preconditioned or SPEEDS in points.state:
            return points
        now = points.detached()
        target = problem.energy.target(now.x, now.y, now.weights)
        speeds = speeds_one_by_one(self._fresh(points, problem, randomness), target).mean(0, keepdim=True)
        return replace(points, state={**points.state, SPEEDS: speeds})

    def _with_step_size(self, points: Points) -> Points:
        if STEP_SIZE in points.hyperparameters:
            return points
        return replace(points, hyperparameters={STEP_SIZE: points.x.new_full((), self.step_size)})


def real_energy(problem: Problem, x: Tensor, y: Tensor, start: Tensor, momentum: float, end: Tensor) -> Terminal:
    """The mean over chains of the real data's energy at their ends; its length is (1 - mu) that of their paths."""
    energies, gradients = problem.real_gradients(end, x, y)
    return Terminal(energies.mean(), gradients / len(end), (1 - momentum) * _path_length(start, end))


def _random_order(count: int, randomness: Randomness) -> Tensor:
    return torch.rand(count, generator=randomness.device, device=randomness.device.device).argsort()


def _geometric_quantile(quantile: float, probability: float) -> int:
    """The smallest k >= 1 with 1 - (1 - p)^k >= quantile."""
    if probability >= 1:
        return 1
    return max(1, math.ceil(math.log1p(-quantile) / math.log1p(-probability)))


def _of_unit_gradient(loss: Tensor, points: Points) -> Tensor:
    """The same value with its gradient divided by the gradient's norm over the images."""
    wanted = learned_tensors(points)
    if "x" not in wanted:
        return loss
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, materialize_grads=True)
    gradients = dict(zip(wanted, found, strict=True))
    norm = gradients["x"].norm()
    norm = norm.clamp_min(torch.finfo(norm.dtype).tiny)
    return with_gradient(loss, wanted, {name: gradient / norm for name, gradient in gradients.items()})


def _path_length(start: Tensor, end: Tensor) -> Tensor:
    """|| theta_W - theta_0 || (chains, 1), or what rounding can still tell apart where a chain did not move."""
    least = torch.finfo(end.dtype).eps ** 0.5 * end.norm(dim=-1, keepdim=True).clamp_min(1.0)
    return torch.maximum((end - start).norm(dim=-1, keepdim=True), least)
