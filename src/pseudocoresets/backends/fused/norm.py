"""Group norm of channels-last images as one Triton kernel each way, for networks that are captured as they are.

With mean_g and r_g = 1 / sqrt(var_g + eps) those of an image's group g of channels,

    y_cj = gamma_c xhat_cj + beta_c,      xhat_cj = r_g (x_cj - mean_g)

    dgamma_c = sum d_cj xhat_cj,      dbeta_c = sum d_cj      (over images and pixels j)
    dx_cj    = r_g (gamma_c d_cj - mean_g(gamma d) - xhat_cj mean_g(gamma d xhat))

PyTorch's own norm takes several kernels each way, and copies images that are not channels-first before and after it. A
program holds all pixels of some whole groups of one image in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pseudocoresets.backends.fused.chip import spread_over_chip

MOST_VALUES = 32_768
"""That one program holds."""
USUAL_VALUES = 8192


@triton.jit
def _mean_of_groups(values, each: tl.constexpr, block: tl.constexpr, pixels: tl.constexpr):
    """From sums over pixels (block,), the mean over each group, for every channel of it."""
    sums = tl.sum(tl.reshape(values, (block // each, each)), 1) / (pixels * each)
    return tl.reshape(tl.broadcast_to(sums[:, None], (block // each, each)), (block,))


@triton.jit
def _places(channels: tl.constexpr, pixels: tl.constexpr, padded: tl.constexpr, block: tl.constexpr):
    """The program's image and channels, which of its padded pixels are real, and where they lie (padded, block)."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    j = tl.arange(0, padded)
    return image, c, (j < pixels)[:, None], image * (pixels * channels) + j[:, None] * channels + c[None, :]


@triton.jit
def _normalise(
    x,
    gamma,
    beta,
    out,
    means,
    rates,
    epsilon,
    channels: tl.constexpr,
    each: tl.constexpr,
    pixels: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
):
    image, c, real, place = _places(channels, pixels, padded, block)
    z = tl.load(x + place, mask=real, other=0.0).to(tl.float32)
    mean = _mean_of_groups(tl.sum(z, 0), each, block, pixels)
    z = tl.where(real, z - mean[None, :], 0.0)
    rate = 1.0 / tl.sqrt(_mean_of_groups(tl.sum(z * z, 0), each, block, pixels) + epsilon)
    tl.store(means + image * channels + c, mean)
    tl.store(rates + image * channels + c, rate)
    scale = tl.load(gamma + c).to(tl.float32) * rate
    shift = tl.load(beta + c).to(tl.float32)
    tl.store(out + place, (scale[None, :] * z + shift[None, :]).to(out.dtype.element_ty), mask=real)


@triton.jit
def _normalise_backward(
    x,
    gamma,
    means,
    rates,
    gradient,
    dx,
    dgamma,
    dbeta,
    channels: tl.constexpr,
    each: tl.constexpr,
    pixels: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
    apart: tl.constexpr,
):
    """``apart``: dgamma and dbeta are those of each image (images, channels), and not their sums."""
    image, c, real, place = _places(channels, pixels, padded, block)
    mean = tl.load(means + image * channels + c)
    rate = tl.load(rates + image * channels + c)
    scale = tl.load(gamma + c).to(tl.float32)
    d = tl.load(gradient + place, mask=real, other=0.0).to(tl.float32)
    xhat = (tl.load(x + place, mask=real, other=0.0).to(tl.float32) - mean[None, :]) * rate[None, :]
    sum_d = tl.sum(d, 0)
    sum_dx = tl.sum(d * xhat, 0)
    if apart:
        tl.store(dbeta + image * channels + c, sum_d)
        tl.store(dgamma + image * channels + c, sum_dx)
    else:
        tl.atomic_add(dbeta + c, sum_d, sem="relaxed")
        tl.atomic_add(dgamma + c, sum_dx, sem="relaxed")
    along = _mean_of_groups(scale * sum_d, each, block, pixels)
    across = _mean_of_groups(scale * sum_dx, each, block, pixels)
    found = rate[None, :] * (scale[None, :] * d - along[None, :] - xhat * across[None, :])
    tl.store(dx + place, found.to(dx.dtype.element_ty), mask=real)


class GroupNorm(torch.autograd.Function):
    """y of channels-last images x (m, channels, height, width).

    ``apart``: gamma and beta are (m, channels), copies of the same row, so that each image has gradients of its own.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, groups: int, epsilon: float, apart: bool = False
    ) -> Tensor:
        images, channels = x.shape[:2]
        statistics = torch.empty(2, images, channels, device=x.device)
        out = torch.empty_like(x)
        ctx.shape = shape = _shape_of(x, groups)
        ctx.apart = apart
        gamma, beta = (each[0].contiguous() if apart else each for each in (gamma, beta))
        ctx.save_for_backward(x, gamma, statistics)
        _normalise[(images, channels // shape[-1])](
            x, gamma, beta, out, *statistics, epsilon, *shape, num_warps=_warps(shape)
        )
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, statistics = ctx.saved_tensors
        gradient = outputs[0].contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        places = (2, *x.shape[:2]) if ctx.apart else (2, x.shape[1])
        dgamma, dbeta = sums = torch.zeros(places, device=x.device)
        _normalise_backward[(len(x), x.shape[1] // ctx.shape[-1])](
            x, gamma, *statistics, gradient, dx, *sums, *ctx.shape, ctx.apart, num_warps=_warps(ctx.shape)
        )
        return dx, dgamma.to(gamma.dtype), dbeta.to(gamma.dtype), None, None, None


class ChannelsLastNorms(TorchFunctionMode):
    """Within the block, group norms of channels-last images are these kernels."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return (group_norm if func is F.group_norm else func)(*args, **(kwargs or {}))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """``torch.nn.functional.group_norm``, by a kernel where there is one for these images."""
    if weight is None or bias is None or not has_kernel(input, num_groups):
        return F.group_norm(input, num_groups, weight, bias, eps)
    normalised: Tensor = GroupNorm.apply(input, weight.contiguous(), bias.contiguous(), num_groups, eps)
    return normalised


def group_norm_of_images(x: Tensor, groups: int, weights: Tensor, biases: Tensor, epsilon: float) -> Tensor:
    """The same by the kernel, with a copy of weight and bias for each image: (images, channels)."""
    normalised: Tensor = GroupNorm.apply(x, weights, biases, groups, epsilon, True)
    return normalised


def has_kernel(x: Tensor, groups: int) -> bool:
    if x.dim() != 4 or x.dtype == torch.float64 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    *_, each, _, padded, block = _shape_of(x, groups)
    return each & (each - 1) == 0 and block % each == 0 and padded * block <= MOST_VALUES


def _shape_of(x: Tensor, groups: int) -> tuple[int, int, int, int, int]:
    """What the kernels are compiled for: channels, those of a group, pixels, these padded, channels of a program."""
    images, channels, height, width = x.shape
    each, pixels = channels // groups, height * width
    padded = triton.next_power_of_2(pixels)
    few = spread_over_chip(images * channels, x.device) < 8192
    usual = 8 if few else max(8, min(64, USUAL_VALUES // padded))
    return channels, each, pixels, padded, min(max(each, usual), channels & -channels)


def _warps(shape: tuple[int, int, int, int, int]) -> int:
    values = shape[-2] * shape[-1]
    return 16 if values > 16_384 else 8 if values > 8192 else 4 if values >= 2048 else 2 if values >= 512 else 1
