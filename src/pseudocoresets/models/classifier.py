"""A network as a model: a categorical likelihood and a Gaussian prior."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.energy import Model
from pseudocoresets.models.networks.network import Network
from pseudocoresets.models.networks.tiles import TiledConvNet, images_at_once, is_tileable
from pseudocoresets.models.prior import NormalPrior


@dataclass(frozen=True)
class Classifier(NormalPrior):
    """A network with a categorical likelihood and the prior N(0, prior_scale^2 I)."""

    network: Network
    prior_scale: float = 1.0

    @property
    def size(self) -> int:
        return self.network.size

    @property
    def blocks(self) -> list[int]:
        """The sizes of the network's tensors."""
        return self.network.sizes

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log softmax(f(x_i; theta))[y_i], or its expectation under soft labels ``y`` (m, classes)."""
        return categorical_log_likelihood(self.network.logits(theta, x), y)

    def decay(self, data_size: int) -> float:
        """What the prior adds to grad U, per unit of theta: 1 / (s^2 n)."""
        return 1 / (self.prior_scale**2 * data_size)


@dataclass(frozen=True)
class TiledClassifier(Classifier):
    """The same with the gradient of its network written out, in memory that it keeps: for one chain at a time."""

    _tiled: dict[object, TiledConvNet] = field(default_factory=dict, init=False, repr=False, compare=False)

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i w_i log p(y_i | x_i, theta) and its gradient in theta, for one or many theta.

        ``x``, ``y`` and ``weights`` are shared, or have a leading dimension of chains.
        """
        if theta.dim() == 1:
            values, gradients = self.log_likelihood_and_gradient(theta[None], x, y, weights)
            return values[0], gradients[0]
        labels = y if y.is_floating_point() else one_hot(y, self.network.spec.classes, theta.dtype)
        size = images_at_once(self.network, len(theta))
        if x.shape[-4] <= size:
            return self._part(theta, x, labels, weights)
        parts = zip(x.split(size, -4), labels.split(size, -2), weights.split(size, -1), strict=True)
        found = zip(*(self._part(theta, *part) for part in parts), strict=True)
        values, gradients = (torch.stack(each).sum(0) for each in found)
        return values, gradients

    def _part(self, theta: Tensor, x: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """With scores f and labels as distributions, d/df_i of the sum is w_i (y_i - softmax(f_i) sum_c y_ic)."""
        values = theta.new_zeros(())

        def slope(scores: Tensor) -> Tensor:
            nonlocal values
            log_probabilities = F.log_softmax(scores, -1)
            values = (weights * (labels * log_probabilities).sum(-1)).sum(-1)
            expected = log_probabilities.exp_().mul_(labels.sum(-1, keepdim=True))
            return (labels - expected).mul_(weights[..., None])

        key = (len(theta), x.shape, theta.dtype)
        if key not in self._tiled:
            self._tiled[key] = TiledConvNet(self.network, *key)
        gradient = self._tiled[key].gradient(theta, x, slope)
        return values, gradient


def differentiated(model: Model, device: torch.device) -> Model:
    """The model, with its gradient written out where that is known and faster: a ConvNet on a CPU.

    What is returned keeps working memory, so that it is for one chain, or one population of chains, at a time.
    """
    if type(model) is Classifier and device.type == "cpu" and is_tileable(model.network):
        return TiledClassifier(model.network, model.prior_scale)
    return model


def categorical_log_likelihood(logits: Tensor, y: Tensor) -> Tensor:
    """log softmax(logits)[y], or its expectation under soft labels ``y`` (..., classes)."""
    log_probabilities = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
    if y.is_floating_point():
        return (log_probabilities * y).sum(-1)
    index = y[..., None].expand(*log_probabilities.shape[:-1], 1)
    return log_probabilities.gather(-1, index).squeeze(-1)


def one_hot(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    return (y[..., None] == torch.arange(classes, device=y.device)).to(dtype)
