"""The gradient of a ConvNet in its parameters, written out: on a CPU faster than autograd, and in memory that is kept.

It serves blocks of a 3x3 convolution, instance norm, ReLU and 2x2 average pooling, and one linear layer. Activations
are (chains, 4, pixels, images, channels): the four pixels that are pooled together lie in the second dimension, the
statistics of a norm are over the second and third, and channels lie next to one another for matrix products. Pixels are
in the order of 4x4 tiles: the row and the column within a tile, after pooling, and then the row and column of the tile.

A convolution is Winograd's F(4x4, 3x3): for a filter g and the 6x6 pixels d around a tile

    tile = A [ (G g G') * (B d B') ] A'

which is 36 products of matrices over the channels, for all tiles at once, in place of 144. The first convolution, of
few channels, is one product with the 3x3 neighbourhoods of all pixels.

The bias of a convolution has no effect and no gradient: the norm after it takes the mean of each channel away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from pseudocoresets.models.networks.convnet import ConvNet
from pseudocoresets.models.networks.network import Network

POSITIONS = 4
"""Pixels that are pooled together."""
TILE = 4
"""The side of a tile."""
PATCH = 6
"""The side of what a tile is computed from."""
PRODUCTS = PATCH**2
LARGEST_DENSE = 4
"""The largest side of images of which one matrix finds and transforms the tiles."""
LARGEST_ACTIVATION = 2**22
"""Numbers in the first convolution's output; some ten times as many are kept."""
INPUT = torch.tensor(
    [
        [4.0, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    dtype=torch.float64,
)
FILTER = torch.tensor([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]).double() / 24
OUTPUT = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]).double()
"""B, G and A for one dimension; the points are 0, 1, -1, 2, -2 and infinity."""

Slope = Callable[[Tensor], Tensor]
"""From scores (chains, images, classes) to the gradient of a function of them."""


def is_tileable(network: Network) -> bool:
    """Whether ``TiledConvNet`` knows the network: all its layers, and images whose sides are multiples of four."""
    if type(network.prototype) is not ConvNet:
        return False
    layers, side = _features(network), network.spec.shape[1]
    for first in range(0, len(layers), 4):
        match layers[first : first + 4]:
            case [nn.Conv2d() as convolution, nn.GroupNorm() as norm, nn.ReLU(), nn.AvgPool2d()]:
                side += 2 * int(convolution.padding[0]) - 2
                if norm.num_groups != norm.num_channels or side % TILE:
                    return False
                side //= 2
            case _:
                return False
    return True


def images_at_once(network: Network, chains: int) -> int:
    """How many images of a sum to take together: few enough for what is kept of them to stay near the cores."""
    width = network.layout[0][1][0]
    return max(1, LARGEST_ACTIVATION // (chains * width * math.prod(network.spec.shape[1:])))


class TiledConvNet:
    """Gradients of one network's scores, for a fixed number of chains and images.

    All memory is claimed here and used in every call, so threads must not share one.

    Args:
        network: One that ``is_tileable``.
        chains: Number of parameter sets.
        images: The shape of the images, (images, ...) for all chains or (chains, images, ...) for each its own.
        dtype: The number format of everything.
    """

    def __init__(self, network: Network, chains: int, images: torch.Size, dtype: torch.dtype) -> None:
        if not is_tileable(network):
            raise TypeError(f"The gradient of the network '{network.spec}' is not written out.")
        layers = _features(network)
        self._theta, self._gradient = torch.zeros(2, chains, network.size, dtype=dtype).unbind()
        self._images = torch.zeros(images, dtype=dtype)
        values, slopes = (list(network.unflatten(each).values()) for each in (self._theta, self._gradient))
        parameters = [Parameter(value, slope) for value, slope in zip(values, slopes, strict=True)]
        self._steps: list[_FirstConvolution | _TileConvolution | _NormAndPool] = []
        x = self._images if len(images) == 5 else self._images[None]
        for first in range(0, len(layers), 4):
            weight, _, scale, shift = parameters[first : first + 4]
            match layers[first : first + 2]:
                case [nn.Conv2d(padding=(int(padding), *_)), nn.GroupNorm(eps=float(epsilon))]:
                    convolution = _TileConvolution(x, weight) if first else _FirstConvolution(x, weight, padding)
                    norm = _NormAndPool(convolution.outputs, scale, shift, epsilon)
                    x = norm.outputs
                    self._steps += [convolution, norm]
        self._head = _Linear(x, *parameters[-2:])

    @torch.no_grad()
    def gradient(self, theta: Tensor, images: Tensor, slope: Slope) -> Tensor:
        """sum_ij slope_ij d score_ij / d theta for each chain: theta and the result are (chains, size)."""
        self._theta.copy_(theta)
        self._images.copy_(images)
        for step in self._steps:
            step.forward()
        back = self._head.backward(slope(self._head.scores()))
        for step in reversed(self._steps):
            back = step.backward(back)
        return self._gradient.clone()


class Parameter(NamedTuple):
    """A part of theta with a leading dimension of chains, and where its gradient is to be written."""

    value: Tensor
    slope: Tensor


class _FirstConvolution:
    """From images (1 or chains, images, channels, side, side) to pixels (chains, 4, pixels, images, filters)."""

    def __init__(self, x: Tensor, weight: Parameter, padding: int) -> None:
        sources, count, channels, side, _ = x.shape
        chains, filters = weight.value.shape[:2]
        padded = x.new_zeros(sources, channels, side + 2 * padding, side + 2 * padding, count)
        inner = slice(padding, -padding)
        self._copied = padded[:, :, inner, inner], x.permute(0, 2, 3, 4, 1)
        tiles = (side + 2 * padding - 2) // TILE
        source, channel, row, column, image = padded.stride()
        shape = (sources, channels, 3, 3, 2, 2, 2, 2, tiles, tiles, count)
        places = (row, column, row, column, 2 * row, 2 * column, 4 * row, 4 * column)
        near = padded.as_strided(shape, (source, channel, *places, image))
        self._gathered = x.new_zeros(shape), near
        """Of every pixel its 3x3 neighbours."""
        self._neighbourhoods = self._gathered[0].view(sources, channels * 9, -1).expand(chains, -1, -1)
        self._weight = weight.value.flatten(2).mT
        self._slope = weight.slope.flatten(2).mT
        self.outputs = x.new_zeros(chains, POSITIONS, POSITIONS * tiles**2, count, filters)
        self._products = self.outputs.view(chains, -1, filters)

    def forward(self) -> None:
        for target, source in (self._copied, self._gathered):
            target.copy_(source)
        torch.bmm(self._neighbourhoods.mT, self._weight.contiguous(), out=self._products)

    def backward(self, slopes: Tensor) -> Tensor:
        """The gradient in the filters; none in the images is wanted."""
        self._slope.copy_(torch.bmm(self._neighbourhoods, slopes.view_as(self._products)))
        return slopes


class _TileConvolution:
    """From pooled pixels (chains, pixels, images, channels) to pixels (chains, 4, pixels / 4, images, filters)."""

    def __init__(self, x: Tensor, weight: Parameter) -> None:
        chains, pixels, count, inputs = x.shape
        outputs, tiles = weight.value.shape[1], pixels // TILE**2
        self._g = torch.kron(FILTER, FILTER).to(x)
        rows = torch.kron(OUTPUT, OUTPUT).view(2, 2, 2, 2, PRODUCTS).permute(1, 3, 0, 2, 4)
        self._a = rows.reshape(TILE**2, PRODUCTS).to(x)
        self._tiling = (_DenseTiling if pixels <= LARGEST_DENSE**2 else _StridedTiling)(x)
        self._inputs = self._tiling.outputs.view(chains * PRODUCTS, tiles * count, inputs)
        self._weight = weight.value.reshape(chains, outputs * inputs, 9).mT
        self._slope = weight.slope.view(chains, outputs * inputs, 9).mT
        self._filters = x.new_zeros(chains, PRODUCTS, outputs * inputs)
        self._filter_slopes = torch.zeros_like(self._filters)
        self._products = x.new_zeros(chains, PRODUCTS, tiles * count * outputs)
        self.outputs = x.new_zeros(chains, POSITIONS, POSITIONS * tiles, count, outputs)
        self._by_position = self.outputs.view(chains, TILE**2, -1)
        self._apart = self._products.view(chains * PRODUCTS, -1, outputs)
        between = (chains * PRODUCTS, outputs, inputs)
        self._between, self._slopes_between = self._filters.view(between), self._filter_slopes.view(between)

    def forward(self) -> None:
        self._tiling.forward()
        torch.matmul(self._g, self._weight, out=self._filters)
        torch.bmm(self._inputs, self._between.mT, out=self._apart)
        torch.matmul(self._a, self._products, out=self._by_position)

    def backward(self, slopes: Tensor) -> Tensor:
        torch.matmul(self._a.mT, slopes.view(self._by_position.shape), out=self._products)
        torch.bmm(self._apart.mT, self._inputs, out=self._slopes_between)
        self._slope.copy_(torch.matmul(self._g.mT, self._filter_slopes))
        torch.bmm(self._apart, self._between, out=self._inputs)
        return self._tiling.backward()


class _Tiling(Protocol):
    """The linear map from pixels to B d B' of all tiles, ``outputs`` (chains, 36, ...), and its adjoint."""

    outputs: Tensor

    def forward(self) -> None: ...

    def backward(self) -> Tensor:
        """The adjoint of what ``outputs`` hold."""
        ...


class _DenseTiling:
    """As one matrix, for small images."""

    def __init__(self, x: Tensor) -> None:
        chains, pixels, count, channels = x.shape
        side = math.isqrt(pixels)
        lines = x.new_zeros(PATCH, side // TILE, side + 2)
        for tile in range(side // TILE):
            lines[:, tile, TILE * tile : TILE * tile + PATCH] = INPUT.to(x)
        lines = lines[:, :, 1:-1].unflatten(2, (-1, 2))
        self._matrix = torch.einsum("pirs,qjcd->pqijsdrc", lines, lines).reshape(-1, pixels)
        self._x = x.flatten(2)
        self.outputs = x.new_zeros(chains, len(self._matrix), count * channels)
        self._back = torch.zeros_like(self._x)

    def forward(self) -> None:
        torch.matmul(self._matrix, self._x, out=self.outputs)

    def backward(self) -> Tensor:
        return torch.matmul(self._matrix.mT, self.outputs, out=self._back)


class _StridedTiling:
    """The patches copied out of a padded image, and then transformed."""

    def __init__(self, x: Tensor) -> None:
        chains, pixels, count, channels = x.shape
        side, width = math.isqrt(pixels), count * channels
        tiles = side // TILE
        self._b = torch.kron(INPUT, INPUT).to(x)
        padded = x.new_zeros(chains, side + 2, side + 2, width)
        self._copied = _inner_by_tiles(padded), x.view(chains, 2, 2, side // 2, side // 2, width)
        chain, row, column, _ = padded.stride()
        shape = (chains, PATCH, PATCH, tiles, tiles, width)
        near = padded.as_strided(shape, (chain, row, column, TILE * row, TILE * column, 1))
        patches = x.new_zeros(shape)
        self._gathered = patches, near
        self._patches = patches.view(chains, PRODUCTS, -1)
        self.outputs = torch.zeros_like(self._patches)
        self._sum = x.new_zeros(chains, tiles + 1, TILE, tiles + 1, TILE, width)
        self._back = _inner_by_tiles(self._sum.view(chains, side + TILE, side + TILE, width)[:, : side + 2, : side + 2])
        near = patches.permute(0, 3, 1, 4, 2, 5)
        own, beyond = (slice(0, tiles), slice(0, TILE)), (slice(1, None), slice(0, PATCH - TILE))
        parts = ((own, slice(0, TILE)), (beyond, slice(TILE, None)))
        self._overlaps = [
            (self._sum[:, *rows, *columns], near[:, :, in_rows, :, in_columns])
            for rows, in_rows in parts
            for columns, in_columns in parts
        ]

    def forward(self) -> None:
        for target, source in (self._copied, self._gathered):
            target.copy_(source)
        torch.matmul(self._b, self._patches, out=self.outputs)

    def backward(self) -> Tensor:
        torch.matmul(self._b.mT, self.outputs, out=self._patches)
        self._sum.zero_()
        for target, part in self._overlaps:
            target.add_(part)
        return self._back


def _inner_by_tiles(padded: Tensor) -> Tensor:
    """Images (chains, side + 2, side + 2, width) without their border, (chains, 2, 2, side / 2, side / 2, width)."""
    return padded[:, 1:-1, 1:-1].unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 2, 4, 1, 3, 5)


class _NormAndPool:
    """From pixels y (chains, 4, pixels, images, channels) to pooled pixels (chains, pixels, images, channels).

    c = y - mean y,  s = 1 / sqrt(mean c^2 + eps),  z = max(0, c s scale + shift) / 4,  pooled = sum of z over the four

    Means over the P pixels are sums whose 1 / P is part of what follows; t = s / sqrt(P) is kept in place of s.
    """

    def __init__(self, y: Tensor, scale: Parameter, shift: Parameter, epsilon: float) -> None:
        chains, _, tiles, count, channels = y.shape
        self._y, self._pixels = y.view(chains, POSITIONS * tiles, -1), POSITIONS * tiles
        self._epsilon, self._share = self._pixels * epsilon, math.sqrt(self._pixels) / POSITIONS
        self._active, self._slopes = torch.zeros_like(self._y), torch.zeros_like(self._y)
        self._scale = scale.value[:, None, None]
        self._scale_slope, self._shift_slope = scale.slope, shift.slope
        sums = y.new_zeros(5, chains, 1, count * channels)
        self._sums, self._along, self._inverse, self._factor, self._shifts = sums
        by_image = sums.view(5, chains, 1, count, channels)
        self._sums_by_image, self._along_by_image, self._inverse_by_image, *others = by_image
        self._factor_by_image, self._shifts_by_image = others
        self._shift = shift.value[:, None, None].expand_as(self._shifts_by_image)
        self.outputs = y.new_zeros(chains, tiles, count, channels)
        self._pooled = self.outputs.view(chains, -1)
        self._pooled_from = self._active.view(chains, POSITIONS, -1)
        tiled = (chains, POSITIONS, tiles, count * channels)
        self._active_tiled, self._slopes_tiled = self._active.view(tiled), self._slopes.view(tiled)
        self._of_pooled = (chains, 1, *tiled[2:])
        self._back = self._y.view(chains, POSITIONS, -1)

    def forward(self) -> None:
        y, active = self._y, self._active
        y.sub_(torch.sum(y, 1, keepdim=True, out=self._sums), alpha=1 / self._pixels)
        torch.mul(y, y, out=active)
        torch.sum(active, 1, keepdim=True, out=self._inverse).add_(self._epsilon).rsqrt_()
        torch.mul(self._inverse_by_image, self._scale, out=self._factor_by_image)
        torch.mul(self._shift, 1 / POSITIONS, out=self._shifts_by_image)
        torch.addcmul(self._shifts, y, self._factor.mul_(self._share), out=active).clamp_(min=0)
        torch.sum(self._pooled_from, 1, out=self._pooled)

    def backward(self, slopes: Tensor) -> Tensor:
        """dL/dy from dL/dpooled, in the place of y; dL/dscale and dL/dshift are written.

        With r = dL/dpooled where z > 0, f = s scale / 4 and sums over the pixels of an image's channel,
        dL/dy = f (r - sum r / P - c t^2 sum(r c)).
        """
        y, z, factor = self._y, self._slopes, self._factor
        above = slopes.reshape(self._of_pooled).expand_as(self._active_tiled)
        torch.ops.aten.threshold_backward.grad_input(above, self._active_tiled, 0, grad_input=self._slopes_tiled)
        sums = torch.sum(z, 1, keepdim=True, out=self._sums)
        along = torch.sum(torch.mul(z, y, out=self._active), 1, keepdim=True, out=self._along).mul_(self._inverse)
        torch.sum(self._along_by_image, (1, 2), out=self._scale_slope).mul_(self._share)
        torch.sum(self._sums_by_image, (1, 2), out=self._shift_slope).div_(POSITIONS)
        sums.mul_(factor).div_(-self._pixels)
        torch.addcmul(sums, y, along.mul_(self._inverse).mul_(factor), value=-1, out=y).addcmul_(z, factor)
        return self._back


class _Linear:
    """From pooled pixels (chains, pixels, images, channels) to scores (chains, images, classes)."""

    def __init__(self, x: Tensor, weight: Parameter, bias: Parameter) -> None:
        chains, pixels, count, channels = x.shape
        self._weight, self._bias = weight, bias
        half = math.isqrt(pixels) // 2
        by_rows = (0, 5, 6, 3, 1, 4, 2)
        self._x = x.view(chains, 2, 2, half, half, count, channels).permute(by_rows)
        self._seen, self._back = x.new_zeros(self._x.shape), torch.zeros_like(x)
        self._back_by_rows = self._back.view(chains, 2, 2, half, half, count, channels).permute(by_rows)

    def scores(self) -> Tensor:
        seen = self._seen.copy_(self._x).flatten(2)
        return torch.baddbmm(self._bias.value[:, None], seen, self._weight.value.mT)

    def backward(self, slopes: Tensor) -> Tensor:
        self._weight.slope.copy_(torch.bmm(slopes.mT, self._seen.flatten(2)))
        torch.sum(slopes, 1, out=self._bias.slope)
        self._back_by_rows.copy_(torch.bmm(slopes, self._weight.value).view(self._seen.shape))
        return self._back


def _features(network: Network) -> list[nn.Module]:
    return list(network.prototype.get_submodule("features").children())
