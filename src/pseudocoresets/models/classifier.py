"""A network as a model: a categorical likelihood and a Gaussian prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.models.networks.network import Network
from pseudocoresets.models.prior import NormalPrior


@dataclass(frozen=True)
class Classifier(NormalPrior):
    """A network with a categorical likelihood and the prior N(0, prior_scale^2 I)."""

    network: Network
    prior_scale: float = 1.0

    @property
    def size(self) -> int:
        return self.network.size

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log softmax(f(x_i; theta))[y_i], or its expectation under soft labels ``y`` (m, classes)."""
        logits = self.network.logits(theta, x)
        log_probabilities = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        if y.is_floating_point():
            return (log_probabilities * y).sum(-1)
        index = y[..., None].expand(*log_probabilities.shape[:-1], 1)
        return log_probabilities.gather(-1, index).squeeze(-1)

    def decay(self, data_size: int) -> float:
        """What the prior adds to grad U, per unit of theta: 1 / (s^2 n)."""
        return 1 / (self.prior_scale**2 * data_size)
