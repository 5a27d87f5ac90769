"""The gradient of a ConvNet's energy by hand: about twenty kernels per step instead of seventy.

For a ConvNet of 3x3 convolutions, instance norm, ReLU and 2x2 average pooling, in bfloat16 with float32 parameters.
Inner convolutions are cuDNN's; everything else is fused (``blocks``, ``head``). Parameters are kept in the order in
which the kernels read them: each convolution's weight as (out, 3, 3, in) instead of (out, in, 3, 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pseudocoresets.backends.fused import blocks, head
from pseudocoresets.backends.fused.layout import Block, Layout


class EnergyGradient:
    """Workspace for the gradient of sum_i s_i cross-entropy_i for ``images`` images, on one stream.

    What the layout's chains give is times their ``signs``, which are 1 at first.
    """

    def __init__(
        self,
        layout: Layout,
        images: int,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.layout = layout
        self.dtype = dtype
        self.signs = torch.ones(layout.chains, device=device)
        self._convolved, self._pooled = [], []
        last = len(layout.blocks) - 1
        for number, block in enumerate(layout.blocks):
            self._convolved.append(_channels_last(images, block.channels, block.side, device, dtype))
            pooled = _channels_last(images, block.channels, block.side // 2, device, dtype)
            self._pooled.append(pooled.contiguous() if number == last else pooled)
        rows = images * layout.chains
        self._dlogits, self._dlabels = (
            torch.empty(rows, head.padded_classes(layout.classes), device=device) for _ in range(2)
        )
        self._dfeatures = torch.empty(rows, layout.features, device=device, dtype=dtype)
        self._dconvolved = [torch.empty_like(z) for z in self._convolved]

    def accumulate(
        self, theta: Tensor, compact: Tensor, x: Tensor, y: Tensor, factors: Tensor, gradient: Tensor, energies: Tensor
    ) -> None:
        """Add the gradient in the parameters to ``gradient``, which is zero before.

        ``theta`` float32 and ``compact`` bfloat16 are the same parameters in the kernels' order; ``x`` is bfloat16,
        channels last; ``energies`` (m,), or (m * chains,), gets s_i cross-entropy_i.
        """
        features = self._classify(theta, compact, x, y, factors, energies)
        layout = self.layout
        head.classifier_gradient(
            features, self._dlogits, gradient[layout.classifier_weight], gradient[layout.classifier_bias], layout.chains
        )
        self._backward(theta, compact, x, gradient, of_weights=True)

    def accumulate_both(
        self,
        theta: Tensor,
        compact: Tensor,
        x: Tensor,
        y: Tensor,
        factors: Tensor,
        gradient: Tensor,
        energies: Tensor,
        dx: Tensor,
    ) -> None:
        """``accumulate``, and write the gradient in the images, summed over chains, into ``dx``."""
        self.accumulate(theta, compact, x, y, factors, gradient, energies)
        self._image_gradient(compact, dx)

    def label_gradient(self) -> Tensor:
        """The gradient in soft labels (m, classes) at the parameters used last, summed over chains."""
        layout = self.layout
        return self._dlabels.view(-1, layout.chains, self._dlabels.shape[1]).sum(1)[:, : layout.classes]

    def input_gradient(
        self, theta: Tensor, compact: Tensor, x: Tensor, y: Tensor, factors: Tensor, energies: Tensor
    ) -> Tensor:
        """The gradient of sum_i s_i cross-entropy_i in the images (m, channels, height, width)."""
        self._classify(theta, compact, x, y, factors, energies)
        self._backward(theta, compact, x, torch.zeros_like(theta), of_weights=False)
        dx = torch.empty(x.shape, device=x.device)
        self._image_gradient(compact, dx)
        return dx

    def features(self, theta: Tensor, compact: Tensor, x: Tensor, of_layers: bool) -> list[Tensor]:
        """The embeddings (m, features), after what each activation gives if ``of_layers``; a view of the workspace."""
        activations = [torch.empty_like(z) for z in self._convolved] if of_layers else []
        self._forward(theta, compact, x, activations)
        return [*activations, self._pooled[-1].view(len(x), self.layout.features)]

    def feature_gradient(self, theta: Tensor, compact: Tensor, x: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """The gradient in the images, given those of what ``features`` gave last."""
        *dactivations, dfeatures = gradients
        self._dfeatures.copy_(dfeatures)
        self._backward(theta, compact, x, torch.zeros_like(theta), of_weights=False, dactivations=dactivations)
        dx = torch.empty(x.shape, device=x.device)
        self._image_gradient(compact, dx)
        return dx

    def logits(self, theta: Tensor, compact: Tensor, x: Tensor) -> Tensor:
        """Class scores (m, classes), float32."""
        self._forward(theta, compact, x)
        layout = self.layout
        weight = compact[layout.classifier_weight].view(layout.classes, layout.features)
        scores = self._pooled[-1].view(len(x), layout.features) @ weight.T
        return scores.float() + theta[layout.classifier_bias]

    def _classify(
        self, theta: Tensor, compact: Tensor, x: Tensor, y: Tensor, factors: Tensor, energies: Tensor
    ) -> Tensor:
        """Forward, the energies, and the gradients at the classifier; returns the features (m * chains, size)."""
        self._forward(theta, compact, x)
        layout = self.layout
        weight = compact[layout.classifier_weight].view(layout.chains * layout.classes, layout.features)
        features = self._pooled[-1].view(-1, layout.features)
        bias = theta[layout.classifier_bias]
        head.classify(
            features,
            weight,
            bias,
            y,
            factors,
            energies,
            self._dlogits,
            self._dfeatures,
            self._dlabels,
            self.signs,
        )
        return features

    def _forward(self, theta: Tensor, compact: Tensor, x: Tensor, activations: Sequence[Tensor] = ()) -> None:
        """Up through the blocks, writing ``activations``, of all blocks or none, on the way."""
        for number, block in enumerate(self.layout.blocks):
            z = self._convolved[number]
            if number == 0:
                blocks.first_convolution(x, compact[block.weight], z, block.padding)
            else:
                z = torch.ops.aten.convolution(
                    self._pooled[number - 1],
                    _kernel(compact, block),
                    None,
                    [1, 1],
                    [1, 1],
                    [1, 1],
                    False,
                    [0, 0],
                    self.layout.chains,
                )
                self._convolved[number] = z
            activation = activations[number] if activations else None
            blocks.norm_relu_pool(z, theta[block.gamma], theta[block.beta], self._pooled[number], activation)

    def _backward(
        self,
        theta: Tensor,
        compact: Tensor,
        x: Tensor,
        gradient: Tensor,
        of_weights: bool,
        dactivations: Sequence[Tensor] = (),
    ) -> None:
        """Down through the blocks, adding to ``gradient``; ``dactivations`` are those of all blocks or none."""
        incoming = self._dfeatures.view(self._pooled[-1].shape)
        for number in reversed(range(len(self.layout.blocks))):
            block, dz = self.layout.blocks[number], self._dconvolved[number]
            gamma, beta = theta[block.gamma], theta[block.beta]
            dgamma, dbeta = gradient[block.gamma], gradient[block.beta]
            seen = dactivations[number] if dactivations else None
            blocks.norm_relu_pool_backward(self._convolved[number], gamma, beta, incoming, dz, dgamma, dbeta, seen)
            if number == 0:
                break
            below, weight = self._pooled[number - 1], _kernel(compact, block)
            chains = self.layout.chains
            incoming, dweight = _convolution_backward(dz, below, weight, block.padding, chains, of_weights)
            if of_weights:
                gradient[block.weight].view(block.channels, 3, 3, block.inputs).copy_(dweight.permute(0, 2, 3, 1))
        if of_weights:
            first = self.layout.blocks[0]
            blocks.first_convolution_weight_gradient(x, self._dconvolved[0], gradient[first.weight], first.padding)

    def _image_gradient(self, compact: Tensor, dx: Tensor) -> None:
        """Through the first convolution, after ``_backward``, into ``dx`` (m, channels, height, width)."""
        first = self.layout.blocks[0]
        weight = compact[first.weight].view(first.channels, 9 * first.inputs)
        blocks.first_convolution_input_gradient(weight, self._dconvolved[0], dx, first.padding)


def parameter_gradient(workspace: EnergyGradient, thetas: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy at each of ``thetas`` (chains, size), and its gradients, in the network's order."""
    layout = workspace.layout
    ordered = thetas.flatten()[layout.order]
    gradient = torch.zeros_like(ordered)
    energies = torch.empty(len(x) * layout.chains, device=x.device)
    factors = torch.full((len(x),), 1 / len(x), device=x.device)
    images = x.to(workspace.dtype, memory_format=torch.channels_last)
    workspace.accumulate(ordered, ordered.to(workspace.dtype), images, y, factors, gradient, energies)
    return energies.view(len(x), layout.chains).sum(0), gradient[layout.inverse].view_as(thetas)


def _convolution_backward(
    dz: Tensor, below: Tensor, weight: Tensor, padding: int, groups: int, of_weights: bool
) -> tuple[Tensor, Tensor]:
    """cuDNN's gradients of a 3x3 convolution in its input and, if wanted, its weight."""
    ones, zeros = [1, 1], [0, 0]
    wanted = [True, of_weights, False]
    dinput, dweight, _ = torch.ops.aten.convolution_backward(
        dz, below, weight, None, ones, [padding, padding], ones, False, zeros, groups, wanted
    )
    return dinput, dweight


def _kernel(compact: Tensor, block: Block) -> Tensor:
    """The weight (out, in, 3, 3) as a channels-last view of the parameters."""
    return compact[block.weight].view(block.channels, 3, 3, block.inputs).permute(0, 3, 1, 2)


def _channels_last(images: int, channels: int, side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(images, channels, side, side, device=device, dtype=dtype, memory_format=torch.channels_last)
