"""Distribution matching: DM (Zhao and Bilen 2023).

With psi_theta the embedding by a network of parameters theta, the input of its last linear layer, the class means of
the synthetic images are to be those of the real ones under networks that are not trained:

    L = E_theta E_A sum_c || 1 / |B_c| sum_{i in B_c} psi_theta(A x_i) - sum_j a_jc psi_theta(A s_j) / sum_j a_jc ||^2.

In each iteration theta is a fresh draw of the network's initialisation, B_c a batch of real images of class c, and A
one drawn augmentation with one set of parameters for all images, real and synthetic: Siamese augmentation. s_j are the
synthetic images, and a_jc = w_j y_jc their weights times their labels; with equal weights and hard labels, the second
term is the plain mean of class c. There are no experts, and only first derivatives, in the images.

The default is that of the authors' code, 256 real images per class; it learns from real images by SGD of rate 1 and
momentum 0.5, for 20,000 iterations. It draws an augmentation for each class, here one serves all: for the images of a
class, whose loss is their own, this is the same.

Its private form, ``private_matching``, reads the real images once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.nn import functional as F

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods.condensation.classes import class_means, membership
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.methods.estimator import fresh_parameters, network_of
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import BATCH_SIZE, Problem


@dataclass(frozen=True)
class DistributionMatching(GradientMethod):
    """``batch_size`` real images per class, or all where a class has fewer."""

    batch_size: int = 256
    networks: int = 64
    """Of the private form, which sees ``at_once`` of so many in an iteration."""
    at_once: int = 4

    name: ClassVar[str] = "dm"
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require_at_least(batch_size=1, networks=1, at_once=1)

    def private(self, noise_multiplier: float) -> PrivateMatching:
        return PrivateMatching(noise_multiplier, self.networks, self.at_once)

    @property
    def repeats(self) -> bool:
        return True

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        network = network_of(problem, self.name)
        classes = network.spec.classes
        theta = fresh_parameters(network, 1, points.x, randomness)[0]
        x, y, _ = problem.real_class_batch(self.title, self.batch_size, randomness)
        augment = problem.transformation(1, randomness)
        features = partial(problem.backend.features, network, theta)
        with torch.no_grad():
            real = torch.cat([features(augment(part)) for part in x.split(BATCH_SIZE)])
        synthetic = features(augment(points.x))
        of_real, of_synthetic = F.one_hot(y, classes).to(real), membership(points, classes)
        both = (of_real.sum(0) > 0) & (of_synthetic.sum(0) > 0)
        gaps = class_means(synthetic, of_synthetic) - class_means(real, of_real)
        distance = (both[:, None] * gaps).square().sum()
        return Loss(distance, {"distance": distance.detach()})
