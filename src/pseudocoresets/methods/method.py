"""What a construction method is: one estimate of a loss whose gradient moves the pseudo-coreset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pseudocoresets.backends.fused import Accelerator, block_length, default_accelerator
from pseudocoresets.core.energy import Energy, FunctionTarget
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import sampling_rates
from pseudocoresets.data.augmentation import Augmentation, Transformation
from pseudocoresets.kernels import AnyKernel, Langevin, advance, is_adjusted
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.sources.experts.store import Draw


class ParameterSource(Protocol):
    """Where samples of the (approximate) full-data posterior come from; expert trajectories are one."""

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw: ...


class RealData:
    """The full data as bytes on the device; batches are mapped to the model's input space when drawn."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self._images = images
        self._labels = labels
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """``size`` points drawn with replacement: inputs and labels."""
        device = randomness.device.device
        index = torch.randint(len(self), (size,), generator=randomness.device, device=device)
        return self.points(index)

    def points(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of chosen points."""
        return self._transform(self._images[index]), self._labels[index]


@dataclass(frozen=True)
class Problem:
    """What a method may ask: the energy, samples of the full-data posterior, the real data, augmentation."""

    energy: Energy
    experts: ParameterSource | None = None
    real_data: Callable[[], RealData] | None = None
    augmentation: Augmentation | None = None
    accelerator: Accelerator = field(default_factory=default_accelerator)

    def energies(self, thetas: Tensor, x: Tensor, points: Points) -> Tensor:
        """E(x, theta_j) / n for each parameter set, with the labels and weights of ``points``."""
        model, data_size = self.energy.model, self.energy.data_size
        if isinstance(model, Classifier):
            fast = self.accelerator.energies(model.network, thetas, x, points.y, points.weights / data_size)
            if fast is not None:
                return fast
        return self.energy.per_datum(thetas, x, points.y, points.weights)

    def probabilities(self, thetas: Tensor, x: Tensor) -> Tensor | None:
        """Class probabilities (len(thetas), len(x), classes) on the fast path, without a graph; None elsewhere."""
        model = self.energy.model
        return self.accelerator.probabilities(model.network, thetas, x) if isinstance(model, Classifier) else None

    def slopes(self, thetas: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """A batch's mean energy at ``thetas`` (chains, size) and its gradients on the fast path; None elsewhere."""
        model = self.energy.model
        return self.accelerator.slopes(model.network, thetas, x, y) if isinstance(model, Classifier) else None

    def run_chain(
        self, kernel: AnyKernel, start: Tensor, points: Points, steps: int, randomness: Randomness, noisy: bool = True
    ) -> Tensor:
        """The end of ``steps`` kernel steps from ``start`` on the posterior of ``points``; no graph.

        Without noise, the temperature is zero: Langevin is then gradient descent.
        """
        fixed = points.detached()
        if isinstance(kernel, Langevin):
            end = self._run_captured(kernel, start, fixed, steps, randomness, noisy)
            if end is not None:
                return end
        augment = chain_augmentation(kernel, len(fixed.x), self, randomness)
        target = self.energy.target(fixed.x, fixed.y, fixed.weights, augment)
        if not noisy:
            target = FunctionTarget(target.potential, 0.0)
        return advance(kernel, start, target, steps, randomness.device)

    def _run_captured(
        self, kernel: Langevin, start: Tensor, points: Points, steps: int, randomness: Randomness, noisy: bool
    ) -> Tensor | None:
        """The same on the fast path, or None where it does not apply."""
        model, device = self.energy.model, start.device
        if not isinstance(model, Classifier) or device.type != "cuda":
            return None
        images = len(points.x)
        runner = self.accelerator.chains_for(
            model.network,
            device,
            len(start),
            images,
            block_length(steps, images),
            points.y.is_floating_point(),
            shared=True,
        )
        if runner is None:
            return None
        temperature = self.energy.temperature / self.energy.data_size if noisy else 0.0
        runner.set_position(start)
        runner.set_rates(sampling_rates(kernel.step_size, temperature), model.decay(self.energy.data_size))
        runner.set_labels(points.y, points.weights / self.energy.data_size)
        for _ in range(steps // runner.steps):
            runner.run_block(points.x.expand(1, runner.steps, *points.x.shape), self.augmentation, randomness)
        return runner.position()

    def transformation(self, count: int, randomness: Randomness) -> Transformation:
        """One drawn augmentation for ``count`` points, or the identity."""
        return _identity if self.augmentation is None else self.augmentation.draw(count, randomness)

    def subsets(self, steps: int, count: int, size: int, randomness: Randomness) -> Tensor | None:
        """Which of ``count`` points each step sees, (steps, size): shuffled, then used up before shuffled again.

        None where every step sees them all, which is what a ``size`` of 0 asks for.
        """
        if size == 0 or size >= count:
            return None
        shuffles = -(-steps * size // count)
        device = randomness.device.device
        order = torch.rand(shuffles, count, generator=randomness.device, device=device).argsort(1)
        return order.flatten()[: steps * size].view(steps, size)

    def block_transformation(self, steps: int, count: int, randomness: Randomness) -> Transformation:
        """One drawn augmentation for each step of a block of points (1, steps, count, ...), or the identity."""
        return _identity if self.augmentation is None else self.augmentation.draw_steps(steps, count, randomness)


def chain_augmentation(kernel: AnyKernel, count: int, problem: Problem, randomness: Randomness) -> Transformation:
    """Drawn afresh at each step; once for a kernel that accepts or rejects, whose potential must not change."""
    if is_adjusted(kernel):
        return problem.transformation(count, randomness)
    return lambda x: problem.transformation(len(x), randomness)(x)


class Loss(NamedTuple):
    """A scalar whose gradient in the points is the method's estimate, and terms worth recording.

    ``state`` is what the method wants to find in ``Points.state`` next time, such as the places of chains.
    """

    value: Tensor
    terms: Mapping[str, Tensor]
    state: Mapping[str, Tensor] = MappingProxyType({})
    energies: tuple[str, ...] = ()
    """Which of the terms are energies per datum, whose size tells that a construction diverged."""


class Hyperparameter(NamedTuple):
    """A positive number that a method learns beside the points."""

    value: float
    learning_rate: float


class Method(Protocol):
    """One gradient estimator. It knows nothing of files, devices, progress or evaluation."""

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss: ...

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        """What the method itself learns, such as a step size; usually nothing."""
        ...


def _identity(x: Tensor) -> Tensor:
    return x
