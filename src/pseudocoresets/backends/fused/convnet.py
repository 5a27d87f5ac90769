"""The gradient of a ConvNet's energy by hand: about twenty kernels per step instead of seventy.

For a ConvNet of 3x3 convolutions, instance norm, ReLU and 2x2 average pooling, in bfloat16 with float32 parameters.
Inner convolutions are cuDNN's, or the ``small_blocks``' own; everything else is fused (``first_block``, ``blocks``,
``head``). Parameters are kept in
the order in which the kernels read them: each convolution's weight as (out, 3, 3, in) instead of (out, in, 3, 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pseudocoresets.backends.fused import blocks, first_block, head, small_blocks
from pseudocoresets.backends.fused.first_block import Patches
from pseudocoresets.backends.fused.layout import Block, Layout


class EnergyGradient:
    """Workspace for the gradient of sum_i s_i cross-entropy_i for ``images`` images, on one stream.

    What the layout's chains give is times their ``signs``, which are 1 at first. Gradients of weights, which nothing
    waits for on the way down, have a stream of their own.
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
        inner = layout.blocks[1:]
        self._small = small_blocks.suit(layout, images, device, small_blocks.MOST_VALUES)
        self._small_weights = small_blocks.suit(layout, images, device, small_blocks.MOST_VALUES_OF_WEIGHTS)
        self._convolved, self._dconvolved = (
            [_channels_last(count, block.channels, block.side, device, dtype) for block in inner]
            for count in (images if self._small else 0, images)  # cuDNN makes its own
        )
        self._pooled = [
            _channels_last(images, block.channels, block.side // 2, device, dtype) for block in layout.blocks
        ]
        self._pooled[-1] = self._pooled[-1].contiguous()
        self._statistics = [torch.empty(2, images, block.channels, device=device) for block in layout.blocks]
        rows = images * layout.chains
        self._dlogits, self._dlabels = (
            torch.empty(rows, head.padded_classes(layout.classes), device=device) for _ in range(2)
        )
        self._dfeatures = torch.empty(rows, layout.features, device=device, dtype=dtype)
        self._turns = layout.chains == 1 and not self._small
        self._turned = torch.empty(len(layout.turned) if self._turns else 0, device=device, dtype=dtype)
        first = layout.blocks[0]
        self._dpooled = _channels_last(images if self._small else 0, first.channels, first.side // 2, device, dtype)
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._turning = torch.cuda.Event() if device.type == "cuda" else None

    def accumulate(
        self,
        theta: Tensor,
        compact: Tensor,
        patches: Patches,
        y: Tensor,
        factors: Tensor,
        gradient: Tensor,
        energies: Tensor,
        dx: Tensor | None = None,
    ) -> None:
        """Add the gradient in the parameters to ``gradient``, which is zero before.

        ``theta`` float32 and ``compact`` bfloat16 are the same parameters in the kernels' order; ``energies``
        (m,), or (m * chains,), gets s_i cross-entropy_i, and ``dx``, if given, the gradient in the images, summed over
        chains.
        """
        features = self._classify(theta, compact, patches, y, factors, energies)
        layout = self.layout
        dweight, dbias = gradient[layout.classifier_weight], gradient[layout.classifier_bias]
        with self._aside():
            head.classifier_gradient(features, self._dlogits, dweight, dbias, layout.chains)
        self._backward(theta, compact, patches, gradient, of_weights=True, dx=dx)
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)

    def label_gradient(self) -> Tensor:
        """The gradient in soft labels (m, classes) at the parameters used last, summed over chains."""
        layout = self.layout
        return self._dlabels.view(-1, layout.chains, self._dlabels.shape[1]).sum(1)[:, : layout.classes]

    def input_gradient(
        self, theta: Tensor, compact: Tensor, patches: Patches, y: Tensor, factors: Tensor, energies: Tensor
    ) -> Tensor:
        """The gradient of sum_i s_i cross-entropy_i in the images (m, channels, height, width)."""
        self._classify(theta, compact, patches, y, factors, energies)
        dx = self._like_images(patches)
        self._backward(theta, compact, patches, torch.zeros_like(theta), of_weights=False, dx=dx)
        return dx

    def features(self, theta: Tensor, compact: Tensor, patches: Patches, of_layers: bool) -> list[Tensor]:
        """The embeddings (m, features), after what each activation gives if ``of_layers``; a view of the workspace."""
        activations = [self._like_convolved(patches, block) for block in self.layout.blocks] if of_layers else []
        self._forward(theta, compact, patches, activations)
        return [*activations, self._pooled[-1].view(len(patches.gram), self.layout.features)]

    def feature_gradient(self, theta: Tensor, compact: Tensor, patches: Patches, gradients: Sequence[Tensor]) -> Tensor:
        """The gradient in the images, given those of what ``features`` gave last."""
        *dactivations, dfeatures = gradients
        self._dfeatures.copy_(dfeatures)
        self._turn(compact)
        dx = self._like_images(patches)
        self._backward(
            theta, compact, patches, torch.zeros_like(theta), of_weights=False, dx=dx, dactivations=dactivations
        )
        return dx

    def logits(self, theta: Tensor, compact: Tensor, patches: Patches) -> Tensor:
        """Class scores (m, classes), float32."""
        self._forward(theta, compact, patches)
        layout = self.layout
        weight = compact[layout.classifier_weight].view(layout.classes, layout.features)
        scores = self._pooled[-1].view(len(patches.gram), layout.features) @ weight.T
        return scores.float() + theta[layout.classifier_bias]

    def _classify(
        self, theta: Tensor, compact: Tensor, patches: Patches, y: Tensor, factors: Tensor, energies: Tensor
    ) -> Tensor:
        """Forward, the energies, and the gradients at the classifier; returns the features (m * chains, size)."""
        self._turn(compact)
        self._forward(theta, compact, patches)
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

    def _forward(self, theta: Tensor, compact: Tensor, patches: Patches, activations: Sequence[Tensor] = ()) -> None:
        """Up through the blocks, writing ``activations``, of all blocks or none, on the way."""
        chains = self.layout.chains
        for number, block in enumerate(self.layout.blocks):
            gamma, beta, weight = theta[block.gamma], theta[block.beta], compact[block.weight]
            made = (self._pooled[number], self._statistics[number], activations[number] if activations else None)
            if number == 0:
                first_block.first_block(patches, weight, gamma, beta, *made)
                continue
            below = self._pooled[number - 1]
            if self._small:
                z = self._convolved[number - 1]
                small_blocks.small_block(below, weight, chains, z, gamma, beta, *made)
                continue
            z = self._convolved[number - 1] = _convolution(below, _kernel(weight, block.inputs), chains)
            blocks.norm_relu_pool(z, gamma, beta, *made)

    def _backward(
        self,
        theta: Tensor,
        compact: Tensor,
        patches: Patches,
        gradient: Tensor,
        of_weights: bool,
        dx: Tensor | None,
        dactivations: Sequence[Tensor] = (),
    ) -> None:
        """Down through the blocks, adding to ``gradient``; ``dactivations`` are those of all blocks or none."""
        if self._turning is not None and self._turns:
            torch.cuda.current_stream().wait_event(self._turning)
        incoming: Tensor | None = self._dfeatures.view(self._pooled[-1].shape)
        for number in reversed(range(len(self.layout.blocks))):
            block, statistics = self.layout.blocks[number], self._statistics[number]
            weight, gamma, beta = compact[block.weight], theta[block.gamma], theta[block.beta]
            dgamma, dbeta = gradient[block.gamma], gradient[block.beta]
            seen = dactivations[number] if dactivations else None
            if number == 0:
                dweight = gradient[block.weight] if of_weights else None
                assert incoming is not None
                first_block.first_block_backward(
                    patches, weight, gamma, beta, statistics, incoming, dweight, dgamma, dbeta, dx, seen
                )
                return
            z, dz = self._convolved[number - 1], self._dconvolved[number - 1]
            if incoming is None:
                above, dabove = compact[self.layout.blocks[number + 1].weight], self._dconvolved[number]
                small_blocks.small_block_backward(
                    dabove, above, self.layout.chains, z, gamma, beta, statistics, dz, dgamma, dbeta, seen
                )
            else:
                blocks.norm_relu_pool_backward(z, gamma, beta, statistics, incoming, dz, dgamma, dbeta, seen)
            if of_weights:
                self._weight_gradient(number, weight, gradient[block.weight])
            incoming = None if self._small and number > 1 else self._input_gradient(number, compact)

    def _weight_gradient(self, number: int, weight: Tensor, dweight: Tensor) -> None:
        """Add that of a block's convolution, which is zero before."""
        block, dz, below = self.layout.blocks[number], self._dconvolved[number - 1], self._pooled[number - 1]
        with self._aside():
            if self._small_weights:
                small_blocks.small_weight_gradient(dz, below, self.layout.chains, dweight)
                return
            found = _convolution_backward(dz, below, _kernel(weight, block.inputs), self.layout.chains)[1]
            dweight.view(block.channels, 3, 3, block.inputs).copy_(found.permute(0, 2, 3, 1))

    def _input_gradient(self, number: int, compact: Tensor) -> Tensor:
        """Through a block's convolution; cuDNN's own gradient is the better one for several chains."""
        block, dz = self.layout.blocks[number], self._dconvolved[number - 1]
        if self._small:
            small_blocks.small_input_gradient(dz, compact[block.weight], self.layout.chains, self._dpooled)
            return self._dpooled
        if self.layout.chains > 1:
            weight = _kernel(compact[block.weight], block.inputs)
            return _convolution_backward(dz, self._pooled[number - 1], weight, self.layout.chains, of_weight=False)[0]
        sizes = [each.weight.stop - each.weight.start for each in self.layout.blocks[1:]]
        return _convolution(dz, _kernel(self._turned.split(sizes)[number - 1], block.channels), groups=1)

    def _turn(self, compact: Tensor) -> None:
        """The weights for the way down, while the way up goes on: see ``Layout.turned``."""
        if not self._turns:
            return
        with self._aside():
            torch.index_select(compact, 0, self.layout.turned, out=self._turned)
            if self._turning is not None:
                self._turning.record()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Work that needs all before it, but that the rest of the way down does not wait for."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _like_convolved(self, patches: Patches, block: Block) -> Tensor:
        gram = patches.gram
        return _channels_last(len(gram), block.channels, block.side, gram.device, self.dtype)

    def _like_images(self, patches: Patches) -> Tensor:
        first, gram = self.layout.blocks[0], patches.gram
        side = first.side - 2 * first.padding + 2
        return gram.new_empty(len(gram), first.inputs, side, side)


def parameter_gradient(workspace: EnergyGradient, thetas: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy at each of ``thetas`` (chains, size), and its gradients, in the network's order."""
    layout = workspace.layout
    ordered = thetas.flatten()[layout.order]
    gradient = torch.zeros_like(ordered)
    energies = torch.empty(len(x) * layout.chains, device=x.device)
    factors = torch.full((len(x),), 1 / len(x), device=x.device)
    patches = first_block.patches_of(x, layout, workspace.dtype)
    workspace.accumulate(ordered, ordered.to(workspace.dtype), patches, y, factors, gradient, energies)
    return energies.view(len(x), layout.chains).sum(0), gradient[layout.inverse].view_as(thetas)


def _convolution(below: Tensor, weight: Tensor, groups: int) -> Tensor:
    ones, zeros = [1, 1], [0, 0]
    return torch.ops.aten.convolution(below, weight, None, ones, ones, ones, False, zeros, groups)


def _convolution_backward(
    dz: Tensor, below: Tensor, weight: Tensor, groups: int, of_weight: bool = True
) -> tuple[Tensor, Tensor]:
    """cuDNN's gradients in a convolution's input and weight, of which one is computed."""
    ones, zeros, wanted = [1, 1], [0, 0], [not of_weight, of_weight, False]
    dinput, dweight, _ = torch.ops.aten.convolution_backward(
        dz, below, weight, None, ones, ones, ones, False, zeros, groups, wanted
    )
    return dinput, dweight


def _kernel(weight: Tensor, inputs: int) -> Tensor:
    """The weights of a convolution (out, in, 3, 3) as a channels-last view of the parameters."""
    return weight.view(-1, 3, 3, inputs).permute(0, 3, 1, 2)


def _channels_last(images: int, channels: int, side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(images, channels, side, side, device=device, dtype=dtype, memory_format=torch.channels_last)
