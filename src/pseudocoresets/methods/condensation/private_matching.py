"""Distribution matching from one noisy release: the private form of ``dm``.

K networks theta_k are drawn by their initialisation, each with one augmentation A_k, and the embedding of an image is

    psi(x) = sqrt((1 - a^2) / K) (u_1(x), ..., u_K(x)),    u_k(x) = (f_k(A_k x) - m_k) / |f_k(A_k x) - m_k|,

f_k being the input of the last linear layer and m_k its mean over images of noise, which owe nothing to the data. With
a constant entry, (psi(x), a) has norm one whatever the image is, so no norm has to be chosen to clip it to. Once,
before the first iteration, the data are read, and for each class c

    (S_c, N_c) = sum_{i: y_i = c} (psi(x_i), a) + N(0, z^2 I)

is released: an example is in one of the sums, which it changes by at most one. The class means S_c / (N_c / a) are all
that the images are then learned from, by as many iterations as one likes,

    L = 1 / |B| sum_{k in B} sum_c | mean_{j: y_j = c} u_k(s_j) - target_kc |^2,

with B some of the K networks. NDPDC (Zheng and Li 2024) decouples sampling from noise in a similar way but adds noise
to the sums of many rounds; here one release serves all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.seeds import Randomness, generator_for
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.dp import Entropy, SystemEntropy, clipped, noisy_sum
from pseudocoresets.methods.condensation.classes import class_means, membership
from pseudocoresets.methods.estimator import network_of
from pseudocoresets.methods.method import GradientMethod, Loss, StateShape
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.networks import Network

TARGETS, CENTRES = "released class means", "centres"
ENTROPY: Entropy = SystemEntropy()
FEATURES = "private features"
"""What the streams of a network and its augmentation are for."""
COUNT_ENTRY = 0.1
"""a: the share of the norm that counts the examples of a class."""
FEWEST = 0.1
"""A class is taken to have at least this part of an even share, whatever the noise says."""
NOISE_IMAGES, NOISE_SIDE = 256, 4


@dataclass(frozen=True)
class PrivateMatching(GradientMethod):
    """``networks`` random networks, ``at_once`` of which an iteration matches."""

    noise_multiplier: float
    networks: int = 64
    at_once: int = 4
    feature_seed: int = 0

    name: ClassVar[str] = "dm"
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require_at_least(networks=1, at_once=1, noise_multiplier=0)

    @property
    def repeats(self) -> bool:
        return True

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape]:
        network = network_of(problem, self.name)
        features = problem.backend.features(network, network.initialise(0), torch.zeros(1, *network.spec.shape)).shape[
            1
        ]
        return {TARGETS: (self.networks, network.spec.classes, features), CENTRES: (self.networks, features)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        network = network_of(problem, self.name)
        state = dict(points.state) or self.release(network, problem, points.x.device)
        members = membership(points, network.spec.classes)
        at_once = min(self.at_once, self.networks)
        picked, streams = randomness.numbered(
            lambda host: host.sample(range(self.networks), at_once), self.feature_seed, FEATURES
        )
        targets, centres = state[TARGETS][picked], state[CENTRES][picked]
        distances = []
        for number, stream in enumerate(streams):
            view = _view(network, problem, stream, centres[number])
            distances.append((class_means(view(points.x), members) - targets[number]).square().sum())
        distance = torch.stack(distances).mean()
        return Loss(distance, {"distance": distance.detach()}, state)

    def release(self, network: Network, problem: Problem, device: torch.device) -> dict[str, Tensor]:
        """Noisy class means of the full data, which are read here and nowhere else."""
        return self.published(*self.sums(network, problem, device), problem.energy.data_size)

    def sums(self, network: Network, problem: Problem, device: torch.device) -> tuple[Tensor, Tensor]:
        """Secret, in float64: sum_{i: y_i = c} (psi(x_i), a) for each class; and public: m_k for each network."""
        data, classes = problem.full_data(), network.spec.classes
        centres = torch.stack([self._centre(k, network, problem, device) for k in range(self.networks)])
        sums = [self._sums(self._view(k, network, problem, centres[k]), data, classes) for k in range(self.networks)]
        labels = torch.cat([y for _, y in data.batches()])
        counts = COUNT_ENTRY * labels.bincount(minlength=classes).double()
        return torch.cat([self._scale * torch.cat(sums, 1), counts[:, None]], 1), centres

    def published(self, total: Tensor, centres: Tensor, data_size: int) -> dict[str, Tensor]:
        """The class means (networks, classes, features) that noisy sums amount to, and the centres."""
        noisy, classes = noisy_sum(total, 1.0, self.noise_multiplier, ENTROPY), len(total)
        sizes = (noisy[:, -1] / COUNT_ENTRY).clamp_min(FEWEST * data_size / classes)
        means = noisy[:, :-1] / (self._scale * sizes[:, None])
        return {TARGETS: means.view(classes, self.networks, -1).transpose(0, 1).contiguous(), CENTRES: centres}

    @property
    def _scale(self) -> float:
        """sqrt((1 - a^2) / K)."""
        return math.sqrt((1 - COUNT_ENTRY**2) / self.networks)

    @staticmethod
    def _sums(view: Transformation, data: FullData, classes: int) -> Tensor:
        """sum_{i: y_i = c} u_k(x_i): (classes, features), float64."""
        with torch.no_grad():
            parts = [F.one_hot(y, classes).double().T @ clipped(view(x), 1.0).double() for x, y in data.batches()]
        return torch.stack(parts).sum(0)

    def _view(self, k: int, network: Network, problem: Problem, centre: Tensor) -> Transformation:
        """u_k, from images to (images, features)."""
        return _view(network, problem, self._streams(k, centre.device), centre)

    def _centre(self, k: int, network: Network, problem: Problem, device: torch.device) -> Tensor:
        """m_k."""
        noise = coarse_noise(NOISE_IMAGES, network, generator_for(self.feature_seed, "noise images", k)).to(device)
        with torch.no_grad():
            return _embedding(network, problem, self._streams(k, device))(noise).mean(0)

    def _streams(self, k: int, device: torch.device) -> Randomness:
        """Those that network k and its augmentation are drawn from."""
        return Randomness.for_purpose(self.feature_seed, FEATURES, k, device=device)


def _embedding(network: Network, problem: Problem, randomness: Randomness) -> Transformation:
    """f(A x)."""
    theta = network.draw(1, randomness.device)[0]
    augment = problem.transformation(1, randomness)
    return lambda x: problem.backend.features(network, theta, augment(x))


def _view(network: Network, problem: Problem, randomness: Randomness, centre: Tensor) -> Transformation:
    """u(x)."""
    embed = _embedding(network, problem, randomness)
    return lambda x: F.normalize(embed(x) - centre, dim=1)


def coarse_noise(count: int, network: Network, generator: torch.Generator) -> Tensor:
    """Smooth random images: N(0, 1) on a coarse grid, enlarged."""
    channels, height, width = network.spec.shape
    grid = torch.randn(count, channels, NOISE_SIDE, NOISE_SIDE, generator=generator, device=generator.device)
    return F.interpolate(grid, (height, width), mode="bilinear")
