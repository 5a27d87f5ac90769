"""Posterior samples from a coreset, by protocol.

cold     chains start from a fresh random initialisation and see only the coreset (the honest one, and the default)
point    one network for each chain, trained on the coreset from scratch by SGD with momentum, or by Adam
expert   chains start from an expert's snapshot, the last one unless ``start_epoch`` says otherwise; the full data
         leaks in through it, so a control belongs beside it
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pseudocoresets import presets
from pseudocoresets.backends import Backend, ChainPlan, choose_backend
from pseudocoresets.core.devices import resolve_device, threads_for, within_memory
from pseudocoresets.core.energy import Energy, Model, require_signal
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.options import written
from pseudocoresets.core.points import Points
from pseudocoresets.core.progress import Progress, Silent, by_default, task
from pseudocoresets.core.registry import parse_name
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.core.settings import build_settings
from pseudocoresets.core.state import STEP_SIZE, at_rest
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import AnyAugmentation, augmentation_for
from pseudocoresets.gradients.adjoint import StoredTrajectory
from pseudocoresets.gradients.descent import Descent
from pseudocoresets.inference.models import sample_model_posterior
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.inference.settings import PROTOCOLS, SamplingSettings
from pseudocoresets.kernels import (
    KERNELS,
    OPTIMISERS,
    SCHEDULES,
    SGD,
    AnyKernel,
    Drop,
    RunsItself,
    Schedule,
    build_kernel,
    is_adjusted,
    warm_up,
)
from pseudocoresets.methods.condensation.dataset_distillation import step_parts
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import AnyNetwork, Network, as_network, from_spec
from pseudocoresets.presets import Preset
from pseudocoresets.sources.experts import Experts

MODEL_CHAINS = 4
POINT_MOMENTUM = 0.9
POINT_DECAY_AT = 0.5
"""Fraction of the training after which the point protocol divides its learning rate by ten."""
LARGEST_NUTS_MODEL = 20_000


def sample_posterior(
    coreset: Coreset,
    sampler: str | AnyKernel | None = None,
    start: str = "cold",
    chains: int | None = None,
    *,
    model: Model | None = None,
    network: AnyNetwork | None = None,
    experts: Experts | None = None,
    preset: str | os.PathLike[str] | Preset = "quick",
    augmentation: AnyAugmentation | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> PosteriorSamples:
    """Sample the posterior of a coreset.

    Args:
        coreset: Images, or rows of a table.
        sampler: A kernel or its name; the preset's for networks and NUTS for other models where none is given.
        start: The protocol for networks: cold, point or expert.
        chains: Independent chains; the preset's for networks and four for other models where no number is given.
        model: The model of a coreset of rows.
        network: Another network than the one that the coreset was made with.
        preset: Where the settings of a network's sampler that are not given come from, as in the command.
        experts: Where chains of the protocol ``expert`` start.
        augmentation: Of images, in place of differentiable Siamese augmentation.
        backend: How to compute; chosen for the device where none is given.
        settings: Those of ``SamplingSettings`` for networks, of ``sample_model_posterior`` for other models.
    """
    progress = progress or by_default()
    if model is not None or not coreset.holds_images:
        if model is None:
            raise InputError("A coreset of rows has the posterior of a model: give it as model=...")
        chains = MODEL_CHAINS if chains is None else chains
        drawn = sample_model_posterior(coreset.points, model, sampler or "nuts", chains, progress=progress, **settings)
        return replace(drawn, coreset=coreset)
    if start not in PROTOCOLS:
        raise InputError(f"The protocol must be one of {', '.join(PROTOCOLS)}; got '{start}'.")
    own = presets.preset(preset, coreset.source, max(1, round(coreset.images_per_class)))
    used = network_for(coreset, network)
    known = own.sampling_by(kernel_name(sampler), coreset.method, start, is_elsewhere(coreset, used))
    given = {"sampler": sampler, "chains": chains}
    given = {name: value for name, value in given.items() if value is not None} | settings
    chosen = build_settings(SamplingSettings, {**known, **given}, "The sampler")
    chosen.require_for(start)
    device = resolve_device(device)
    return sample_network_posterior(
        coreset, used, start, chosen, experts, device, backend or choose_backend(device), progress, augmentation
    )


def kernel_name(sampler: str | AnyKernel | None) -> str | None:
    """The name under which a preset knows a sampler; None leaves the choice to the preset."""
    text = sampler if isinstance(sampler, str) or sampler is None else written(sampler, {**KERNELS, **OPTIMISERS})
    return text and parse_name(text, "sampler")[0]


def sample_network_posterior(
    coreset: Coreset,
    network: Network,
    start: str,
    settings: SamplingSettings,
    experts: Experts | None,
    device: torch.device,
    backend: Backend,
    progress: Progress | None = None,
    augmentation: AnyAugmentation | None = None,
) -> PosteriorSamples:
    """The same with everything chosen, for a coreset of images."""
    transform = coreset.require_images()
    if start != "point":
        require_signal(float(coreset.weights.sum()), coreset.data_size, settings.temperature)
    randomness = Randomness.for_purpose(settings.seed, "sample", start, device=device)
    positions = _start_positions(start, network, experts, settings, device)
    posterior = _Posterior(coreset, network, settings, randomness, backend, augmentation)
    began = time.perf_counter()
    doing = f"{settings.chains:,} chains side by side"
    with threads_for(coreset.x.shape[1:]), within_memory(doing, "use fewer chains or a smaller network"):
        kept = (posterior.train_points if start == "point" else posterior.sample)(positions, progress or Silent())
    return PosteriorSamples(
        kept,
        posterior.model,
        start,
        settings,
        time.perf_counter() - began,
        transform=transform,
        backend=backend,
        progress=progress or Silent(),
        coreset=coreset,
        again=lambda other: sample_network_posterior(
            other, network, start, settings, experts, device, backend, progress, augmentation
        ),
    )


class _Posterior:
    """The posterior of a coreset on a device, and what the protocols do with it."""

    def __init__(
        self,
        coreset: Coreset,
        network: Network,
        settings: SamplingSettings,
        randomness: Randomness,
        backend: Backend,
        augmentation: AnyAugmentation | None = None,
    ) -> None:
        device = randomness.device.device
        self.backend = backend
        self._settings = settings
        self._made_by = coreset.method
        self._made_with: Mapping[str, Any] = coreset.configuration.get("method", {})
        self._learned_step_size: float | list[float] | None = coreset.configuration.get("learned", {}).get(STEP_SIZE)
        self._randomness = randomness
        self.model = Classifier(network, settings.prior_scale)
        self._energy = Energy(self.model, coreset.data_size, settings.temperature)
        self._augmentation = augmentation_for(settings.augment, augmentation, coreset.flippable, settings.mixed_kinds)
        points = coreset.points
        self._points = Points(points.x.to(device), points.y.to(device), points.weights.to(device))

    def sample(self, positions: Tensor, progress: Progress) -> Tensor:
        """Kept positions (chains, samples, size) of the chosen sampler.

        A kernel that accepts or rejects first adapts its step size, and sees the points without augmentation.
        """
        settings = self._settings
        kernel, augmentation = build_kernel(settings.sampler, settings.step_size), self._augmentation
        if isinstance(kernel, RunsItself):
            return self._run_itself(kernel, positions, progress)
        first = self._warm_up_steps if is_adjusted(kernel) else 0
        with task(progress, f"sampling the posterior of the coreset by {self._made_by}", first + settings.steps) as bar:
            if first:
                target, augmentation = self.backend.target(self._energy, self._points), None
                generator = self._randomness.device
                kernel, positions = warm_up(kernel, positions, target, first, generator, on_step=bar.advance)
            schedule = SCHEDULES[settings.schedule](settings.steps)
            return self._run(self._plan(kernel, augmentation, schedule, settings.kept_steps()), positions, bar)

    def train_points(self, positions: Tensor, progress: Progress) -> Tensor:
        """SGD, or Adam, on the mean cross-entropy plus the prior's decay; one sample per chain, the last position.

        The learning rate is a tenth in the second half. Step sizes that were learned one by one are taken one by one.
        """
        optimiser = self._settings.optimiser
        learned = self._learned_step_size if self._settings.learned_steps and optimiser is None else None
        if isinstance(learned, list):
            return self._finite(self._learned_steps(learned, positions), max(learned))[:, None]
        rate = self._settings.point_learning_rate if learned is None else learned
        kernel = optimiser or SGD(rate, POINT_MOMENTUM)
        schedule = Drop(max(1, round(POINT_DECAY_AT * self._settings.steps)))
        with task(progress, f"training on the coreset by {self._made_by}", self._settings.steps) as bar:
            return self._run(self._plan(kernel, self._augmentation, schedule), positions, bar)

    def _plan(
        self,
        kernel: AnyKernel,
        augmentation: AnyAugmentation | None,
        schedule: Schedule,
        keep_at: Collection[int] = (),
    ) -> ChainPlan:
        steps = self._settings.steps
        return ChainPlan(kernel, self._energy, self._points, steps, augmentation, True, schedule, keep_at)

    def _run(self, plan: ChainPlan, positions: Tensor, bar: Progress) -> Tensor:
        kept = self.backend.run_chain(plan, positions, self._randomness, bar.advance)
        return self._finite(kept, plan.kernel.step_size).transpose(0, 1)

    def _finite(self, positions: Tensor, step_size: float) -> Tensor:
        if not torch.isfinite(positions[-1]).all():
            raise DivergenceError(f"The chains left the finite numbers at step size {step_size}; lower it.")
        return positions

    def _learned_steps(self, sizes: Sequence[float], positions: Tensor) -> Tensor:
        """Where networks are after the steps of dataset distillation, each on its part of the images."""
        parts = step_parts(self._points, self._made_with["steps"])
        points = replace(self._points, hyperparameters={STEP_SIZE: positions.new_tensor(sizes)})
        subsets = [parts[t % len(parts)] for t in range(len(sizes))]
        descent = Descent(self._energy, points, len(sizes), augmentation=self._augmentation, subsets=subsets)
        trajectory = StoredTrajectory(descent, descent.views(self._randomness), states=2)
        return trajectory.run(at_rest(positions)).position

    @property
    def _warm_up_steps(self) -> int:
        return max(1, round(self._settings.burn_in * self._settings.steps))

    def _run_itself(self, kernel: RunsItself, positions: Tensor, progress: Progress) -> Tensor:
        if positions.shape[1] > LARGEST_NUTS_MODEL:
            raise InputError(
                f"NUTS is for models of at most {LARGEST_NUTS_MODEL:,} parameters; this network has "
                f"{positions.shape[1]:,}. Use langevin, sghmc or hmc."
            )
        target = self._energy.target(self._points.x, self._points.y, self._points.weights)
        settings = self._settings
        return kernel.run(target, positions, settings.samples, self._warm_up_steps, settings.seed, progress).samples


def network_for(coreset: Coreset, network: AnyNetwork | None) -> Network:
    """The network that is given, or the one that the coreset was made with."""
    coreset.require_images()
    if network is not None:
        channels, height, width = coreset.x.shape[1:]
        return as_network(network, (channels, height, width), len(coreset.classes))
    if coreset.network is None:
        raise InputError("The coreset does not name a network; say which one to use.")
    return from_spec(coreset.network)


def is_elsewhere(coreset: Coreset, network: Network) -> bool:
    """Whether the coreset was made for another network."""
    return coreset.network is not None and network.spec != coreset.network


def chain_starts(
    coreset: Coreset,
    network: Network,
    start: str,
    settings: SamplingSettings,
    experts: Experts | None,
    device: torch.device,
    backend: Backend,
) -> PosteriorSamples:
    """Where the chains of a protocol begin, as samples: what is known before the coreset has said anything.

    Under ``expert`` these are the experts alone; elsewhere fresh initialisations. The coreset gives the transform of
    the images, and nothing else.
    """
    positions = _start_positions(start, network, experts, settings, device)
    model = Classifier(network, settings.prior_scale)
    return PosteriorSamples(
        positions[:, None], model, start, settings, 0.0, transform=coreset.require_images(), backend=backend
    )


def _start_positions(
    start: str, network: Network, experts: Experts | None, settings: SamplingSettings, device: torch.device
) -> Tensor:
    if start != "expert":
        return network.initialise(derive_seed(settings.seed, "cold start"), settings.chains, device)
    if experts is None:
        raise InputError("The expert protocol starts from experts; give their folder, or use the cold protocol.")
    if experts.network.fingerprint != network.fingerprint:
        raise InputError("The experts are of another network than the one to be sampled; give matching experts.")
    randomness = Randomness.for_purpose(settings.seed, "expert start")
    if settings.start_epoch is None:
        positions = experts.draw(settings.chains, None, 0, randomness).start
    else:
        if not -experts.epochs - 1 <= settings.start_epoch <= experts.epochs:
            raise InputError(f"The experts have {experts.epochs} epochs; got start_epoch = {settings.start_epoch}.")
        picked = (experts.snapshot(i % len(experts), settings.start_epoch) for i in range(settings.chains))
        positions = torch.stack(list(picked))
    noise = torch.randn(positions.shape, generator=randomness.device, dtype=positions.dtype)
    return (positions + settings.start_noise * noise).to(device)
