"""Neural tangent kernels of image networks: in closed form for infinite width, and of one random network.

For a ConvNet without normalisation, in which every weight and bias is N(0, 1) and a layer computes

    z = sigma_w / sqrt(fan-in) W a + sigma_b b,

outputs are a Gaussian process as the width grows, and the tangent kernel Theta(x, x') = < df(x)/dtheta, df(x')/dtheta >
becomes deterministic (Jacot et al. 2018; Arora et al. 2019). Both follow layer by layer from covariances K and tangent
kernels Theta between position p of x and p' of x', starting at K = x_p . x'_p' / channels, Theta = 0:

    convolution   K <- sigma_w^2 mean_d K(p+d, p'+d) + sigma_b^2,    Theta <- K + sigma_w^2 mean_d Theta(p+d, p'+d)
    ReLU          K <- s (sin a + (pi - a) cos a) / (2 pi),          Theta <- Theta (pi - a) / (2 pi)
    pooling       both averaged over the window of p and that of p'
    linear        K <- sigma_w^2 mean_p K(p, p) + sigma_b^2,         Theta <- K + sigma_w^2 mean_p Theta(p, p)

with d the nine shifts of the filter, zero outside the image, s = sqrt(K_x(p, p) K_x'(p', p')), cos a = K(p, p') / s,
and the K in Theta that of the same layer.

The linear layer asks for p = p' only. A convolution leaves the distance o = p' - p as it is, and pooling asks for
distances up to 2 r + 1 where r are wanted of it. So a pair of images costs their pixels times (2 r + 1)^2 distances, r
= 7 before the three poolings of 32 x 32 images: K and Theta are kept as K[o](p), with zeros where p + o is outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pseudocoresets.core.errors import InputError
from pseudocoresets.models.networks import Network
from pseudocoresets.models.networks.convnet import ConvNet

T = TypeVar("T")
FILTER_SIDE = 3
ROUNDINGS = 8
"""How many roundings a cosine of 1 may be off."""
ON_HOST, ON_DEVICE = 2**19, 2**27
"""Covariances at once: what a cache holds, and what keeps a GPU busy in a few gigabytes."""


class TangentKernel(Protocol):
    """A kernel of images, differentiable in them."""

    def gram(self, x: Tensor) -> Tensor:
        """Theta(x_i, x_j), (m, m)."""
        ...

    def cross(self, x: Tensor, others: Tensor) -> Tensor:
        """Theta(x_i, others_j), (m, n)."""
        ...


class Block(NamedTuple):
    """A convolution of 3 x 3, a ReLU, and average pooling of 2 x 2 where there is one."""

    padding: int = 1
    pooled: bool = True


class Layer(NamedTuple):
    """A block at its place in a network."""

    padding: int
    pooled: bool
    side: int
    """Of the convolution's output."""
    reach: int
    """The largest distance, along rows and along columns, that is looked at there."""
    wanted: int
    """The largest that is wanted of the block."""


@dataclass(frozen=True)
class InfiniteConvNet:
    """The tangent kernel of a ConvNet of infinite width, as above.

    Args:
        blocks: From the image to the linear layer.
        weight_variance: sigma_w^2.
        bias_variance: sigma_b^2.
        covariances_at_once: How many numbers K(p, p') are computed at once, and again when they are differentiated;
            0: as many as suit the device.
    """

    blocks: tuple[Block, ...]
    weight_variance: float = 2.0
    bias_variance: float = 0.01
    covariances_at_once: int = 0

    @classmethod
    def of(cls, network: Network, covariances_at_once: int = 0) -> InfiniteConvNet:
        """That of a ConvNet's depth and pooling, without its normalisation."""
        module, name = network.prototype, network.spec.name
        if not isinstance(module, ConvNet):
            raise InputError(
                f"The tangent kernel of infinite width is that of a ConvNet; got the network '{name}'. "
                "Choose network 'convnet', or kernel=empirical."
            )
        layers = list(module.get_submodule("features").children())
        if not all(isinstance(layer, nn.Conv2d | nn.ReLU | nn.AvgPool2d) or _normalises(layer) for layer in layers):
            raise InputError(
                "The tangent kernel of infinite width is that of a ConvNet with ReLUs and average pooling or none; "
                f"got '{network.spec}'. Leave out those options, or choose kernel=empirical."
            )
        pooled = any(isinstance(layer, nn.AvgPool2d) for layer in layers)
        paddings = [int(layer.padding[0]) for layer in layers if isinstance(layer, nn.Conv2d)]
        return cls(tuple(Block(padding, pooled) for padding in paddings), covariances_at_once=covariances_at_once)

    def gram(self, x: Tensor) -> Tensor:
        i, j = torch.triu_indices(len(x), len(x), device=x.device)
        spreads = self._spreads(x)
        upper = x.new_zeros(len(x), len(x)).index_put((i, j), self._of_pairs(x, spreads, i, x, spreads, j))
        return upper + upper.T - upper.diagonal().diag()

    def cross(self, x: Tensor, others: Tensor) -> Tensor:
        i, j = torch.cartesian_prod(*(torch.arange(len(each), device=x.device) for each in (x, others))).T
        return self._of_pairs(x, self._spreads(x), i, others, self._spreads(others), j).view(len(x), len(others))

    def _of_pairs(
        self, x: Tensor, spreads: list[Tensor], i: Tensor, others: Tensor, other_spreads: list[Tensor], j: Tensor
    ) -> Tensor:
        """Theta(x_i, others_j) for each of the pairs (i, j), given the standard deviations at every ReLU."""

        def some(first: Tensor, second: Tensor) -> Tensor:
            deviations = [(a[first], b[second]) for a, b in zip(spreads, other_spreads, strict=True)]
            return self._propagated(x[first], others[second], deviations)

        chunks = zip(i.split(self._pairs_at_once(x)), j.split(self._pairs_at_once(x)), strict=True)
        return torch.cat([_recomputed(some, first, second) for first, second in chunks])

    def _propagated(self, x: Tensor, others: Tensor, deviations: list[tuple[Tensor, Tensor]]) -> Tensor:
        layers = self._layers(x.shape[-1])
        covariance = _products(x, others, layers[0].reach)
        tangent = torch.zeros_like(covariance)
        for layer, (own, other) in zip(layers, deviations, strict=True):
            inside, scale = _inside(x, layer), own[:, None, None] * _shifted(other, layer.reach, outside=1.0)
            covariance = self.weight_variance * _convolved(covariance, layer.padding) + self.bias_variance
            tangent = covariance + self.weight_variance * _convolved(tangent, layer.padding)
            expected, share = _rectified(inside * covariance / scale)
            covariance, tangent = inside * (scale * expected), inside * (tangent * share)
            if layer.pooled:
                covariance, tangent = _pooled(covariance, layer), _pooled(tangent, layer)
        last = self.weight_variance * covariance.mean((1, 2, 3, 4)) + self.bias_variance
        return last + self.weight_variance * tangent.mean((1, 2, 3, 4))

    def _spreads(self, x: Tensor) -> list[Tensor]:
        """sqrt(K_x(p, p)) before each ReLU, (m, height, width)."""
        chunks = [_recomputed(self._spreads_of_some, some) for some in x.split(self._pairs_at_once(x))]
        return [torch.cat(parts) for parts in zip(*chunks, strict=True)]

    def _spreads_of_some(self, x: Tensor) -> tuple[Tensor, ...]:
        found, layers = [], self._layers(x.shape[-1])
        covariance = _products(x, x, layers[0].reach)
        for layer in layers:
            inside = _inside(x, layer)
            covariance = self.weight_variance * _convolved(covariance, layer.padding) + self.bias_variance
            own = covariance[:, layer.reach, layer.reach].sqrt()
            found.append(own)
            scale = own[:, None, None] * _shifted(own, layer.reach, outside=1.0)
            covariance = inside * (scale * _rectified(inside * covariance / scale)[0])
            covariance = _pooled(covariance, layer) if layer.pooled else covariance
        return tuple(found)

    def _layers(self, side: int) -> list[Layer]:
        """Every block with the side of its convolution's output for images of this side, and the distances wanted."""
        sides = []
        for block in self.blocks:
            sides.append(side + 2 * block.padding - FILTER_SIDE + 1)
            side = sides[-1] // 2 if block.pooled else sides[-1]
        layers: list[Layer] = []
        wanted = 0
        for block, side in reversed(list(zip(self.blocks, sides, strict=True))):
            reach = min(2 * wanted + 1, side - 1) if block.pooled else wanted
            layers.insert(0, Layer(block.padding, block.pooled, side, reach, wanted))
            wanted = reach
        return layers

    def _pairs_at_once(self, x: Tensor) -> int:
        at_once = self.covariances_at_once or (ON_HOST if x.device.type == "cpu" else ON_DEVICE)
        largest = max(((2 * layer.reach + 1) * layer.side) ** 2 for layer in self._layers(x.shape[-1]))
        return max(1, at_once // largest)


@dataclass(frozen=True)
class FiniteNetwork:
    """< g(x), g(x') > of one network at theta, with g(x) = d(u . f(x))/dtheta and a random direction u of its outputs.

    Over directions of mean square 1 / classes, it is the mean of the tangent kernels of the outputs.
    """

    network: Network
    theta: Tensor
    direction: Tensor
    images_at_once: int = 250

    def gram(self, x: Tensor) -> Tensor:
        slopes = self._slopes(x)
        return slopes @ slopes.T

    def cross(self, x: Tensor, others: Tensor) -> Tensor:
        return self._slopes(x) @ self._slopes(others).T

    def _slopes(self, x: Tensor) -> Tensor:
        def projected(theta: Tensor, image: Tensor) -> Tensor:
            return self.network.logits(theta, image[None])[0] @ self.direction

        with torch.no_grad():  # a network brings its buffers to the device at first, which no transform may do
            self.network.logits(self.theta, x[:1])
        slopes: Tensor = vmap(grad(projected), in_dims=(None, 0), chunk_size=self.images_at_once)(self.theta, x)
        return slopes


class _ArcCosine(torch.autograd.Function):
    """For cos a: (sin a + (pi - a) cos a) / (2 pi) and (pi - a) / (2 pi), the halves of Cho and Saul's kernels.

    Where a position meets itself, or another that sees the same, cos a is 1 up to rounding, and stays so: it is set to
    1, and the slope of the second, which is infinite there, is bounded by what rounding can tell apart.
    """

    @staticmethod
    def forward(ctx: Any, cosine: Tensor) -> tuple[Tensor, Tensor]:
        nearly_one = 1 - ROUNDINGS * torch.finfo(cosine.dtype).eps
        cosine = torch.where(cosine > nearly_one, 1.0, cosine.clamp_min(-1))
        share = (math.pi - cosine.acos()) / (2 * math.pi)
        ctx.save_for_backward(cosine, share)
        return (1 - cosine.square()).sqrt() / (2 * math.pi) + cosine * share, share

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        of_expected, of_share = gradients
        cosine, share = ctx.saved_tensors
        sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
        slope: Tensor = of_expected * share + of_share / (2 * math.pi * sine)
        return slope


def _rectified(correlation: Tensor) -> tuple[Tensor, Tensor]:
    """E[relu(u) relu(v)] and P(u > 0, v > 0) for standard normal u, v of this correlation."""
    expected, share = _ArcCosine.apply(correlation)
    return expected, share


def _products(x: Tensor, others: Tensor, reach: int) -> Tensor:
    """x_p . x'_p+o / channels, (pairs, 2 reach + 1, 2 reach + 1, height, width)."""
    pairs = zip(x.unbind(1), others.unbind(1), strict=True)
    total = sum(one[:, None, None] * _shifted(other, reach) for one, other in pairs)
    assert isinstance(total, Tensor)
    return total / x.shape[1]


def _shifted(values: Tensor, reach: int, outside: float = 0.0) -> Tensor:
    """v(p + o) for all distances o, (m, 2 reach + 1, 2 reach + 1, height, width); a view of the values in a frame."""
    height, width = values.shape[-2:]
    return F.pad(values, (reach,) * 4, value=outside).unfold(1, height, 1).unfold(2, width, 1)


def _inside(like: Tensor, layer: Layer) -> Tensor:
    """1 where p + o is a position of the layer, and 0 elsewhere."""
    return _shifted(like.new_ones(1, layer.side, layer.side), layer.reach)


def _convolved(covariance: Tensor, padding: int) -> Tensor:
    """1 / 9 sum_d K[o](p + d) for the nine shifts d, with zeros around the image."""
    padded = F.pad(covariance, (padding,) * 4)
    return F.avg_pool2d(padded.flatten(0, 2), FILTER_SIDE, 1).unflatten(0, covariance.shape[:3])


def _pooled(covariance: Tensor, layer: Layer) -> Tensor:
    """The mean over windows of 2 x 2 of both images; what is left over at the edges is dropped.

    K[O](P) <- mean over a, b in {0, 1}^2 of K[2 O + b - a](2 P + a), first along rows, then along columns.
    """
    missing = 2 * layer.wanted + 1 - layer.reach
    pooled = F.pad(covariance, (0, 0, 0, 0) + (missing,) * 4)
    for distance, position in ((1, 3), (2, 4)):
        pooled = _pooled_along(pooled, distance, position, layer)
    return pooled


def _pooled_along(covariance: Tensor, distance: int, position: int, layer: Layer) -> Tensor:
    """Along one side, whose distances and positions are these dimensions."""
    distances, positions = 2 * layer.wanted + 1, layer.side // 2
    total = sum(
        _every_second(_every_second(covariance, distance, 1 + b - a, distances), position, a, positions)
        for a in (0, 1)
        for b in (0, 1)
    )
    assert isinstance(total, Tensor)
    return total / 4


def _every_second(values: Tensor, dimension: int, first: int, count: int) -> Tensor:
    """``count`` of them."""
    chosen = [slice(None)] * values.dim()
    chosen[dimension] = slice(first, first + 2 * count - 1, 2)
    return values[tuple(chosen)]


def _recomputed(function: Callable[..., T], *inputs: Tensor) -> T:
    """The same, keeping nothing but the inputs for a backward pass."""
    result: T = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def _normalises(layer: nn.Module) -> bool:
    return isinstance(layer, nn.GroupNorm | nn.LayerNorm)
