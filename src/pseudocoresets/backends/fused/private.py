"""Clipped gradients per example on a GPU: products of matrices in the images' precision, sums in float64, one graph.

Everything is channels last, so that the patches (pixels, height * width * inputs) of an image are copied in long runs
and its gradient in a convolution's weight is one product of matrices. Gradients are computed in bfloat16, and so
rounded; each still depends on one example alone, and what is added up are the very numbers whose norm was taken.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.backends.fused.capture import captured
from pseudocoresets.backends.fused.norm import group_norm_of_images, has_kernel
from pseudocoresets.backends.fused.rows import FusedStacked
from pseudocoresets.dp import LayerwiseGradients, Stacked, clipped_sum
from pseudocoresets.models.networks import Network

ALIGNMENT = 8
"""Columns that products of matrices in bfloat16 go in."""
WARM_UPS = 2


class FusedGradients(LayerwiseGradients):
    """The gradients layer by layer, of images that are channels last."""

    def _applied(self, layer: nn.Conv2d | nn.Linear, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if isinstance(layer, nn.Conv2d):
            weight = weight.clone(memory_format=torch.channels_last)
            return super()._applied(layer, x, weight, bias).contiguous(memory_format=torch.channels_last)
        return super()._applied(layer, x, weight, bias)

    def _normalised(self, layer: nn.GroupNorm | nn.LayerNorm, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if isinstance(layer, nn.GroupNorm) and has_kernel(x, layer.num_groups):
            return group_norm_of_images(x, layer.num_groups, weight, bias, layer.eps)
        return super()._normalised(layer, x, weight, bias)

    def _of_filters(self, layer: nn.Conv2d, x: Tensor, d: Tensor) -> Stacked:
        assert not isinstance(layer.padding, str)
        (high, wide), (rows, columns), (down, along) = layer.padding, layer.kernel_size, layer.stride
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, wide, wide, high, high))
        patches = padded.unfold(1, rows, down).unfold(2, columns, along).permute(0, 1, 2, 4, 5, 3)
        flat = patches.reshape(len(x), -1, layer.in_channels * rows * columns)
        flat = F.pad(flat, (0, -flat.shape[2] % ALIGNMENT))
        slopes = d.permute(0, 2, 3, 1).reshape(len(x), -1, layer.out_channels)
        return self._stacked(torch.bmm(slopes.mT, flat).flatten(1))

    def _summed_filters(self, layer: nn.Conv2d, total: Tensor) -> Tensor:
        rows, columns = layer.kernel_size
        real = total.view(layer.out_channels, -1)[:, : layer.in_channels * rows * columns]
        return real.reshape(layer.out_channels, rows, columns, -1).permute(0, 3, 1, 2).flatten()

    def _stacked(self, values: Tensor) -> Stacked:
        return FusedStacked(values)


class CapturedClippedSum:
    """The clipped sum over a fixed number of examples, as one CUDA graph; on a CPU, simply computed."""

    def __init__(self, network: Network, images: torch.Size, device: torch.device, dtype: torch.dtype) -> None:
        self._gradients = FusedGradients(network)
        self._theta = torch.zeros(network.size, device=device)
        self._x = torch.zeros(images, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        self._y = torch.zeros(len(self._x), device=device, dtype=torch.int64)
        self._admitted = torch.zeros(len(self._x), device=device, dtype=torch.bool)
        self._norm = torch.ones((), device=device, dtype=torch.float64)
        self._total = torch.zeros(network.size, device=device, dtype=torch.float64)
        self._graph = captured(self._work, self._warm_up) if device.type == "cuda" else None

    def __call__(self, theta: Tensor, x: Tensor, y: Tensor, norm: float, admitted: Tensor | None) -> Tensor:
        self._theta.copy_(theta.detach())
        self._x.copy_(x)
        self._y.copy_(y)
        self._norm.fill_(norm)
        self._admitted.fill_(True) if admitted is None else self._admitted.copy_(admitted)
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()
        return self._total.clone()

    def _work(self) -> None:
        gradients = self._gradients(self._theta, self._x, self._y)
        self._total.copy_(clipped_sum(gradients, self._norm, self._admitted))

    def _warm_up(self) -> None:
        for _ in range(WARM_UPS):
            self._work()
