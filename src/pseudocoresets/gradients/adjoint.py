"""The adjoint of a coreset's descent: the gradient of a function of its end, holding the graph of one step at a time.

For the descent (see ``Descent``)

    v_{t+1}     = mu v_t + g_t,      g_t = grad_theta U(theta_t; A_t x),      t = 0 .. k-1
    theta_{t+1} = theta_t - eta P v_{t+1}

and a loss L(theta_k), the adjoint runs backwards from lambda_k = dL/dtheta_k and q_k = 0:

    q_t       = P lambda_{t+1} + mu q_{t+1}
    s_t       = < g_t, q_t >
    dL/dx    -= eta grad_x s_t
    dL/deta  -= < P v_{t+1}, lambda_{t+1} >
    lambda_t  = lambda_{t+1} - eta grad_theta s_t

(labels and weights like x). Without momentum (mu = 0) and with P = I, q_t is lambda_{t+1} and v_{t+1} is g_t. With a
spacing h, s_t = [U(theta_t + h q_t) - U(theta_t - h q_t)] / (2 h): first derivatives only.

The states theta_t, v_t are needed from the last to the first. B = ``states`` of them are kept, evenly spaced, and the
steps between two of them are run again when the adjoint comes to them. So at most B states for each power of B in k are
held (32 for k <= 32, 64 for k <= 1024), at the price of one more forward run for each power beyond the first. With
B >= k nothing is run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.state import AdjointState, Motion
from pseudocoresets.gradients.descent import Descent, View
from pseudocoresets.gradients.learned import LEARNED_STEP_SIZE, detached_leaves, learned_tensors


class StepGradients(NamedTuple):
    """The gradients of - eta s_t in theta, and in everything learned but eta."""

    theta: Tensor
    learned: Mapping[str, Tensor]


class StoredTrajectory:
    """A descent of which a few states are kept, so that its adjoint can be run."""

    def __init__(self, descent: Descent, views: Sequence[View], states: int) -> None:
        self._descent = descent
        self._points = descent.points.detached()
        self._views = views
        self._states = states
        self._kept: list[Motion] = []
        self._end = descent.points.x.new_empty(0)
        self.held = 0
        """States that are kept at this moment."""

    def run(self, start: Motion) -> Motion:
        """theta_k and v_k, keeping nothing."""
        return self._run(start, 0, len(self._views))

    def forwards(self, start: Motion) -> Motion:
        """theta_k and v_k, keeping what ``backwards`` needs."""
        last = len(self._views)
        self._kept = self._keep(start, 0, last)
        end = self._run(self._kept[-1], self._places(0, last)[-1], last)
        self._end = end.position
        return end

    def backwards(self, adjoint: Tensor, spacing: Tensor | None = None, recurrent: bool = True) -> dict[str, Tensor]:
        """dL/dz for each learned tensor z, from ``adjoint`` = lambda_k; once for each ``forwards``.

        With a ``spacing`` h (chains, 1), s_t are differences; ``recurrent = False`` keeps lambda_t = lambda_k.
        """
        leaves = detached_leaves(self._descent.points)
        wanted = learned_tensors(leaves)
        gradients = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        state, following = AdjointState(adjoint, self._descent.hastened(adjoint)), self._end
        for t, theta in self.positions():
            change = self._step_gradients(leaves, wanted, t, theta, state.pull, spacing)
            for name, gradient in change.learned.items():
                gradients[name] += gradient
            if LEARNED_STEP_SIZE in wanted:
                velocity = (theta - following) / self._step_size(t)
                gradients[LEARNED_STEP_SIZE][self._descent.which_step_size(t)] -= (velocity * state.adjoint).sum()
            before = state.adjoint + change.theta if recurrent else state.adjoint
            state = AdjointState(before, self._descent.hastened(before) + self._descent.momentum * state.pull)
            following = theta
        return gradients

    def positions(self) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = k - 1 .. 0, once for each ``forwards``."""
        yield from self._unwind(self._kept, 0, len(self._views))

    def _step_gradients(
        self,
        leaves: Points,
        wanted: Mapping[str, Tensor],
        t: int,
        theta: Tensor,
        pull: Tensor,
        spacing: Tensor | None,
    ) -> StepGradients:
        view, theta = self._views[t], theta.detach().requires_grad_()
        with torch.enable_grad():
            if spacing is None:
                along = (self._descent.potential_gradient(leaves, view, theta, differentiable=True) * pull).sum()
            else:
                ends = torch.cat([theta + spacing * pull, theta - spacing * pull])
                above, below = self._descent.potentials(leaves, view, ends).chunk(2)
                along = ((above - below) / (2 * spacing.squeeze(-1))).sum()
            moved = -self._step_size(t) * along
        found = torch.autograd.grad(moved, [theta, *wanted.values()], allow_unused=True, materialize_grads=True)
        return StepGradients(found[0], dict(zip(wanted, found[1:], strict=True)))

    def _unwind(self, kept: list[Motion], first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = last - 1 .. first, from the states at this stretch's places."""
        places = self._places(first, last)
        for place in reversed(places):
            motion = kept.pop()
            if places.step == 1:
                yield place, motion.position
            else:
                end = min(place + places.step, last)
                yield from self._unwind(self._keep(motion, place, end), place, end)
            self.held -= 1

    def _keep(self, start: Motion, first: int, last: int) -> list[Motion]:
        """The states at the places of a stretch."""
        places = self._places(first, last)
        kept = [start]
        for place in places[:-1]:
            kept.append(self._run(kept[-1], place, place + places.step))
        self.held += len(kept)
        return kept

    def _places(self, first: int, last: int) -> range:
        """Where a stretch is kept: at most ``states`` places, a power of ``states`` apart."""
        step = 1
        while step * self._states < last - first:
            step *= self._states
        return range(first, last, step)

    def _run(self, motion: Motion, first: int, last: int) -> Motion:
        position, velocity = motion
        for t in range(first, last):
            theta = position.detach().requires_grad_()
            with torch.enable_grad():
                gradient = self._descent.potential_gradient(self._points, self._views[t], theta, differentiable=False)
            velocity = self._descent.momentum * velocity + gradient
            position = (theta - self._step_size(t) * self._descent.hastened(velocity)).detach()
        return Motion(position, velocity)

    def _step_size(self, t: int) -> Tensor:
        return self._descent.step_size.detach()[self._descent.which_step_size(t)]
