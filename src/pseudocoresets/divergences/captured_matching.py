"""Trajectory matching on the fast path: what it asks of a captured trajectory, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pseudocoresets.accelerated import trajectory_block_length
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.divergences.contrastive import STEP_SIZE
from pseudocoresets.divergences.method import Points, Problem
from pseudocoresets.energy import Classifier
from pseudocoresets.seeds import Randomness

if TYPE_CHECKING:
    from pseudocoresets.accelerated.trajectory import CapturedTrajectory


class CapturedMatching:
    """Descents on the points from several places, and the gradients of a function of their ends, added up.

    Only the positions between blocks are kept; a block is run again when its adjoint needs what lies inside.
    """

    def __init__(self, x: Tensor, runner: CapturedTrajectory, blocks: Sequence[Transformation]) -> None:
        self._runner = runner
        self._blocks = blocks
        self._leaf = x.detach().requires_grad_()
        self._run_from: Tensor | None = None
        self._seen = self._leaf
        self.image_gradient = torch.zeros_like(self._leaf)
        self.step_size_gradient = torch.zeros((), device=self._leaf.device)
        self.label_gradient: Tensor | None = None
        """Of soft labels; hard ones have none."""

    def forwards(self, start: Tensor) -> list[Tensor]:
        """Positions (size,) before the first block, between blocks, and after the last."""
        positions = [start]
        for block in range(len(self._blocks)):
            positions.append(self._run(positions[-1], block))
        return positions

    def backwards(self, positions: Sequence[Tensor], costate: Tensor, spacing: Tensor) -> None:
        """Add the gradients that belong to dL/dtheta_k = ``costate`` at the end of ``positions``."""
        for block in reversed(range(len(self._blocks))):
            if self._run_from is not positions[block]:
                self._run(positions[block], block)
            adjoint = self._runner.backwards(costate, spacing)
            (gradient,) = torch.autograd.grad(self._seen, self._leaf, adjoint.images)
            self.image_gradient += gradient
            self.step_size_gradient += adjoint.step_size
            if adjoint.labels is not None:
                before = self.label_gradient
                self.label_gradient = adjoint.labels if before is None else before + adjoint.labels
            costate = adjoint.costate

    def _run(self, start: Tensor, block: int) -> Tensor:
        with torch.enable_grad():
            self._seen = self._blocks[block](self._leaf.expand(1, self._runner.steps, *self._leaf.shape))[0]
        self._run_from = start
        return self._runner.forwards(start, self._seen.detach())


def captured_matching(points: Points, problem: Problem, steps: int, randomness: Randomness) -> CapturedMatching | None:
    """Matching over ``steps`` steps with augmentations drawn now, or None where the fast path does not apply."""
    model, images = problem.energy.model, len(points.x)
    if not isinstance(model, Classifier) or not points.x.is_cuda:
        return None
    length = trajectory_block_length(steps, images)
    soft = points.y.is_floating_point()
    runner = problem.accelerator.trajectory_for(model.network, points.x.device, images, length, soft)
    if runner is None:
        return None
    factors = points.weights.detach() / problem.energy.data_size
    runner.set_points(points.y.detach(), factors, points.extras[STEP_SIZE], problem.decay(model))
    blocks = [problem.block_transformation(length, images, randomness) for _ in range(steps // length)]
    return CapturedMatching(points.x, runner, blocks)
