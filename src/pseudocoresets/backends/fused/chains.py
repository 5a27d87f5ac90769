"""Many gradient steps in one launch: a block of steps of several chains, captured as one CUDA graph.

Chains that see the same images are computed as one wide network, so that small problems fill the chip and launch no
more kernels than one chain does. Chains with images of their own run on streams of their own. The host only prepares
the images of a block (augmented all at once) and replays the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pseudocoresets.backends.fused.augmentation import fused_augmentation
from pseudocoresets.backends.fused.autograd import AutogradGradient, AutogradLayout, Images
from pseudocoresets.backends.fused.capture import captured
from pseudocoresets.backends.fused.convnet import EnergyGradient
from pseudocoresets.backends.fused.first_block import Patches, empty_patches
from pseudocoresets.backends.fused.head import update
from pseudocoresets.backends.fused.layout import Layout
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.data.augmentation import AnyAugmentation

ROW_ALIGNMENT = 64
SEED_BITS = 62


class CapturedChains:
    """``chains`` parameter sets, and blocks of ``steps`` steps on batches of ``images`` images.

    ``shared``: all chains see the same images (a coreset); otherwise each has its own (experts).
    """

    def __init__(
        self,
        layout: Layout | AutogradLayout,
        image_shape: tuple[int, int, int],
        chains: int,
        images: int,
        steps: int,
        soft_labels: bool,
        shared: bool,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.chains, self.images, self.steps = chains, images, steps
        self._layout = layout = layout.widened(chains) if shared else layout
        self._rows = rows = 1 if shared else chains
        self._theta, self._velocity, self._gradient = (
            aligned_rows(rows, layout.size, device, torch.float32) for _ in range(3)
        )
        self._compact = aligned_rows(rows, layout.size, device, dtype)
        self._speeds = aligned_rows(rows, layout.size, device, torch.float32).fill_(1)
        self._inputs = room_for_images(layout, image_shape, (rows, steps, images), device, dtype)
        label_shape = (rows, steps, images, layout.classes) if soft_labels else (rows, steps, images)
        self._y = torch.zeros(label_shape, device=device, dtype=torch.float32 if soft_labels else torch.int64)
        self._factors = torch.zeros(rows, steps, images, device=device)
        self._energies = torch.zeros(rows, steps, images * layout.chains, device=device)
        self._rates = torch.zeros(steps, 4, device=device)
        self._seeds = torch.zeros(1, device=device, dtype=torch.int64)
        self._workspaces = [gradient_workspace(layout, images, device, dtype) for _ in range(rows)]
        self._streams = [torch.cuda.Stream(device) for _ in range(rows)]
        self._graph = self._capture()

    def set_position(self, theta: Tensor, speeds: Tensor | None = None) -> None:
        """Where the chains are, (chains, size) in the network's order; velocities start at zero.

        ``speeds`` is the P of each parameter, 1 where none are given.
        """
        self._theta.copy_(self._ordered(theta))
        self._compact.copy_(self._theta)
        self._velocity.zero_()
        if speeds is None:
            self._speeds.fill_(1)
        else:
            self._speeds.copy_(self._ordered(speeds))

    def position(self) -> Tensor:
        """A copy of where the chains are, in the network's order."""
        return self._theta[:, self._layout.inverse].view(self.chains, -1)

    def _ordered(self, values: Tensor) -> Tensor:
        return values.reshape(self._rows, -1)[:, self._layout.order]

    def set_rates(self, rates: Rates | Sequence[Rates], decay: float = 0.0) -> None:
        """How a block's steps go, all alike or each its own; the prior adds ``decay`` theta to the gradient."""
        if isinstance(rates, Rates):
            for number, value in enumerate((rates.step_size, decay, rates.noise, rates.momentum)):
                self._rates[:, number] = value
            return
        rows = [(rate.step_size, decay, rate.noise, rate.momentum) for rate in rates]
        self._rates.copy_(torch.tensor(rows, pin_memory=self._rates.is_cuda), non_blocking=True)

    def set_labels(self, y: Tensor, factors: Tensor) -> None:
        """Labels and factors w_i / n, broadcast over steps where they have none."""
        self._y.copy_(y.expand_as(self._y))
        self._factors.copy_(factors.expand_as(self._factors))

    def run_block(self, x: Tensor, augmentation: AnyAugmentation | None, randomness: Randomness) -> None:
        """Take ``steps`` steps on images (sources, steps, images, channels, height, width)."""
        self._fill(x, augmentation, randomness)
        self._seeds.copy_(randomness.tensor(lambda host: torch.full_like(self._seeds, host.getrandbits(SEED_BITS))))
        replay(self._graph, self._all_steps)

    def _fill(self, x: Tensor, augmentation: AnyAugmentation | None, randomness: Randomness) -> None:
        augmentation = fused_augmentation(augmentation, x.shape)
        if augmentation is not None:
            x = augmentation.draw_steps(self.steps, x.shape[0] * x.shape[2], randomness)(x)
        self._inputs.fill(x)

    def _steps_of(self, row: int, steps: int) -> None:
        for step in range(steps):
            self._workspaces[row].accumulate(
                self._theta[row],
                self._compact[row],
                self._inputs.at(row, step),
                self._y[row, step],
                self._factors[row, step],
                self._gradient[row],
                self._energies[row, step],
            )
            update(
                self._theta[row],
                self._velocity[row],
                self._gradient[row],
                self._compact[row],
                self._speeds[row],
                self._rates[step],
                self._seeds,
                step * self._rows + row,
            )

    def _all_steps(self) -> None:
        if self._rows == 1:
            self._steps_of(0, self.steps)
            return
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        for row, stream in enumerate(self._streams):
            with torch.cuda.stream(stream):
                self._steps_of(row, self.steps)
        for stream in self._streams:
            main.wait_stream(stream)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up one row after another, so that cuDNN times its algorithms undisturbed; capture them together."""

        def warm_up() -> None:
            for row in range(self._rows):
                self._steps_of(row, 1)

        with torch.no_grad():
            return captured(self._all_steps, warm_up)


class Workspace(Protocol):
    """What computes a chain's gradient, from inputs of its own kind; see ``EnergyGradient``."""

    def accumulate(
        self,
        theta: Tensor,
        compact: Tensor,
        inputs: Any,
        y: Tensor,
        factors: Tensor,
        gradient: Tensor,
        energies: Tensor,
        /,
    ) -> None: ...


def room_for_images(
    layout: Layout | AutogradLayout,
    image_shape: tuple[int, int, int],
    leading: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Patches | Images:
    """Room for the inputs that the layout's workspace sees, of (..., images) images."""
    if isinstance(layout, Layout):
        return empty_patches(layout, *leading, device=device, dtype=dtype)
    channels, height, width = image_shape
    return Images(torch.zeros(*leading, height, width, channels, device=device, dtype=dtype))


def gradient_workspace(
    layout: Layout | AutogradLayout, images: int, device: torch.device, dtype: torch.dtype
) -> Workspace:
    """What computes a chain's gradient: the fused kernels where they know the network, else autograd."""
    if isinstance(layout, Layout):
        return EnergyGradient(layout, images, device, dtype)
    return AutogradGradient(layout)


def replay(graph: torch.cuda.CUDAGraph, work: Callable[[], None]) -> None:
    """Run a captured graph; within the capture of a larger one, its work itself becomes a part of that."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        work()
    else:
        graph.replay()


def aligned_rows(rows: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros (rows, size) with aligned rows; cuDNN's fast convolutions need that of their weights."""
    padded = -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT
    return torch.zeros(rows, padded, device=device, dtype=dtype)[:, :size]
