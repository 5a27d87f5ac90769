"""Energies of many parameter sets as a differentiable function of images, soft labels and weights.

    e_j = sum_i s_i c_ij,   c_ij = cross-entropy(f(x_i; theta_j), y_i)

    de_j/dx_i = s_i dc_ij/dx_i,   de_j/dy_i = - s_i log p_ij,   de_j/ds_i = c_ij

All three are found on the way forward, with s_i = 1: an image's gradient depends on no other image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pseudocoresets.backends.fused.convnet import EnergyGradient
from pseudocoresets.backends.fused.first_block import patches_of
from pseudocoresets.backends.fused.layout import Layout


class ImageEnergies(torch.autograd.Function):
    """e (parameter sets,) of images x, labels y, which may be distributions, and factors s."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, thetas: Tensor, y: Tensor, factors: Tensor, layout: Layout, workspace: EnergyGradient
    ) -> Tensor:
        patches = patches_of(x.detach(), layout, workspace.dtype)
        ones = torch.ones(len(x), device=x.device)
        entropies = torch.empty(len(thetas), len(x), device=x.device)
        of_images, of_labels = [], []
        for theta, row in zip(thetas, entropies, strict=True):
            ordered = theta[layout.order]
            of_images.append(workspace.input_gradient(ordered, ordered.to(workspace.dtype), patches, y, ones, row))
            if ctx.needs_input_grad[2]:
                of_labels.append(workspace.label_gradient())
        labels = torch.stack(of_labels) if of_labels else None
        ctx.save_for_backward(factors, entropies, torch.stack(of_images), labels)
        return entropies @ factors

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        factors, entropies, of_images, of_labels = ctx.saved_tensors
        given = outputs[0]
        shares = torch.outer(given, factors)
        dy = None if of_labels is None else torch.einsum("jm,jmc->mc", shares, of_labels)
        return torch.einsum("jm,jmchw->mchw", shares, of_images), None, dy, given @ entropies, None, None
