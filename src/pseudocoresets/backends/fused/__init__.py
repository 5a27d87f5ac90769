"""The fast path on a GPU: what it computes is what the plain path computes, in bfloat16 and in few launches.

It is used where it applies (a CUDA device, Triton, a ConvNet of instance norm, ReLU and average pooling); everywhere
else the functions here answer None and the plain path runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.models.networks import Network

if TYPE_CHECKING:
    from pseudocoresets.backends.fused.chains import CapturedChains
    from pseudocoresets.backends.fused.convnet import EnergyGradient, Layout
    from pseudocoresets.backends.fused.trajectory import CapturedTrajectory

__all__ = ["Accelerator", "block_length", "default_accelerator", "set_precision", "trajectory_block_length"]

IMAGES_PER_BLOCK = 5000
STEPS_PER_BLOCK = 50
TRAJECTORY_STEPS_PER_BLOCK = 100
TRAJECTORY_IMAGES_PER_BLOCK = 20_000
"""A trajectory of several blocks is run twice, so its blocks are larger."""
PREDICTED_AT_ONCE = 1000
PRECISIONS = ("auto", "float32")

logger = logging.getLogger(__name__)
Captured = TypeVar("Captured")


@dataclass
class Accelerator:
    """Captured chains by shape, made when first needed and used again; ``enabled=False`` always answers None."""

    enabled: bool = True
    _captured: dict[tuple[object, ...], CapturedChains | None] = field(default_factory=dict)
    _trajectories: dict[tuple[object, ...], CapturedTrajectory | None] = field(default_factory=dict)
    _layouts: dict[tuple[object, ...], Layout | None] = field(default_factory=dict)
    _workspaces: dict[tuple[object, ...], EnergyGradient] = field(default_factory=dict)

    def chains_for(
        self, network: Network, device: torch.device, chains: int, images: int, steps: int, soft: bool, shared: bool
    ) -> CapturedChains | None:
        """Captured chains of this shape, or None where the fast path does not apply."""
        if not self.enabled or device.type != "cuda":
            return None
        key = (str(network.spec.as_json()), str(device), chains, images, steps, soft, shared)
        if key not in self._captured:

            def capture(layout: Layout) -> CapturedChains:
                from pseudocoresets.backends.fused.chains import CapturedChains

                return CapturedChains(layout, network.spec.shape, chains, images, steps, soft, shared, device)

            self._captured[key] = _capture(self._layout(network, device), capture)
        return self._captured[key]

    def trajectory_for(
        self, network: Network, device: torch.device, chains: int, images: int, steps: int, soft: bool
    ) -> CapturedTrajectory | None:
        """Captured descents of this shape with their adjoint, or None as above."""
        if not self.enabled or device.type != "cuda":
            return None
        key = (str(network.spec.as_json()), str(device), chains, images, steps, soft)
        if key not in self._trajectories:

            def capture(layout: Layout) -> CapturedTrajectory:
                from pseudocoresets.backends.fused.trajectory import CapturedTrajectory

                return CapturedTrajectory(layout, network.spec.shape, chains, images, steps, soft, device)

            self._trajectories[key] = _capture(self._layout(network, device), capture)
        return self._trajectories[key]

    def _layout(self, network: Network, device: torch.device) -> Layout | None:
        """The network's layout on the device, found once: it is asked for in every iteration."""
        key = (str(network.spec.as_json()), str(device))
        if key not in self._layouts:
            found = _layout(network)
            self._layouts[key] = None if found is None else found.to(device)
        return self._layouts[key]

    def energies(self, network: Network, thetas: Tensor, x: Tensor, y: Tensor, factors: Tensor) -> Tensor | None:
        """sum_i factors_i cross-entropy_i for each parameter set, differentiable in ``x``; None as above.

        Labels or factors that want a gradient are left to the plain path.
        """
        if not self.enabled or not thetas.is_cuda or y.requires_grad or factors.requires_grad:
            return None
        layout = self._layout(network, thetas.device)
        if layout is None:
            return None
        from pseudocoresets.backends.fused.energies import ImageEnergies

        workspace = self._workspace(network, layout, x)
        energies: Tensor = ImageEnergies.apply(x, thetas.detach(), y, factors, layout, workspace)
        return energies

    def slopes(self, network: Network, thetas: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """A batch's mean cross-entropy at ``thetas`` (chains, size), and its gradients there; None as above."""
        layout = self._layout(network, thetas.device) if self.enabled and thetas.is_cuda else None
        if layout is None:
            return None
        from pseudocoresets.backends.fused.convnet import parameter_gradient

        return parameter_gradient(self._workspace(network, layout, x, len(thetas)), thetas, x, y)

    def _workspace(self, network: Network, layout: Layout, x: Tensor, chains: int = 1) -> EnergyGradient:
        """Kept for the next batch of as many images."""
        from pseudocoresets.backends.fused.convnet import EnergyGradient

        key = (str(network.spec.as_json()), str(x.device), len(x), chains)
        if key not in self._workspaces:
            self._workspaces[key] = EnergyGradient(layout.widened(chains), len(x), x.device)
        return self._workspaces[key]

    def probabilities(self, network: Network, thetas: Tensor, inputs: Tensor) -> Tensor | None:
        """Class probabilities (len(thetas), n, classes) for inputs in model space, or None as above."""
        layout = self._layout(network, thetas.device) if self.enabled and thetas.is_cuda else None
        if layout is None:
            return None
        parts = [torch.stack(list(_probabilities(layout, thetas, part))) for part in inputs.split(PREDICTED_AT_ONCE)]
        return torch.cat(parts, 1)


@cache
def default_accelerator() -> Accelerator:
    """One for the process, so that what was captured is used again."""
    return Accelerator()


def set_precision(precision: str) -> None:
    """``auto``: bfloat16 and captured graphs on a GPU; ``float32``: the plain path everywhere."""
    if precision not in PRECISIONS:
        raise InputError(f"The precision must be one of {', '.join(PRECISIONS)}; got '{precision}'.")
    default_accelerator().enabled = precision == "auto"


def block_length(
    steps: int, images: int, most_images: int = IMAGES_PER_BLOCK, most_steps: int = STEPS_PER_BLOCK
) -> int:
    """Steps to capture as one block: the largest divisor of ``steps`` whose images can be augmented at once."""
    most = max(1, min(steps, most_steps, most_images // images))
    return next(length for length in range(most, 0, -1) if steps % length == 0)


def trajectory_block_length(steps: int, images: int) -> int:
    """The same for a trajectory with its adjoint."""
    return block_length(steps, images, TRAJECTORY_IMAGES_PER_BLOCK, TRAJECTORY_STEPS_PER_BLOCK)


def _probabilities(layout: Layout, thetas: Tensor, inputs: Tensor) -> Iterator[Tensor]:
    from pseudocoresets.backends.fused.convnet import EnergyGradient

    workspace = EnergyGradient(layout, len(inputs), thetas.device)
    x = inputs.to(torch.bfloat16, memory_format=torch.channels_last)
    for theta in thetas:
        ordered = theta[layout.order]
        yield workspace.logits(ordered, ordered.bfloat16(), x).softmax(-1)


def _capture(layout: Layout | None, build: Callable[[Layout], Captured]) -> Captured | None:
    """What ``build`` captures for a layout, or None where there is none or the device objects."""
    if layout is None:
        return None
    with _falling_back():
        return build(layout)
    return None


@contextmanager
def _falling_back() -> Iterator[None]:
    """Turn whatever Triton or CUDA object to, other than a lack of memory, into one warning line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the plain path computes the same
        logger.warning("The fast path could not be captured (%s); the plain path is used.", str(error).split("\n")[0])


def _layout(network: Network) -> Layout | None:
    try:
        from pseudocoresets.backends.fused.convnet import layout_of
    except ImportError:
        logger.warning("Triton is not installed here, so the plain path is used; it is many times slower.")
        return None
    return layout_of(network)
