"""Estimators of dL/dz for a loss L(theta_k) of the end of a coreset's descent, in everything z that is learned.

    exact          automatic differentiation through all k steps: memory for k graphs
    stored         the adjoint of the descent: the same gradient, holding the graph of one step whatever k is
    differences    the adjoint with differences of U over a finite distance: first derivatives only, and fast on a GPU
    detached       the adjoint with lambda_t = lambda_k throughout: cheaper by a third, and not the gradient of L

An estimator is an object, or the text that names one: ``"stored"``, ``"differences:radius=1.0"``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.options import build_named
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Motion
from pseudocoresets.gradients.adjoint import StoredTrajectory
from pseudocoresets.gradients.descent import Descent, Outcome, TerminalLoss, Trajectories
from pseudocoresets.gradients.learned import learned_tensors, with_gradient

STATES = 32


class GradientEstimator(ABC):
    """One way to find the gradient of a function of a descent's end."""

    @abstractmethod
    def differentiate(
        self,
        descent: Descent,
        start: Motion,
        terminal_loss: TerminalLoss,
        trajectories: Trajectories,
        randomness: Randomness,
    ) -> Outcome:
        """The loss at the end of the descent from ``start``, with its gradient in what is learned.

        Args:
            descent: The steps, and the points they depend on.
            start: Where the chains are, and their velocities; the loss is not differentiated in them.
            terminal_loss: The loss at the ends, its gradient there and its length scale.
            trajectories: The backend, which may have a faster way along the descent and back.
            randomness: What augmentations and subsets of points are drawn from.
        """


@dataclass(frozen=True)
class Exact(GradientEstimator):
    """Automatic differentiation through the unrolled descent; memory grows with its steps."""

    def differentiate(
        self,
        descent: Descent,
        start: Motion,
        terminal_loss: TerminalLoss,
        trajectories: Trajectories,
        randomness: Randomness,
    ) -> Outcome:
        theta, velocity = start.position.detach().requires_grad_(), start.velocity
        for t, view in enumerate(descent.views(randomness)):
            gradient = descent.potential_gradient(descent.points, view, theta, differentiable=True)
            velocity = descent.momentum * velocity + gradient
            theta = theta - descent.step_size[descent.which_step_size(t)] * descent.hastened(velocity)
        terminal = terminal_loss(theta.detach())
        loss = with_gradient(terminal.loss, {"theta": theta}, {"theta": terminal.adjoint})
        return Outcome(loss, Motion(theta.detach(), velocity.detach()))


@dataclass(frozen=True)
class Stored(GradientEstimator):
    """The exact gradient by the adjoint, with ``states`` states kept on the way; memory hardly grows with the steps."""

    states: int = STATES

    recurrent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_states(self.states)

    def differentiate(
        self,
        descent: Descent,
        start: Motion,
        terminal_loss: TerminalLoss,
        trajectories: Trajectories,
        randomness: Randomness,
    ) -> Outcome:
        trajectory = StoredTrajectory(descent, descent.views(randomness), self.states)
        end = trajectory.forwards(start)
        terminal = terminal_loss(end.position)
        gradients = trajectory.backwards(terminal.adjoint, recurrent=self.recurrent)
        return Outcome(with_gradient(terminal.loss, learned_tensors(descent.points), gradients), end)


@dataclass(frozen=True)
class Detached(Stored):
    """TESLA's rewriting (Cui et al. 2023): each step's gradient at parameters held fixed, lambda_t = lambda_k."""

    recurrent: ClassVar[bool] = False


@dataclass(frozen=True)
class Differences(GradientEstimator):
    """The adjoint with differences of U at theta_t + h q_t and theta_t - h q_t in place of second derivatives.

    h is such that h P lambda_k has ``radius`` times the length that the loss gives, such as the distance it measures.
    For a smooth U this is exact to second order in h. A network of ReLUs is not smooth: the descent jumps where a unit
    switches, which the exact derivative does not see and a difference does.
    """

    radius: float = 0.3
    states: int = STATES

    def __post_init__(self) -> None:
        _require_states(self.states)
        if not self.radius > 0:
            raise InputError(f"The radius of the differences must be positive; got {self.radius}.")

    def differentiate(
        self,
        descent: Descent,
        start: Motion,
        terminal_loss: TerminalLoss,
        trajectories: Trajectories,
        randomness: Randomness,
    ) -> Outcome:
        trajectory = trajectories.trajectory(descent, len(start.position), self.states, randomness)
        end = trajectory.forwards(start)
        terminal = terminal_loss(end.position)
        pull = descent.hastened(terminal.adjoint)
        gradients = trajectory.backwards(terminal.adjoint, spacing(self.radius * terminal.length, pull))
        return Outcome(with_gradient(terminal.loss, learned_tensors(descent.points), gradients), end)


GRADIENTS: Registry[Callable[..., GradientEstimator]] = Registry(
    "gradient", {"exact": Exact, "stored": Stored, "differences": Differences, "detached": Detached}
)
"""Every estimator by name."""


def build_gradient(gradient: str | GradientEstimator) -> GradientEstimator:
    """The estimator that is named; an object as it is."""
    return build_named(GRADIENTS, gradient) if isinstance(gradient, str) else gradient


def spacing(length: Tensor, pull: Tensor) -> Tensor:
    """h (chains, 1) such that h times the pull has this length (chains, 1); the length itself where that is zero."""
    norm = pull.norm(dim=-1, keepdim=True)
    return length / norm.where(norm > torch.finfo(norm.dtype).tiny, 1.0)


def _require_states(states: int) -> None:
    if states < 2:
        raise InputError(f"At least two states of a descent are kept; got {states}.")
