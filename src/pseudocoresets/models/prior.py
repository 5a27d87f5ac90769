"""The prior N(0, s^2 I), which networks and generalised linear models share."""

from __future__ import annotations

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.models.expectation import Expectation


class NormalPrior:
    """A model with the prior N(0, prior_scale^2 I); dataclasses that derive from it declare ``prior_scale``."""

    prior_scale: float

    def __post_init__(self) -> None:
        if not self.prior_scale > 0:
            raise InputError(f"The prior scale must be positive; got {self.prior_scale}.")

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / (2 * self.prior_scale**2)

    def log_prior_gradient(self, theta: Tensor) -> Tensor:
        return -theta / self.prior_scale**2

    def expected_log_prior(self, q: Gaussian) -> Expectation:
        precision = self.prior_scale**-2
        value = -0.5 * precision * (q.mean.square().sum() + q.covariance.diagonal().sum())
        return Expectation(value, -precision * q.mean, -precision * torch.eye(q.size, dtype=q.mean.dtype))
