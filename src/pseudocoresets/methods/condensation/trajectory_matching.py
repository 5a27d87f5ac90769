"""Matching training trajectories as published: MTT (Cazenavette et al. 2022).

From a snapshot theta_s of an expert, k steps of gradient descent on the synthetic images are to end where the expert is
a epochs later, theta* = theta_{s+a}:

    theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x),      t = 0 .. k-1,   theta_0 = theta_s
    L           = || theta_k - theta* ||^2 / || theta_s - theta* ||^2

The images x and the step size eta descend the exact gradient of L, eta at a learning rate of its own. This is the
objective of ``wasserstein``, whose code it shares; that one has settings found here, and differences in place of the
exact gradient. The adjoint (``stored``) is the gradient of the published code, which keeps the graphs of all k steps
(``gradient=exact``). U is the mean cross-entropy of the images and the prior's - log pi0(theta) / n, which the authors
do not have: a weight decay of 1 / n.

The defaults are those of the authors' code for CIFAR-10 at ten images per class: k = 30, a = 2, eta from 0.001 at the
rate 1e-5, s < 20, images by SGD of rate 100 and momentum 0.5 for 5,000 iterations. At one image per class k = 50,
eta from 0.01 at 1e-7, s < 2; at fifty s < 40 and images at the rate 1000. There are 100 experts of 50 epochs, whose
images are whitened at one and ten images per class. The preset ``paper`` has these settings by images per class and
these experts; CIFAR is whitened there at fifty images too, and ``--expert-count`` asks for fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.gradients import GradientEstimator
from pseudocoresets.methods.wasserstein import Wasserstein


@dataclass(frozen=True)
class TrajectoryMatching(Wasserstein):
    """k = ``steps`` differentiable steps, whose size starts at ``step_size``, against ``expert_epochs`` epochs."""

    expert_epochs: int = 2
    step_size: float = 0.001
    gradient: str | GradientEstimator = "stored"

    name: ClassVar[str] = "mtt"
