"""Persistent contrastive divergence: the forward Kullback-Leibler divergence by chains that are never restarted.

For pi the full-data posterior, pi_x the coreset's and T their temperature, and up to a term that does not depend on x,

    T grad_x KL(pi || pi_x) = grad_x { E_pi[ E(x, theta) ] - E_sg(pi_x)[ E(x, theta) ] } / n

where sg stops the gradient. The first expectation is an average over N = ``chains`` draws theta+ of the source, the
second over N chains theta- on the posterior of the present points, which go on from one iteration to the next
(Tieleman 2008): each iteration moves them by k = ``steps`` transitions of ``kernel``. As long as the points move slowly
the chains stay near pi_x, so that the estimate has neither the bias of chains that start at an expert nor the cost of
chains that forget where they started. Where learned weights are at an optimum, sum_i w_i log p(y_i | x_i, theta) has
the same mean under both posteriors.

A kernel that accepts or rejects (``hmc``, ``mala``) sees one augmentation in an iteration, and its step size follows
the acceptance a, wanted a*:

    log eps <- log eps + (a - a*) / 10

Experts are draws of pi where they are chains that sampled it. For experts trained by SGD take the ends of their
trajectories: ``max_start_epoch=0`` and ``expert_epochs`` as many as they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE
from pseudocoresets.kernels import AdjustedKernel, AnyKernel, build_kernel, run_chain, with_step_size
from pseudocoresets.methods.estimator import energy_difference
from pseudocoresets.methods.method import GradientMethod, Loss, StateShape
from pseudocoresets.methods.problem import Problem

PLACES = "chains"
"""The name of the chains' places (chains, parameters) in the state."""
ADAPTATION = 0.1


class Moved(NamedTuple):
    """Where the chains are, the step size for the next iteration, and what is worth recording."""

    places: Tensor
    step_size: float
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class PersistentContrastiveDivergence(GradientMethod):
    """N = ``chains`` persistent chains, moved by k = ``steps`` transitions of ``kernel`` in each iteration."""

    expert_epochs: int = 0
    max_start_epoch: int | None = None
    chains: int = 16
    steps: int = 1
    step_size: float = 0.1
    kernel: str | AnyKernel = "hmc:leapfrog_steps=20"
    """A sampler with a step size of its own, or the name of one and its options."""
    at_once: int = 32
    """Draws whose energies are in memory together."""

    name: ClassVar[str] = "pcd"

    def __post_init__(self) -> None:
        self.require_at_least(expert_epochs=0, chains=1, steps=1, at_once=1)
        build_kernel(self.kernel, self.step_size)

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        moved = self._moved(points.state.get(PLACES, draw.later), points, problem, randomness)
        loss = energy_difference(points, problem, draw.later, moved.places, randomness, self.at_once)
        state = {PLACES: moved.places, STEP_SIZE: points.x.new_tensor(moved.step_size)}
        return loss._replace(terms={**loss.terms, **moved.terms}, state=state)

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape]:
        return {PLACES: (self.chains, problem.energy.model.size), STEP_SIZE: ()}

    def _moved(self, places: Tensor, points: Points, problem: Problem, randomness: Randomness) -> Moved:
        kernel = build_kernel(self.kernel, self.step_size)
        if STEP_SIZE in points.state:
            kernel = with_step_size(kernel, float(points.state[STEP_SIZE]))
        if not isinstance(kernel, AdjustedKernel):
            moved = problem.run_chain(kernel, places, points, self.steps, randomness)
            return Moved(moved, kernel.step_size, {})
        fixed = points.detached()
        seen = replace(fixed, x=problem.transformation(len(fixed), randomness)(fixed.x))
        frame = problem.frame(seen)
        target = problem.backend.target(frame.energy, seen)
        chain = run_chain(kernel, frame.enter(places), target, self.steps, randomness.device)
        assert chain.acceptance is not None
        acceptance = chain.acceptance.mean()
        step_size = kernel.step_size * float((ADAPTATION * (acceptance - kernel.preferred_acceptance)).exp())
        return Moved(frame.leave(chain.position), step_size, {"acceptance": acceptance})
