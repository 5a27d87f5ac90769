"""Energies of many parameter sets as a differentiable function of the images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pseudocoresets.backends.fused.convnet import EnergyGradient
from pseudocoresets.backends.fused.first_block import patches_of
from pseudocoresets.backends.fused.layout import Layout


class ImageEnergies(torch.autograd.Function):
    """e_j = sum_i s_i cross-entropy(f(x_i; theta_j), y_i), with its gradient in x found on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, thetas: Tensor, y: Tensor, factors: Tensor, layout: Layout, workspace: EnergyGradient
    ) -> Tensor:
        patches = patches_of(x.detach(), layout, workspace.dtype)
        energies = torch.empty(len(thetas), len(x), device=x.device)
        gradients = []
        for theta, row in zip(thetas, energies, strict=True):
            ordered = theta[layout.order]
            gradient = workspace.input_gradient(ordered, ordered.to(workspace.dtype), patches, y, factors, row)
            gradients.append(gradient)
        ctx.save_for_backward(torch.stack(gradients))
        return energies.sum(1)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors
        return torch.einsum("j,jmchw->mchw", outputs[0], gradients), None, None, None, None, None
