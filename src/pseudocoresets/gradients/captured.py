"""Trajectory matching on the fast path: what it asks of a captured trajectory, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.backends.fused import trajectory_block_length
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE, Costate, Motion
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.methods.method import Problem
from pseudocoresets.models.classifier import Classifier

if TYPE_CHECKING:
    from pseudocoresets.backends.fused.trajectory import CapturedTrajectory


class Block(NamedTuple):
    """What a block's steps see: which points (steps, count), None for all of them, and under which augmentation."""

    subsets: Tensor | None
    transformation: Transformation

    def of(self, points: Tensor, steps: int) -> Tensor:
        """Rows of ``points`` for each step: (steps, count, ...)."""
        return points.expand(steps, *points.shape) if self.subsets is None else points[self.subsets]


class CapturedMatching:
    """Descents of several chains on the points, and the gradients of a function of their ends.

    Only the states between blocks are kept; a block is run again when its adjoint needs what lies inside.
    """

    def __init__(self, points: Points, factors: Tensor, runner: CapturedTrajectory, blocks: Sequence[Block]) -> None:
        self._runner = runner
        self._blocks = blocks
        self._factors = factors
        self._x = points.x.detach().requires_grad_()
        self._y = points.y.detach().requires_grad_(points.y.is_floating_point())
        self._run_from: Motion | None = None
        self._seen, self._labels = self._x, self._y
        self.image_gradient = torch.zeros_like(self._x)
        self.label_gradient = torch.zeros_like(self._y) if self._y.requires_grad else None
        """Of soft labels; hard ones have none."""
        self.step_size_gradient = torch.zeros((), device=self._x.device)

    def forwards(self, start: Motion) -> list[Motion]:
        """The chains before the first block, between blocks, and after the last."""
        motions = [start]
        for block in self._blocks:
            motions.append(self._run(motions[-1], block))
        return motions

    def backwards(self, motions: Sequence[Motion], end: Tensor, spacing: Tensor) -> None:
        """The gradients that belong to dL/dtheta_k = ``end`` (chains, size) at the end of ``motions``."""
        costate = Costate(end, end)
        for motion, block in reversed(list(zip(motions, self._blocks, strict=False))):
            if self._run_from is not motion:
                self._run(motion, block)
            adjoint = self._runner.backwards(costate, spacing)
            self.image_gradient += torch.autograd.grad(self._seen, self._x, adjoint.images)[0]
            if self.label_gradient is not None:
                self.label_gradient += torch.autograd.grad(self._labels, self._y, adjoint.labels)[0]
            self.step_size_gradient += adjoint.step_size
            costate = adjoint.costate

    def _run(self, start: Motion, block: Block) -> Motion:
        steps = self._runner.steps
        with torch.enable_grad():
            self._seen = block.transformation(block.of(self._x, steps)[None])[0]
            self._labels = block.of(self._y, steps)
        self._run_from = start
        factors = block.of(self._factors, steps)
        return self._runner.forwards(start, self._seen.detach(), self._labels.detach(), factors)


def captured_matching(
    points: Points,
    problem: Problem,
    chains: int,
    steps: int,
    points_per_step: int,
    randomness: Randomness,
    momentum: float = 0.0,
) -> CapturedMatching | None:
    """Descents of ``steps`` steps with views drawn now, or None where the fast path does not apply."""
    model, count = problem.energy.model, len(points.x)
    if not isinstance(model, Classifier):
        return None
    images = min(points_per_step or count, count)
    length = trajectory_block_length(steps, images)
    soft = points.y.is_floating_point()
    runner = problem.accelerator.trajectory_for(model.network, points.x.device, chains, images, length, soft)
    if runner is None:
        return None
    runner.set_rates(points.hyperparameters[STEP_SIZE], model.decay(problem.energy.data_size), momentum)
    factors = points.weights.detach() * (count / images / problem.energy.data_size)
    blocks = [_draw_block(problem, length, count, images, randomness) for _ in range(steps // length)]
    return CapturedMatching(points, factors, runner, blocks)


def _draw_block(problem: Problem, steps: int, count: int, images: int, randomness: Randomness) -> Block:
    subsets = problem.subsets(steps, count, images, randomness)
    return Block(subsets, problem.block_transformation(steps, images, randomness))
