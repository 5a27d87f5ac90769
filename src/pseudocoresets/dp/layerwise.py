"""Gradients per example of a stack of layers, by one forward and one backward pass of the whole batch.

Every layer with parameters keeps what it was given, x, and the gradient d of the examples' losses in what it gave. With
P(x_i) the patches (inputs * kernel, pixels) of an image, example i alone has

    convolution    dW_i = d_i P(x_i)',       db_i = sum of d_i over pixels
    linear layer   dW_i = d_i x_i',          db_i = d_i
    norm           dgamma_i, dbeta_i: the gradients in copies of gamma and beta of its own.

The first is a product of matrices for each example, and the second is left as the two vectors that it is made of. No
layer sees more than one example at a time, so the gradient of each depends on no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.dp.vectors import ExampleVectors, Outer, Stacked, Vectors
from pseudocoresets.models.networks import Network
from pseudocoresets.models.networks.network import ACTIVATIONS, is_plain
from pseudocoresets.models.networks.stack import Stack

WITHOUT_PARAMETERS = (*ACTIVATIONS, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten, nn.Identity)
IMAGE_DIMENSIONS = 3
Norm: TypeAlias = nn.GroupNorm | nn.LayerNorm


@dataclass(frozen=True)
class Seen:
    """What a layer was given, and what it gave."""

    name: str
    layer: nn.Conv2d | nn.Linear
    given: Tensor
    gave: Tensor


class LayerwiseGradients:
    """Those of -log p(y_i | x_i, theta) for each example of a batch, of a network that ``is_layerwise``."""

    def __init__(self, network: Network) -> None:
        if not is_layerwise(network):
            raise TypeError(f"The layers of the network '{network.spec}' are not all known.")
        self._network = network
        self._layers = _layers(network)

    def __call__(self, theta: Tensor, x: Tensor, y: Tensor) -> ExampleVectors:
        """For one parameter vector, in the number format of the images."""
        own = self._network.unflatten(theta.detach().to(x.dtype))
        seen: list[Seen] = []
        copies: dict[str, Tensor] = {}
        with torch.enable_grad():
            for name, layer in self._layers:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    given, x = x, self._applied(layer, x, own[f"{name}.weight"], own[f"{name}.bias"])
                    seen.append(Seen(name, layer, given.detach(), x if x.requires_grad else x.requires_grad_()))
                elif isinstance(layer, Norm):
                    names = [f"{name}.{kind}" for kind in ("weight", "bias")]
                    for each in names:
                        copies[each] = own[each].expand(len(x), *own[each].shape).detach().requires_grad_()
                    x = self._normalised(layer, x, *(copies[each] for each in names))
                else:
                    x = layer(x)
            loss = F.cross_entropy(x.double() if x.dtype == torch.float64 else x.float(), y, reduction="sum")
        found = torch.autograd.grad(loss, [each.gave for each in seen] + list(copies.values()))
        with torch.no_grad():
            return self._assembled(seen, found[: len(seen)], dict(zip(copies, found[len(seen) :], strict=True)))

    def _applied(self, layer: nn.Conv2d | nn.Linear, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, bias)
        return F.conv2d(x, weight, bias, layer.stride, layer.padding)

    def _normalised(self, layer: Norm, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """With a scale and a shift of its own for each image."""
        if isinstance(layer, nn.LayerNorm):
            return torch.addcmul(bias, F.layer_norm(x, layer.normalized_shape, eps=layer.eps), weight)
        plain = F.group_norm(x, layer.num_groups, eps=layer.eps)
        return torch.addcmul(bias[:, :, None, None], plain, weight[:, :, None, None])

    def _of_filters(self, layer: nn.Conv2d, x: Tensor, d: Tensor) -> Stacked:
        """Gradients in a convolution's weight as a layer has it, (examples, outputs * inputs * height * width)."""
        high, wide = _pair(layer.padding)
        (rows, columns), (down, along) = layer.kernel_size, layer.stride
        padded = F.pad(x, (wide, wide, high, high))
        patches = padded.unfold(2, rows, down).unfold(3, columns, along).permute(0, 1, 4, 5, 2, 3)
        flat = patches.reshape(len(x), layer.in_channels * rows * columns, -1)
        return self._stacked(torch.bmm(d.flatten(2), flat.mT).flatten(1))

    def _summed_filters(self, layer: nn.Conv2d, total: Tensor) -> Tensor:
        """A sum of these in the order of the layer's weight."""
        return total

    def _stacked(self, values: Tensor) -> Stacked:
        return Stacked(values)

    def _assembled(self, seen: Sequence[Seen], slopes: Sequence[Tensor], small: dict[str, Tensor]) -> ExampleVectors:
        """Matrices one by one, and all that is as long as a layer is wide in one part."""
        parts: list[Vectors] = []
        filters: dict[str, nn.Conv2d] = {}
        names: list[str] = []
        for each, d in zip(seen, slopes, strict=True):
            names.append(f"{each.name}.weight")
            if isinstance(each.layer, nn.Conv2d):
                parts.append(self._of_filters(each.layer, each.given, d))
                filters[names[-1]] = each.layer
                small[f"{each.name}.bias"] = d.sum((2, 3))
            else:
                parts.append(Outer(d, each.given))
                small[f"{each.name}.bias"] = d
        parts.append(self._stacked(torch.cat([value.flatten(1) for value in small.values()], 1)))
        sizes = [value[0].numel() for value in small.values()]

        def joined(sums: list[Tensor]) -> Tensor:
            found = dict(zip(names, sums, strict=False))
            for name, layer in filters.items():
                found[name] = self._summed_filters(layer, found[name])
            found |= dict(zip(small, sums[-1].split(sizes), strict=True))
            return torch.cat([found[name] for name, _ in self._network.layout])

        return ExampleVectors(parts, joined)


def is_layerwise(network: Network) -> bool:
    """Whether the network is a stack of layers whose gradients are known, none of which changes what it is given."""
    stack = network.prototype
    if not isinstance(stack, Stack) or type(stack).population_logits is not Stack.population_logits:
        return False
    layers = _layers(network)
    owned = [f"{name}.{kind}" for name, layer in layers if _has_parameters(layer) for kind in ("weight", "bias")]
    every = sorted(owned) == sorted(name for name, _ in network.layout)
    return every and all(_is_known(layer, of_images=name.startswith("features.")) for name, layer in layers)


def _layers(network: Network) -> list[tuple[str, nn.Module]]:
    every = network.prototype.named_modules()
    return [(name, layer) for name, layer in every if not isinstance(layer, nn.Sequential)]


def _has_parameters(layer: nn.Module) -> bool:
    return next(layer.parameters(), None) is not None


def _is_known(layer: nn.Module, of_images: bool) -> bool:
    if type(layer) is nn.Conv2d:
        return of_images and is_plain(layer)
    if type(layer) is nn.Linear:
        return not of_images
    if type(layer) is nn.GroupNorm or (type(layer) is nn.LayerNorm and len(layer.normalized_shape) == IMAGE_DIMENSIONS):
        return of_images
    return type(layer) in WITHOUT_PARAMETERS and not getattr(layer, "inplace", False)


def _pair(padding: str | tuple[int, ...]) -> tuple[int, int]:
    assert not isinstance(padding, str)  # else it is no plain convolution
    return padding[0], padding[1]
