"""Small problems with known answers, on which construction methods are tested."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.methods import Points, Problem, RealData
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network

DOUBLE = torch.float64


@dataclass(frozen=True)
class GaussianModel:
    """x_i ~ N(theta, spread^2 I) with the prior N(0, I): everything about it is known. Labels play no part."""

    size: int = 2
    spread: float = 0.7

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -(x - theta[..., None, :]).square().sum(-1) / (2 * self.spread**2)

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / 2

    def posterior(self, x: Tensor, weights: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Mean and variance (of each coordinate) of exp(-n U / temperature)."""
        precision = weights.sum() / self.spread**2 + 1
        return (weights[:, None] * x).sum(0) / self.spread**2 / precision, temperature / precision


class PreciseClassifier(Classifier):
    """The softmax likelihood in the parameters' own precision."""

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        log_probabilities = F.log_softmax(self.network.logits(theta, x), -1)
        soft = y if y.is_floating_point() else F.one_hot(y, log_probabilities.shape[-1]).to(log_probabilities)
        return (log_probabilities * soft).sum(-1)


@dataclass(frozen=True)
class FixedSource:
    """Experts that always give the same pair of snapshots, each (chains, size)."""

    start: Tensor
    later: Tensor

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        assert count == len(self.start)
        return Draw(self.start, self.start if expert_epochs == 0 else self.later)


def gaussian_kl(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """KL(N(mean, variance I) || N(other_mean, other_variance I))."""
    size = len(mean)
    distance = (mean - other_mean).square().sum()
    ratio = variance / other_variance
    return (size * ratio + distance / other_variance - size - size * ratio.log()) / 2


def gaussian_points(count: int = 3, total: float = 40.0, seed: int = 0) -> Points:
    """Pseudo-points and unequal weights, both asking for gradients."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=DOUBLE).requires_grad_()
    weights = torch.rand(count, generator=generator, dtype=DOUBLE) + 0.5
    weights = (total * weights / weights.sum()).requires_grad_()
    return Points(x, torch.zeros(count, dtype=torch.long), weights)


def gaussian_real_data(count: int = 40, seed: int = 1) -> RealData:
    generator = torch.Generator().manual_seed(seed)
    x = 0.7 * torch.randn(count, 2, generator=generator, dtype=DOUBLE) + torch.tensor([1.0, -0.5], dtype=DOUBLE)
    return RealData(x, torch.zeros(count, dtype=torch.long), lambda images: images)


def small_network() -> Network:
    """A convolutional network of 8 x 8 images with a norm, in three classes."""
    return build_network("convnet:depth=2,width=4", (1, 8, 8), 3)


def network_problem(chains: int = 2, augmentation: object = None, data_size: int = 100, **model: float) -> Problem:
    """Snapshots of random networks a little apart, in double precision."""
    network = small_network()
    start = network.initialise(0, chains).to(DOUBLE)
    generator = torch.Generator().manual_seed(5)
    later = start + 0.05 * torch.randn(start.shape, generator=generator, dtype=DOUBLE)
    energy = Energy(PreciseClassifier(network, **model), data_size)
    return Problem(energy, FixedSource(start, later), augmentation=augmentation)  # type: ignore[arg-type]


def network_points(
    count: int = 6, data_size: int = 100, learned: bool = True, **hyperparameters: float | tuple[float, ...]
) -> Points:
    """Images, soft labels, unequal weights and extras, all asking for gradients where ``learned``."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=DOUBLE)
    y = torch.randn(count, 3, generator=generator, dtype=DOUBLE).softmax(-1)
    weights = torch.rand(count, generator=generator, dtype=DOUBLE) + 0.5
    weights = data_size * weights / weights.sum()
    own = {name: torch.tensor(value, dtype=DOUBLE) for name, value in hyperparameters.items()}
    for tensor in [x, y, weights, *own.values()]:
        tensor.requires_grad_(learned)
    return Points(x, y, weights, own)


def gradients(value: Tensor, points: Points) -> dict[str, Tensor]:
    """The gradient of a loss in everything that is learned."""
    named = {"x": points.x, "y": points.y, "weights": points.weights, **points.hyperparameters}
    wanted = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
    found = torch.autograd.grad(value, list(wanted.values()), materialize_grads=True, allow_unused=True)
    return dict(zip(wanted, found, strict=True))
