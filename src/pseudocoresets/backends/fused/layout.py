"""Which networks the fused kernels compute, and where their parameters lie.

They compute ConvNets of 3x3 convolutions, instance norm, ReLU, 2x2 average pooling and one linear layer. A module's
layers say whether it looks like one; whether its ``forward`` is one is checked on a probe, by the layout's own
mathematics in plain PyTorch. Modules that pass with the same layout compute the same function.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.backends.fused.blocks import EPSILON
from pseudocoresets.models.networks import Network

LARGEST_SIDE = 64
PROBE_IMAGES = 2
PROBE_TOLERANCE = 1e-6
"""Relative; the probe is in double precision, but a forward may round to single precision on its way."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Block:
    """Where one block's parameters lie, and its shape."""

    weight: slice
    gamma: slice
    beta: slice
    inputs: int
    channels: int
    side: int
    """Side of the convolution's output."""
    padding: int


@dataclass(frozen=True, eq=False)
class Layout:
    """All blocks, the classifier, and the permutation between the network's order and the kernels'."""

    blocks: tuple[Block, ...]
    classifier_weight: slice
    classifier_bias: slice
    classes: int
    features: int
    size: int
    order: Tensor
    """theta_kernels = theta_network[order]."""

    inverse: Tensor
    """theta_network = theta_kernels[inverse]."""

    chains: int = 1
    """Parameter sets side by side, each block of parameters holding all of them in turn."""

    @property
    def signature(self) -> str:
        """Equal for layouts of the same function."""
        parts = (self.blocks, self.classifier_weight, self.classifier_bias, self.classes, self.features, self.size)
        return repr((*parts, self.chains))

    @cached_property
    def turned(self) -> Tensor:
        """Where the weights of convolutions lie that lead from dz to the gradient of the input, block by block.

        That gradient is a convolution too, of each weight turned by half a turn, its inputs and outputs exchanged;
        small ones are twice as fast as cuDNN's own gradients.
        """
        index = torch.arange(self.size, device=self.order.device)
        found = [index[:0]]
        for block in self.blocks[1:]:
            weights = index[block.weight].view(self.chains, -1, 3, 3, block.inputs)
            found.append(weights.flip(2, 3).permute(0, 4, 2, 3, 1).flatten())
        return torch.cat(found)

    def to(self, device: torch.device) -> Layout:
        return replace(self, order=self.order.to(device), inverse=self.inverse.to(device))

    def widened(self, chains: int) -> Layout:
        """The layout of ``chains`` networks that see the same images, as one network of so many times the channels.

        Its inner convolutions are grouped, one group per chain. ``order`` and ``inverse`` are those of all parameter
        sets one after another, (chains, size) flattened.
        """
        parts = [self.classifier_weight, self.classifier_bias]
        for block in self.blocks:
            parts += [block.weight, slice(block.weight.stop, block.gamma.start), block.gamma, block.beta]
        rows = self.order + self.size * torch.arange(chains, device=self.order.device)[:, None]
        order = torch.cat([rows[:, part].flatten() for part in sorted(parts, key=lambda part: part.start)])
        return replace(
            self,
            blocks=tuple(_widened_block(block, chains) for block in self.blocks),
            classifier_weight=_times(self.classifier_weight, chains),
            classifier_bias=_times(self.classifier_bias, chains),
            size=self.size * chains,
            order=order,
            inverse=order.argsort(),
            chains=chains,
        )


def layout_of(network: Network) -> Layout | None:
    """The layout of ``network`` if the fused kernels compute it, else None."""
    layout = _layout_of_layers(network)
    if layout is None or computes(layout, network):
        return layout
    logger.info("The network '%s' has the layers of a ConvNet, but another forward.", network.spec.name)
    return None


def computes(layout: Layout, network: Network) -> bool:
    """Whether the layout's logits are those of the module's own ``forward``, on probe images and parameters."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(PROBE_IMAGES, *network.spec.shape, generator=generator).double()
    theta = network.initialise(0) + 0.1 * torch.randn(network.size, generator=generator)
    try:
        with torch.no_grad():
            own = network.module(theta).double()(images)
            ours = layout_logits(layout, theta.double(), images)
    except (RuntimeError, TypeError, ValueError):  # other shapes, or a forward for single precision only
        return False
    return own.shape == ours.shape and bool((own - ours).abs().max() <= PROBE_TOLERANCE * own.abs().max())


def layout_logits(layout: Layout, theta: Tensor, images: Tensor) -> Tensor:
    """What the kernels compute, in plain PyTorch, for one parameter vector in the network's order."""
    ordered, x = theta[layout.order], images
    for number, block in enumerate(layout.blocks):
        weight = ordered[block.weight].view(block.channels, 3, 3, block.inputs).permute(0, 3, 1, 2)
        x = F.conv2d(x, weight, padding=block.padding if number == 0 else 1)
        x = F.group_norm(x, block.channels, ordered[block.gamma], ordered[block.beta], EPSILON)
        x = F.avg_pool2d(F.relu(x), 2)
    weight = ordered[layout.classifier_weight].view(layout.classes, layout.features)
    return F.linear(x.flatten(1), weight, ordered[layout.classifier_bias])


def _layout_of_layers(network: Network) -> Layout | None:
    """The layout that the module's layers suggest, or None."""
    module = network.prototype
    features, classifier = getattr(module, "features", None), getattr(module, "classifier", None)
    if not isinstance(features, nn.Sequential) or not isinstance(classifier, nn.Linear) or len(features) % 4:
        return None
    index = torch.arange(network.size)
    offsets = _offsets(network)
    channels, side, width = network.spec.shape
    if side != width:
        return None
    found: list[Block] = []
    order: list[Tensor] = []
    for number in range(0, len(features), 4):
        convolution = _fusable_convolution(*(features[number + i] for i in range(4)))
        if convolution is None:
            return None
        padding = int(convolution.padding[0])
        side = side + 2 * padding - 2
        if side & (side - 1) or not 2 <= side <= LARGEST_SIDE or convolution.out_channels % 16:
            return None
        weight = offsets[f"features.{number}.weight"]
        bias = offsets[f"features.{number}.bias"]
        shape = convolution.weight.shape
        order.append(index[weight].view(shape).permute(0, 2, 3, 1).flatten())
        order.append(index[bias])
        gamma, beta = offsets[f"features.{number + 1}.weight"], offsets[f"features.{number + 1}.bias"]
        order += [index[gamma], index[beta]]
        found.append(Block(weight, gamma, beta, channels, convolution.out_channels, side, padding))
        channels, side = convolution.out_channels, side // 2
    weight, bias = offsets["classifier.weight"], offsets["classifier.bias"]
    order += [index[weight], index[bias]]
    permutation = torch.cat(order)
    if len(permutation) != network.size or not found or found[0].inputs > 3:
        return None
    return Layout(
        tuple(found),
        weight,
        bias,
        classifier.out_features,
        classifier.in_features,
        network.size,
        permutation,
        permutation.argsort(),
    )


def _widened_block(block: Block, chains: int) -> Block:
    return replace(
        block,
        weight=_times(block.weight, chains),
        gamma=_times(block.gamma, chains),
        beta=_times(block.beta, chains),
        channels=block.channels * chains,
    )


def _times(part: slice, chains: int) -> slice:
    return slice(part.start * chains, part.stop * chains)


def _fusable_convolution(
    convolution: nn.Module, norm: nn.Module, activation: nn.Module, pooling: nn.Module
) -> nn.Conv2d | None:
    """The convolution of a block that the kernels compute, or None."""
    if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, nn.GroupNorm):
        return None
    plain = convolution.kernel_size == (3, 3) and convolution.stride == (1, 1) and convolution.bias is not None
    per_image = norm.num_groups == norm.num_channels and norm.eps == EPSILON
    pools = isinstance(pooling, nn.AvgPool2d) and pooling.kernel_size == 2
    return convolution if plain and per_image and isinstance(activation, nn.ReLU) and pools else None


def _offsets(network: Network) -> dict[str, slice]:
    offsets, start = {}, 0
    for name, parameter in network.prototype.named_parameters():
        offsets[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return offsets
