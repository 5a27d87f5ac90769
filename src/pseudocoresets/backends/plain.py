"""Everything by PyTorch's own operations and autograd: in the tensors' own precision, on any device, for any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from pseudocoresets.backends.backend import IMAGES_PER_BLOCK, ChainPlan, ChainRunner, MeanEnergies
from pseudocoresets.core.energy import DifferentiatedModel, Energy, Model, Target, without_noise
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.data.augmentation import AnyAugmentation, Transformation
from pseudocoresets.dp import (
    ExampleVectors,
    LayerwiseGradients,
    clipped_sum,
    is_layerwise,
    per_example_gradients,
)
from pseudocoresets.gradients.adjoint import StoredTrajectory
from pseudocoresets.gradients.descent import Descent, Trajectory
from pseudocoresets.kernels import AnyKernel, is_adjusted, transitions
from pseudocoresets.models.classifier import Classifier, differentiated
from pseudocoresets.models.networks import Network

T = TypeVar("T")
DATA_AT_ONCE = 256
"""Points of a batch whose likelihood is computed together."""


class PlainBackend:
    """The definition of every job; see ``Backend``."""

    captures = False

    def energies(self, energy: Energy, thetas: Tensor, x: Tensor, points: Points) -> Tensor:
        return energy.per_datum(thetas, x, points.y, points.weights)

    def probabilities(self, network: Network, thetas: Tensor, inputs: Tensor) -> Tensor:
        return torch.stack([network.logits(theta, inputs).float().softmax(-1) for theta in thetas])

    def mean_energies(self, model: Model, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        total = thetas.new_zeros(len(thetas))
        with torch.no_grad():
            for inputs, targets in zip(x.split(DATA_AT_ONCE), y.split(DATA_AT_ONCE), strict=True):
                total -= model.log_likelihood(thetas, inputs, targets).sum(-1)
        return total / len(x)

    def mean_energies_and_gradients(self, model: Model, thetas: Tensor, x: Tensor, y: Tensor) -> MeanEnergies:
        thetas = thetas.detach().requires_grad_()
        energies, gradients = thetas.new_zeros(len(thetas)), torch.zeros_like(thetas)
        for inputs, targets in zip(x.split(DATA_AT_ONCE), y.split(DATA_AT_ONCE), strict=True):
            with torch.enable_grad():
                part = -model.log_likelihood(thetas, inputs, targets).sum(-1) / len(x)
            energies += part.detach()
            gradients += torch.autograd.grad(part.sum(), thetas)[0]
        return MeanEnergies(energies, gradients)

    def clipped_gradients(
        self, network: Network, theta: Tensor, x: Tensor, y: Tensor, norm: float, admitted: Tensor | None = None
    ) -> Tensor:
        return clipped_sum(example_gradients(network, theta, x, y), norm, admitted)

    def features(self, network: Network, theta: Tensor, x: Tensor) -> Tensor:
        return network.features(theta.detach(), x)

    def layer_features(self, network: Network, theta: Tensor, x: Tensor) -> list[Tensor]:
        return network.layer_features(theta.detach(), x)

    def augmentation(self, given: AnyAugmentation | None, shape: Sequence[int]) -> AnyAugmentation | None:
        return given

    def repeated(self, work: Callable[[Randomness], T]) -> Callable[[Randomness], T]:
        return work

    def chains(
        self,
        network: Network,
        device: torch.device,
        count: int,
        images: int,
        steps: int,
        soft: bool,
        shared: bool,
        images_per_block: int = IMAGES_PER_BLOCK,
    ) -> ChainRunner:
        return PlainChains(network, device, count, shared)

    def run_chain(
        self,
        plan: ChainPlan,
        start: Tensor,
        randomness: Randomness,
        on_steps: Callable[[int], object] | None = None,
    ) -> Tensor:
        fixed, kept = plan.points.detached(), []
        augment = chain_augmentation(plan.kernel, len(fixed), plan.augmentation, randomness)
        target = self.target(plan.energy, fixed, augment)
        if not plan.noisy:
            target = without_noise(target)
        steps = transitions(plan.kernel, start, target, plan.steps, randomness.device, plan.schedule)
        for t, (state, _) in enumerate(steps, 1):
            if t in plan.kept_steps:
                kept.append(state.position.detach())
            if on_steps is not None:
                on_steps(1)
        return torch.stack(kept)

    def target(self, energy: Energy, points: Points, augment: Transformation | None = None) -> Target:
        own = replace(energy, model=differentiated(energy.model, points.x.device))
        return own.target(points.x, points.y, points.weights, augment)

    def trajectory(self, descent: Descent, chains: int, states: int, randomness: Randomness) -> Trajectory:
        return StoredTrajectory(descent, descent.views(randomness), states)


def example_gradients(network: Network, theta: Tensor, x: Tensor, y: Tensor) -> ExampleVectors:
    """Layer by layer for a network that is a stack of known layers, else by ``vmap``."""
    if is_layerwise(network):
        return LayerwiseGradients(network)(theta, x, y)
    return ExampleVectors.of(per_example_gradients(network, theta, x, y))


class PlainChains:
    """Chains in blocks of one step each; see ``ChainRunner``.

    v <- mu v + grad (sum_i s_i cross-entropy_i) + decay theta + noise N(0, I),    theta <- theta - eta v
    """

    def __init__(self, network: Network, device: torch.device, chains: int, shared: bool) -> None:
        self.chains, self.steps = chains, 1
        self._model = differentiated(Classifier(network), device)
        self._shared = shared
        self._theta = torch.zeros(chains, network.size, device=device)
        self._velocity = torch.zeros_like(self._theta)
        self._y = self._factors = self._theta
        self._rates, self._decay = Rates(0.0), 0.0

    def set_position(self, theta: Tensor) -> None:
        self._theta, self._velocity = theta.detach().clone(), torch.zeros_like(theta)

    def position(self) -> Tensor:
        return self._theta.clone()

    def set_rates(self, rates: Rates | Sequence[Rates], decay: float = 0.0) -> None:
        self._rates, self._decay = (rates if isinstance(rates, Rates) else rates[0]), decay

    def set_labels(self, y: Tensor, factors: Tensor) -> None:
        self._y, self._factors = y, factors

    def run_block(self, x: Tensor, augmentation: AnyAugmentation | None, randomness: Randomness) -> None:
        images = x.flatten(1, 2)
        if augmentation is not None:
            drawn = augmentation.draw(images.shape[0] * images.shape[1], randomness)
            images = drawn(images.flatten(0, 1)).view_as(images)
        eta, noise, momentum = self._rates
        velocity = momentum * self._velocity + self._gradient(images) + self._decay * self._theta
        if noise:
            generator, like = randomness.device, self._theta
            velocity += noise * torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        self._velocity, self._theta = velocity, self._theta - eta * velocity

    def _gradient(self, images: Tensor) -> Tensor:
        """Of the energies of images (sources, images, ...), whose labels may lack the dimensions before the images."""
        count, soft = images.shape[1], self._y.is_floating_point()
        y = self._y.reshape(-1, count, *self._y.shape[-1:] if soft else ())
        factors = self._factors.reshape(-1, count)
        if self._shared:
            images, y = images[0], y[0]
        if isinstance(self._model, DifferentiatedModel):
            return self._model.log_likelihood_and_gradient(self._theta, images, y, -factors)[1]
        theta = self._theta.requires_grad_()
        with torch.enable_grad():
            energy = -(factors * self._model.log_likelihood(theta, images, y)).sum()
        (gradient,) = torch.autograd.grad(energy, theta)
        self._theta = theta.detach()
        return gradient


def chain_augmentation(
    kernel: AnyKernel, count: int, augmentation: AnyAugmentation | None, randomness: Randomness
) -> Transformation | None:
    """Drawn afresh at each step; once for a kernel that accepts or rejects, whose potential must not change."""
    if augmentation is None:
        return None
    if is_adjusted(kernel):
        return augmentation.draw(count, randomness)
    return lambda x: augmentation.draw(len(x), randomness)(x)
