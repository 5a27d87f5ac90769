"""Kernel inducing points: KIP (Nguyen et al. 2021), images by which kernel ridge regression predicts the real ones.

With Theta the neural tangent kernel of a network, images x_s with labels y_s and weights w_s predict the label of x by

    f(x) = Theta(x, x_s) (Theta(x_s, x_s) + lambda t D)^-1 (y_s - 1/C),
    t = tr Theta(x_s, x_s) / m,     D = diag(w_mean / w),

and descend the squared error of a batch of real images, whose labels are one of C classes:

    L(x_s, y_s, w_s) = 1/2 mean_i || y_i - 1/C - f(x_i) ||^2.

Training a very wide network on x_s by gradient descent gives this f, so that there is no inner loop: one exact
gradient, without experts and, as published, without augmentation, whatever the construction's setting.

``kernel="infinite"`` is the kernel of a ConvNet of infinite width in closed form (see ``tangent_kernels``): depth,
pooling and padding are those of the construction's network, which must be a ConvNet; its norm and its width play no
part. ``kernel="empirical"`` is that of the network itself, of any kind, at a fresh random initialisation in each
iteration. Weights of equal size give D = I.

lambda = 1e-6, sigma_w^2 = 2 and sigma_b = 0.1 are those of the authors' code, which learns by Adam at 0.04 with batches
of thousands of real images on many machines; ``batch_size`` is 100 here, for one. Labels stay unless --learn-labels is
given; learned ones are class probabilities, where the authors' may be any numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods.condensation.tangent_kernels import FiniteNetwork, InfiniteConvNet, TangentKernel
from pseudocoresets.methods.estimator import fresh_parameters, network_of
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import Problem

KERNELS = ("infinite", "empirical")


@dataclass(frozen=True)
class KernelInducingPoints(GradientMethod):
    """Kernel ridge regression with regularisation lambda = ``ridge`` on ``batch_size`` real images."""

    kernel: Literal["infinite", "empirical"] = "infinite"
    ridge: float = 1e-6
    batch_size: int = 100
    covariances_at_once: int = 0
    """Bounds memory: how many pairs of pixels the infinite kernel looks at together; 0: as many as suit the device."""

    name: ClassVar[str] = "kip"
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require_at_least(ridge=0, batch_size=1, covariances_at_once=0)
        if self.kernel not in KERNELS:
            raise InputError(f"The kernel of 'kip' must be one of {', '.join(KERNELS)}; got '{self.kernel}'.")

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        kernel, classes = self._kernel(points, problem, randomness), network_of(problem, self.name).spec.classes
        x, y = problem.real_batch(self.title, self.batch_size, randomness)
        wanted, known = (_centred(labels, classes) for labels in (y, points.y))
        gram, cross = kernel.gram(points.x).double(), kernel.cross(x, points.x).double()
        noise = self.ridge * gram.trace() / len(gram) * (points.weights.mean() / points.weights).double()
        predicted = cross @ torch.linalg.solve(gram + noise.diag(), known)
        value = (wanted - predicted).square().sum(1).mean() / 2
        right = (predicted.detach().argmax(1) == y).double().mean()
        return Loss(value, {"accuracy": right})

    def _kernel(self, points: Points, problem: Problem, randomness: Randomness) -> TangentKernel:
        network = network_of(problem, self.name)
        if self.kernel == "infinite":
            return InfiniteConvNet.of(network, self.covariances_at_once)
        theta, classes = fresh_parameters(network, 1, points.x, randomness)[0], network.spec.classes
        signs = torch.randint(2, (classes,), generator=randomness.device, device=theta.device)
        return FiniteNetwork(network, theta, (2 * signs - 1).to(theta) / classes**0.5)


def _centred(labels: Tensor, classes: int) -> Tensor:
    """Class probabilities less 1 / C."""
    return (labels if labels.is_floating_point() else F.one_hot(labels, classes)).double() - 1 / classes
