"""Features of images under one parameter set as a differentiable function of the images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pseudocoresets.backends.fused.convnet import EnergyGradient
from pseudocoresets.backends.fused.first_block import patches_of


class ImageFeatures(torch.autograd.Function):
    """What the activations of a ConvNet give, where they are wanted, and its embeddings: (m, size) each, float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, theta: Tensor, workspace: EnergyGradient, of_layers: bool) -> tuple[Tensor, ...]:
        patches = patches_of(x.detach(), workspace.layout, workspace.dtype)
        ordered = theta[workspace.layout.order]
        compact = ordered.to(workspace.dtype)
        found = workspace.features(ordered, compact, patches, of_layers)
        ctx.place, ctx.workspace, ctx.shapes = (ordered, compact, patches), workspace, [each.shape for each in found]
        return tuple(
            each.to(torch.float32, copy=True, memory_format=torch.contiguous_format).flatten(1) for each in found
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shaped = [
            each.reshape(shape).to(ctx.workspace.dtype, memory_format=_format(shape))
            for each, shape in zip(gradients, ctx.shapes, strict=True)
        ]
        return ctx.workspace.feature_gradient(*ctx.place, shaped), None, None, None


def _format(shape: torch.Size) -> torch.memory_format:
    return torch.channels_last if len(shape) == 4 else torch.contiguous_format
