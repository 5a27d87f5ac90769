"""The gradient of any network's energy by autograd, in the form that captured chains ask for.

ConvNets are in bfloat16, as those with kernels of their own are: their gradients are 1 to 12 % away from those in
float32. Those of AlexNet, ResNet18 and VGG11 would be 17, 40 and 58 % away, so everything else is in float32, as on the
plain path, where cuDNN rounds the factors of convolutions to TF32. A convolution's weight is kept as (out, height,
width, in), and norms are kernels of channels-last images (``norm``), so that nothing is transposed in a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pseudocoresets.backends.fused.norm import ChannelsLastNorms
from pseudocoresets.models.classifier import categorical_log_likelihood
from pseudocoresets.models.networks import Network


@dataclass(frozen=True, eq=False)
class AutogradLayout:
    """Where the parameters of ``chains`` networks lie, one parameter set after another."""

    network: Network
    order: Tensor
    """theta_kernels = theta_network[order]."""
    inverse: Tensor
    """theta_network = theta_kernels[inverse]."""
    chains: int = 1

    @property
    def classes(self) -> int:
        return self.network.spec.classes

    @property
    def size(self) -> int:
        """Of all parameter sets together."""
        return self.network.size * self.chains

    def to(self, device: torch.device) -> AutogradLayout:
        return replace(self, order=self.order.to(device), inverse=self.inverse.to(device))

    def widened(self, chains: int) -> AutogradLayout:
        """The layout of ``chains`` networks that see the same images, in the network's own order where it is several.

        Their weights lie apart, and are brought together in each step whatever their order is.
        """
        if chains == 1:
            return self
        index = torch.arange(self.network.size * chains, device=self.order.device)
        return replace(self, order=index, inverse=index, chains=chains)

    def parameters(self, ordered: Tensor) -> dict[str, Tensor]:
        """Views (chains, *shape) of parameters in this order, by name."""
        parts = ordered.view(self.chains, -1).split(self.network.sizes, 1)
        return {
            name: part.view(self.chains, *self._kept(shape)).permute(self._seen(shape))
            for (name, shape), part in zip(self.network.layout, parts, strict=True)
        }

    def flatten(self, parameters: Mapping[str, Tensor], out: Tensor) -> None:
        """Write what ``parameters`` has by name, in this order, into ``out``."""
        kept = (value.movedim(2, -1) if self._moves(value.shape[1:]) else value for value in parameters.values())
        torch.cat([value.reshape(self.chains, -1) for value in kept], 1, out=out.view(self.chains, -1))

    def _moves(self, shape: Sequence[int]) -> bool:
        """Whether a parameter of this shape is kept with its inputs last."""
        return len(shape) == 4 and self.chains == 1

    def _kept(self, shape: Sequence[int]) -> Sequence[int]:
        return (shape[0], *shape[2:], shape[1]) if self._moves(shape) else shape

    def _seen(self, shape: Sequence[int]) -> Sequence[int]:
        """The dimensions of what is kept, chains first, in the order in which the network sees them."""
        return (0, 1, 4, 2, 3) if self._moves(shape) else tuple(range(len(shape) + 1))


def autograd_layout(network: Network) -> AutogradLayout:
    index, start, order = torch.arange(network.size), 0, []
    for _, shape in network.layout:
        part = index[start : start + math.prod(shape)].view(shape)
        order.append((part.movedim(1, -1) if len(shape) == 4 else part).flatten())
        start += part.numel()
    permutation = torch.cat(order)
    return AutogradLayout(network, permutation, permutation.argsort())


@dataclass(frozen=True)
class Images:
    """Images as a network sees them, (..., images, height, width, channels)."""

    values: Tensor

    def at(self, *index: int) -> Tensor:
        """Those of one step or source, (images, channels, height, width), channels last in memory."""
        return self.values[index].movedim(-1, 1)

    def fill(self, x: Tensor) -> None:
        """Copy images (..., channels, height, width)."""
        self.values.copy_(x.movedim(-3, -1))


class AutogradGradient:
    """The gradient of sum_i s_i cross-entropy_i; see ``EnergyGradient``, whose place it takes in captured chains."""

    def __init__(self, layout: AutogradLayout) -> None:
        self._layout = layout

    def accumulate(
        self, theta: Tensor, compact: Tensor, x: Tensor, y: Tensor, factors: Tensor, gradient: Tensor, energies: Tensor
    ) -> None:
        """Write the gradient in the parameters; ``energies`` (m * chains,), an image's side by side, gets each term.

        The parameters are seen as ``compact``, in the images' own precision; scores are compared in float32.
        """
        layout = self._layout
        leaves = {name: value.detach().requires_grad_() for name, value in layout.parameters(compact).items()}
        alone = layout.chains == 1
        seen = x if alone else x.contiguous()  # vmap has no group norm of channels-last images
        with torch.enable_grad(), ChannelsLastNorms() if alone else nullcontext():
            scores = layout.network.population_logits(leaves, seen).float()
            terms = -factors * categorical_log_likelihood(scores, y)
            total = terms.sum()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        layout.flatten(dict(zip(leaves, found, strict=True)), gradient)
        energies.view(-1, layout.chains).copy_(terms.detach().T)
