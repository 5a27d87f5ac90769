"""A coreset's descent and its adjoint on a captured trajectory, block by block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.backends.fused.trajectory import CapturedTrajectory
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import AdjointState, Motion
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.gradients.descent import Descent, chosen_rows, draw_subsets
from pseudocoresets.gradients.learned import LEARNED_STEP_SIZE


class Block(NamedTuple):
    """What a block's steps see: which points (steps, count), None for all of them, and under which augmentation."""

    subsets: Tensor | None
    transformation: Transformation | None

    def of(self, points: Tensor, steps: int) -> Tensor:
        """Rows of ``points`` for each step: (steps, count, ...)."""
        if self.subsets is None:
            return points.expand(steps, *points.shape)
        return chosen_rows(points, self.subsets)

    def images(self, points: Tensor, steps: int) -> Tensor:
        """The same, augmented."""
        seen = self.of(points, steps)
        return seen if self.transformation is None else self.transformation(seen[None])[0]


class CapturedDescent:
    """A descent with its views drawn, and the gradients of a function of its end; see ``gradients.Trajectory``.

    Only the states between blocks are kept; a block is run again when its adjoint needs what lies inside.
    """

    def __init__(
        self, descent: Descent, runner: CapturedTrajectory, images: int, decay: float, randomness: Randomness
    ) -> None:
        points, count = descent.points, len(descent.points)
        self._runner, self._descent, self._decay = runner, descent, decay
        self._name = object()
        self._share = count / images / descent.energy.data_size
        self._blocks = [
            _draw_block(descent, runner.steps, images, randomness) for _ in range(descent.steps // runner.steps)
        ]
        self._x = points.x.detach().requires_grad_()
        self._y = points.y.detach().requires_grad_(points.y.is_floating_point())
        self._weights = points.weights.detach().requires_grad_(points.weights.requires_grad)
        self._motions: list[Motion] = []
        self._seen, self._labels, self._factors = self._x, self._y, self._weights

    def run(self, start: Motion) -> Motion:
        return self.forwards(start)

    def forwards(self, start: Motion) -> Motion:
        self._motions = [start]
        for number in range(len(self._blocks)):
            self._motions.append(self._run(number))
        return self._motions[-1]

    def backwards(self, adjoint: Tensor, spacing: Tensor) -> dict[str, Tensor]:
        state = AdjointState(adjoint, self._descent.hastened(adjoint))
        gradients = {"x": torch.zeros_like(self._x), LEARNED_STEP_SIZE: torch.zeros((), device=self._x.device)}
        if self._y.requires_grad:
            gradients["y"] = torch.zeros_like(self._y)
        if self._weights.requires_grad:
            gradients["weights"] = torch.zeros_like(self._weights)
        for number in reversed(range(len(self._blocks))):
            if self._runner.ran != (self._name, number):
                self._run(number)
            found = self._runner.backwards(state, spacing.squeeze(1))
            gradients["x"] += torch.autograd.grad(self._seen, self._x, found.images)[0]
            if "y" in gradients:
                gradients["y"] += torch.autograd.grad(self._labels, self._y, found.labels)[0]
            if "weights" in gradients:
                of_factors = self._runner.factor_gradient()
                gradients["weights"] += torch.autograd.grad(self._factors, self._weights, of_factors)[0]
            gradients[LEARNED_STEP_SIZE] += found.step_size
            state = found.before
        return gradients

    def _run(self, number: int) -> Motion:
        """A block from where it starts; descents of one shape share the runner, which knows whose block it ran last."""
        descent, runner, block, steps = self._descent, self._runner, self._blocks[number], self._runner.steps
        runner.set_rates(descent.step_size, self._decay, descent.momentum, descent.speeds)
        with torch.enable_grad():
            self._seen = block.images(self._x, steps)
            self._labels = block.of(self._y, steps)
            self._factors = self._share * block.of(self._weights, steps)
        runner.ran = (self._name, number)
        start = self._motions[number]
        return runner.forwards(start, self._seen.detach(), self._labels.detach(), self._factors.detach())


def _draw_block(descent: Descent, steps: int, images: int, randomness: Randomness) -> Block:
    subsets = draw_subsets(steps, len(descent.points), images, randomness)
    augmentation = descent.augmentation
    return Block(subsets, None if augmentation is None else augmentation.draw_steps(steps, images, randomness))
