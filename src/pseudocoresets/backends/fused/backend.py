"""The fused backend: which jobs its kernels take over, and what it keeps captured for the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pseudocoresets.backends.backend import IMAGES_PER_BLOCK, ChainPlan, ChainRunner, MeanEnergies
from pseudocoresets.backends.fused.augmentation import fused_augmentation
from pseudocoresets.backends.fused.autograd import AutogradLayout, autograd_layout
from pseudocoresets.backends.fused.capture import Capturing
from pseudocoresets.backends.fused.chains import CapturedChains
from pseudocoresets.backends.fused.convnet import EnergyGradient, parameter_gradient
from pseudocoresets.backends.fused.descent import CapturedDescent
from pseudocoresets.backends.fused.energies import ImageEnergies
from pseudocoresets.backends.fused.features import ImageFeatures
from pseudocoresets.backends.fused.first_block import patches_of
from pseudocoresets.backends.fused.function import CapturedFunction, value_and_gradients
from pseudocoresets.backends.fused.iteration import CapturedIteration
from pseudocoresets.backends.fused.layout import Layout, layout_of
from pseudocoresets.backends.fused.private import CapturedClippedSum
from pseudocoresets.backends.fused.rates import is_fused, rates_at
from pseudocoresets.backends.fused.target import RepeatedTarget
from pseudocoresets.backends.fused.trajectory import CapturedTrajectory
from pseudocoresets.backends.plain import PlainBackend
from pseudocoresets.core.energy import Energy, Model, Target
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import AnyAugmentation, Transformation
from pseudocoresets.dp import is_layerwise
from pseudocoresets.gradients.descent import Descent, Trajectory
from pseudocoresets.gradients.learned import LEARNED_STEP_SIZE, learned_tensors
from pseudocoresets.kernels import PreconditionedSGHMC, speeds_one_by_one
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network
from pseudocoresets.models.networks.convnet import ConvNet

STEPS_PER_BLOCK = 50
TRAJECTORY_STEPS_PER_BLOCK = 100
TRAJECTORY_IMAGES_PER_BLOCK = 20_000
"""A trajectory of several blocks is run twice, so its blocks are larger."""
PREDICTED_AT_ONCE = 1000

T = TypeVar("T")


class FusedBackend(PlainBackend):
    """Triton kernels and CUDA graphs for ConvNets on one device, graphs of autograd's steps for other networks.

    Everything else goes the plain way.

    What is captured is kept by its shape, with the memory it needs, for as long as the backend is.
    """

    captures = True

    def __init__(self, device: str | torch.device, dtype: torch.dtype = torch.bfloat16) -> None:
        self._device = torch.empty(0, device=device).device
        self._dtype = dtype
        self._capturing = Capturing()
        self._layouts: WeakKeyDictionary[Network, Layout | None] = WeakKeyDictionary()
        self._known: dict[str, Layout] = {}
        self._others: dict[str, AutogradLayout] = {}
        self._chains: dict[tuple[object, ...], CapturedChains | None] = {}
        self._trajectories: dict[tuple[object, ...], CapturedTrajectory | None] = {}
        self._potentials: dict[tuple[object, ...], CapturedFunction | None] = {}
        self._clipped_sums: dict[tuple[object, ...], CapturedClippedSum | None] = {}
        self._workspaces: dict[tuple[object, ...], EnergyGradient] = {}

    def energies(self, energy: Energy, thetas: Tensor, x: Tensor, points: Points) -> Tensor:
        layout = self._layout_of_model(energy.model, thetas.device)
        if layout is None:
            return super().energies(energy, thetas, x, points)
        factors = (points.weights / energy.data_size).to(x.dtype)
        workspace = self._workspace(layout, len(x))
        energies: Tensor = ImageEnergies.apply(x, thetas.detach(), points.y, factors, layout, workspace)
        return energies

    def probabilities(self, network: Network, thetas: Tensor, inputs: Tensor) -> Tensor:
        layout = self._layout(network, thetas.device)
        if layout is None:
            return super().probabilities(network, thetas, inputs)
        return self._logits(layout, thetas, inputs).softmax(-1)

    def mean_energies(self, model: Model, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        layout = self._layout_of_model(model, thetas.device)
        if layout is None or y.is_floating_point():
            return super().mean_energies(model, thetas, x, y)
        log_p = self._logits(layout, thetas, x).log_softmax(-1)
        return -log_p[:, torch.arange(len(y), device=y.device), y].mean(-1)

    def mean_energies_and_gradients(self, model: Model, thetas: Tensor, x: Tensor, y: Tensor) -> MeanEnergies:
        layout = self._layout_of_model(model, thetas.device)
        if layout is None:
            return super().mean_energies_and_gradients(model, thetas, x, y)
        workspace = self._workspace(layout, len(x), len(thetas))
        return MeanEnergies(*parameter_gradient(workspace, thetas.detach(), x, y))

    def clipped_gradients(
        self, network: Network, theta: Tensor, x: Tensor, y: Tensor, norm: float, admitted: Tensor | None = None
    ) -> Tensor:
        known = self._captured_clipped_sum(network, x)
        if known is None:
            return super().clipped_gradients(network, theta, x, y, norm, admitted)
        return known(theta, x, y, norm, admitted)

    def features(self, network: Network, theta: Tensor, x: Tensor) -> Tensor:
        layout = self._layout(network, theta.device)
        return super().features(network, theta, x) if layout is None else self._features(layout, theta, x, False)[0]

    def layer_features(self, network: Network, theta: Tensor, x: Tensor) -> list[Tensor]:
        layout = self._layout(network, theta.device)
        return super().layer_features(network, theta, x) if layout is None else self._features(layout, theta, x, True)

    def augmentation(self, given: AnyAugmentation | None, shape: Sequence[int]) -> AnyAugmentation | None:
        return fused_augmentation(given, shape)

    def repeated(self, work: Callable[[Randomness], T]) -> Callable[[Randomness], T]:
        return CapturedIteration(work, self._capturing)

    def _features(self, layout: Layout, theta: Tensor, x: Tensor, of_layers: bool) -> list[Tensor]:
        """In a workspace of their own, which their gradient needs again."""
        workspace = EnergyGradient(layout, len(x), self._device, self._dtype)
        return list(ImageFeatures.apply(x, theta.detach(), workspace, of_layers))

    def chains(
        self,
        network: Network,
        device: torch.device,
        count: int,
        images: int,
        steps: int,
        soft: bool,
        shared: bool,
        images_per_block: int = IMAGES_PER_BLOCK,
    ) -> ChainRunner:
        per_step = images if shared else images * count
        length = block_length(steps, per_step, images_per_block)
        runner = self._captured_chains(network, device, count, images, length, soft, shared)
        if runner is None:
            return super().chains(network, device, count, images, steps, soft, shared, images_per_block)
        return runner

    def run_chain(
        self,
        plan: ChainPlan,
        start: Tensor,
        randomness: Randomness,
        on_steps: Callable[[int], object] | None = None,
    ) -> Tensor:
        kernel, energy, points, model = plan.kernel, plan.energy, plan.points, plan.energy.model
        if not is_fused(kernel) or type(model) is not Classifier:
            return super().run_chain(plan, start, randomness, on_steps)
        length = block_length(math.gcd(plan.steps, *plan.kept_steps), len(points))
        soft = points.y.is_floating_point()
        runner = self._captured_chains(model.network, start.device, len(start), len(points), length, soft, shared=True)
        if runner is None:
            return super().run_chain(plan, start, randomness, on_steps)
        temperature = energy.temperature / energy.data_size if plan.noisy else 0.0
        decay = model.decay(energy.data_size)
        runner.set_position(start, self._speeds(plan, start))
        runner.set_labels(points.y.detach(), points.weights.detach() / energy.data_size)
        if plan.schedule is None:
            runner.set_rates(rates_at(0, kernel, None, temperature), decay)
        images, kept = points.x.detach().expand(1, length, *points.x.shape), []
        for step in range(0, plan.steps, length):
            if plan.schedule is not None:
                every = range(step, step + length)
                runner.set_rates([rates_at(t, kernel, plan.schedule, temperature) for t in every], decay)
            runner.run_block(images, plan.augmentation, randomness)
            if on_steps is not None:
                on_steps(length)
            if step + length in plan.kept_steps:
                kept.append(runner.position())
        return kept[0][None] if len(kept) == 1 else torch.stack(kept)

    def _speeds(self, plan: ChainPlan, start: Tensor) -> Tensor | None:
        """Of a kernel with masses, from the points without augmentation; what is needed once is not captured."""
        if not isinstance(plan.kernel, PreconditionedSGHMC):
            return None
        return speeds_one_by_one(start, super().target(plan.energy, plan.points))

    def target(self, energy: Energy, points: Points, augment: Transformation | None = None) -> Target:
        model = energy.model
        if type(model) is not Classifier or not self._is_here(points.x.device):
            return super().target(energy, points, augment)
        return RepeatedTarget(energy, points.detached(), self._potential, augment)

    def _potential(self, energy: Energy, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """U of a Classifier, in the tensors' own precision: only the launches are saved."""
        assert isinstance(energy.model, Classifier)
        shapes = ((name, each.shape, each.dtype) for name, each in tensors.items())
        key = (energy.model.network.fingerprint, energy.model.prior_scale, energy.data_size, *shapes)
        if key not in self._potentials:
            self._potentials[key] = self._capturing(lambda: CapturedFunction(energy.potential, tensors))
        known = self._potentials[key]
        return value_and_gradients(energy.potential, tensors) if known is None else known(tensors)

    def trajectory(self, descent: Descent, chains: int, states: int, randomness: Randomness) -> Trajectory:
        points, model = descent.points, descent.energy.model
        fusable = descent.alike and not set(learned_tensors(points)) - {"x", "y", "weights", LEARNED_STEP_SIZE}
        if not fusable or type(model) is not Classifier:
            return super().trajectory(descent, chains, states, randomness)
        images = min(descent.points_per_step or len(points), len(points))
        length, soft = self._trajectory_block_length(descent.steps, images), points.y.is_floating_point()
        runner = self._captured_trajectory(model.network, points.x.device, chains, images, length, soft)
        if runner is None:
            return super().trajectory(descent, chains, states, randomness)
        return CapturedDescent(descent, runner, images, model.decay(descent.energy.data_size), randomness)

    def _trajectory_block_length(self, steps: int, images: int) -> int:
        return block_length(steps, images, TRAJECTORY_IMAGES_PER_BLOCK, TRAJECTORY_STEPS_PER_BLOCK)

    def _captured_chains(
        self, network: Network, device: torch.device, chains: int, images: int, steps: int, soft: bool, shared: bool
    ) -> CapturedChains | None:
        layout = self._layout(network, device) or self._autograd_layout(network, device)
        if layout is None:
            return None
        key = (layout, network.spec.shape, chains, images, steps, soft, shared)
        shallow = isinstance(layout, Layout) or isinstance(network.prototype, ConvNet)
        dtype = self._dtype if shallow else torch.float32
        if key not in self._chains:
            self._chains[key] = self._capturing(lambda: CapturedChains(*key, self._device, dtype))
        return self._chains[key]

    def _captured_trajectory(
        self, network: Network, device: torch.device, chains: int, images: int, steps: int, soft: bool
    ) -> CapturedTrajectory | None:
        layout = self._layout(network, device)
        if layout is None:
            return None
        key = (layout, network.spec.shape, chains, images, steps, soft)
        if key not in self._trajectories:
            self._trajectories[key] = self._capturing(lambda: CapturedTrajectory(*key, self._device, self._dtype))
        return self._trajectories[key]

    def _captured_clipped_sum(self, network: Network, x: Tensor) -> CapturedClippedSum | None:
        if not self._is_here(x.device) or x.dtype != torch.float32 or not is_layerwise(network):
            return None
        key = (network.fingerprint, x.shape)
        dtype = self._dtype if isinstance(network.prototype, ConvNet) else torch.float32
        if key not in self._clipped_sums:
            self._clipped_sums[key] = self._capturing(lambda: CapturedClippedSum(network, x.shape, self._device, dtype))
        return self._clipped_sums[key]

    def _layout_of_model(self, model: Model, device: torch.device) -> Layout | None:
        """A class derived from Classifier may have another likelihood."""
        return self._layout(model.network, device) if type(model) is Classifier else None

    def _layout(self, network: Network, device: torch.device) -> Layout | None:
        """The network's layout, found once for each object and shared by those that compute the same."""
        if not self._is_here(device):
            return None
        if network not in self._layouts:
            found = layout_of(network)
            if found is not None:
                found = self._known.setdefault(found.signature, found.to(self._device))
            self._layouts[network] = found
        return self._layouts[network]

    def _autograd_layout(self, network: Network, device: torch.device) -> AutogradLayout | None:
        """For a network without fused kernels; the same object for those that compute the same."""
        if not self._is_here(device):
            return None
        if network.fingerprint not in self._others:
            self._others[network.fingerprint] = autograd_layout(network).to(self._device)
        return self._others[network.fingerprint]

    def _is_here(self, device: torch.device) -> bool:
        return device.type == self._device.type and device.index in (None, self._device.index)

    def _workspace(self, layout: Layout, images: int, chains: int = 1) -> EnergyGradient:
        """Kept for the next batch of as many images."""
        key = (layout, images, chains)
        if key not in self._workspaces:
            self._workspaces[key] = EnergyGradient(layout.widened(chains), images, self._device, self._dtype)
        return self._workspaces[key]

    def _logits(self, layout: Layout, thetas: Tensor, inputs: Tensor) -> Tensor:
        """Class scores (parameter sets, inputs, classes), of so many inputs at once."""
        parts = inputs.split(PREDICTED_AT_ONCE)
        return torch.cat([self._logits_of_part(layout, thetas, part) for part in parts], 1)

    def _logits_of_part(self, layout: Layout, thetas: Tensor, inputs: Tensor) -> Tensor:
        workspace = EnergyGradient(layout, len(inputs), self._device, self._dtype)
        patches = patches_of(inputs, layout, self._dtype)
        ordered = (theta[layout.order] for theta in thetas)
        return torch.stack([workspace.logits(theta, theta.to(self._dtype), patches) for theta in ordered])


def block_length(
    steps: int, images: int, most_images: int = IMAGES_PER_BLOCK, most_steps: int = STEPS_PER_BLOCK
) -> int:
    """Steps to capture as one block: the largest divisor of ``steps`` whose images can be augmented at once."""
    most = max(1, min(steps, most_steps, most_images // images))
    return next(length for length in range(most, 0, -1) if steps % length == 0)
