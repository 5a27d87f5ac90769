"""Posterior samples from a coreset, by protocol.

cold     chains start from a fresh random initialisation and see only the coreset (the honest one, and the default)
point    one network for each chain, trained on the coreset from scratch by SGD with momentum
expert   chains start from an expert's last snapshot; the full data leaks in through it, so a control belongs beside it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.backends import Backend, PlainBackend, choose_backend
from pseudocoresets.core.devices import device_memory_error, resolve_device
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import Augmentation, dsa
from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.inference.settings import NUTS, PROTOCOLS, SamplingSettings
from pseudocoresets.kernels import (
    SCHEDULES,
    SGD,
    AnyKernel,
    Drop,
    build_kernel,
    is_adjusted,
    sample_nuts,
    warm_up,
)
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network, from_spec
from pseudocoresets.sources.experts import Experts

POINT_MOMENTUM = 0.9
POINT_DECAY_AT = 0.5
"""Fraction of the training after which the point protocol divides its learning rate by ten."""
PREDICTED_AT_ONCE = 1000
LARGEST_NUTS_MODEL = 20_000


@dataclass(frozen=True)
class PosteriorSamples:
    """Parameters (chains, samples, size) of one network, and how to predict with them."""

    parameters: Tensor
    network: Network
    transform: InputTransform
    protocol: str
    settings: SamplingSettings
    backend: Backend = field(default_factory=PlainBackend, repr=False, compare=False)
    """How predictions are computed."""

    def predict(self, images: Tensor) -> Tensor:
        """Class probabilities (chains, samples, n, classes) for raw images (n, channels, height, width)."""
        chains, samples, _ = self.parameters.shape
        flat = self.parameters.flatten(0, 1)
        transform = self.transform.to(flat.device)
        with torch.no_grad():
            parts = [self._predict_batch(flat, chunk, transform) for chunk in images.split(PREDICTED_AT_ONCE)]
        return torch.cat(parts, 1).unflatten(0, (chains, samples))

    def _predict_batch(self, parameters: Tensor, images: Tensor, transform: InputTransform) -> Tensor:
        """Probabilities (parameters, images, classes); a batch that the device cannot hold is halved."""
        try:
            return self.backend.probabilities(self.network, parameters, transform(images.to(parameters.device)))
        except torch.OutOfMemoryError as error:
            if len(images) == 1:
                raise device_memory_error("predicting one image", "use fewer chains or samples", error) from None
        halves = images.chunk(2)
        return torch.cat([self._predict_batch(parameters, half, transform) for half in halves], 1)


def sample_posterior(
    coreset: Coreset,
    sampler: str | AnyKernel = "langevin",
    start: str = "cold",
    chains: int = 5,
    *,
    network: str | Network | None = None,
    experts: Experts | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> PosteriorSamples:
    """Sample the posterior of ``coreset`` under the protocol ``start``: cold, point or expert.

    The sampler is a name or a kernel. The network is the one that the coreset was made with, unless another is given.
    ``settings`` are those of ``SamplingSettings``.
    """
    if start not in PROTOCOLS:
        raise InputError(f"The protocol must be one of {', '.join(PROTOCOLS)}; got '{start}'.")
    try:
        chosen = SamplingSettings(sampler=sampler, chains=chains, **settings)
    except TypeError as error:
        raise InputError(f"Unknown sampling setting: {error}.") from None
    device = resolve_device(device)
    used = _network_for(coreset, network)
    randomness = Randomness.for_purpose(chosen.seed, "sample", start, device=device)
    positions = _start_positions(start, used, experts, chosen, device)
    posterior = _Posterior(coreset, used, chosen, randomness, backend or choose_backend(device))
    with task(progress or Silent(), f"posterior of {coreset.method} ({start})", chosen.steps) as bar:
        kept = (posterior.train_points if start == "point" else posterior.sample)(positions, bar)
    return PosteriorSamples(kept, used, coreset.require_images(), start, chosen, posterior.backend)


class _Posterior:
    """The posterior of a coreset on a device, and what the protocols do with it."""

    def __init__(
        self,
        coreset: Coreset,
        network: Network,
        settings: SamplingSettings,
        randomness: Randomness,
        backend: Backend,
    ) -> None:
        device = randomness.device.device
        self.backend = backend
        self._settings = settings
        self._randomness = randomness
        self._energy = Energy(Classifier(network, settings.prior_scale), coreset.data_size, settings.temperature)
        self._augmentation: Augmentation | None = (
            dsa(coreset.flippable, settings.mixed_kinds) if settings.augment else None
        )
        self._points = Points(coreset.images.to(device), coreset.labels.to(device), coreset.weights.to(device))

    def sample(self, positions: Tensor, bar: Progress) -> Tensor:
        """Kept positions (chains, samples, size) of the chosen sampler.

        A kernel that accepts or rejects first adapts its step size, and sees the points without augmentation.
        """
        settings = self._settings
        if settings.sampler == NUTS:
            kept = self._run_nuts(positions)
            bar.advance(settings.steps)
            return kept
        kernel, augmentation = build_kernel(settings.sampler, settings.step_size), self._augmentation
        if is_adjusted(kernel):
            target, augmentation = self._energy.target(self._points.x, self._points.y, self._points.weights), None
            kernel, positions = warm_up(kernel, positions, target, self._warm_up_steps, self._randomness.device)
        schedule = SCHEDULES[settings.schedule](settings.steps)
        kept_steps = settings.kept_steps()
        return self._run(kernel, positions, bar, schedule=schedule, augmentation=augmentation, keep_at=kept_steps)

    def train_points(self, positions: Tensor, bar: Progress) -> Tensor:
        """SGD on the mean cross-entropy plus the prior's decay; one sample per chain, the last position.

        The learning rate is a tenth in the second half.
        """
        kernel = SGD(self._settings.point_learning_rate, POINT_MOMENTUM)
        schedule = Drop(max(1, round(POINT_DECAY_AT * self._settings.steps)))
        return self._run(kernel, positions, bar, schedule=schedule, augmentation=self._augmentation)

    def _run(self, kernel: AnyKernel, positions: Tensor, bar: Progress, **options: Any) -> Tensor:
        kept = self.backend.run_chain(
            kernel,
            positions,
            self._energy,
            self._points,
            self._settings.steps,
            self._randomness,
            on_steps=bar.advance,
            **options,
        )
        if not torch.isfinite(kept[-1]).all():
            raise DivergenceError(f"The chains left the finite numbers at step size {kernel.step_size}; lower it.")
        return kept.transpose(0, 1)

    @property
    def _warm_up_steps(self) -> int:
        return max(1, round(self._settings.burn_in * self._settings.steps))

    def _run_nuts(self, positions: Tensor) -> Tensor:
        if positions.shape[1] > LARGEST_NUTS_MODEL:
            raise InputError(
                f"NUTS is for models of at most {LARGEST_NUTS_MODEL:,} parameters; this network has "
                f"{positions.shape[1]:,}. Use langevin, sghmc or hmc."
            )
        run = sample_nuts(
            self._energy.target(self._points.x, self._points.y, self._points.weights),
            positions,
            draws=self._settings.samples,
            warmup=self._warm_up_steps,
            seed=self._settings.seed,
            metric="diagonal",
        )
        return run.samples


def _network_for(coreset: Coreset, network: str | Network | None) -> Network:
    if isinstance(network, Network):
        return network
    if network is not None:
        channels, height, width = coreset.images.shape[1:]
        return build_network(network, (channels, height, width), len(coreset.classes))
    if coreset.network is None:
        raise InputError("The coreset does not name a network; say which one to use.")
    return from_spec(coreset.network)


def _start_positions(
    start: str, network: Network, experts: Experts | None, settings: SamplingSettings, device: torch.device
) -> Tensor:
    if start != "expert":
        return network.initialise(derive_seed(settings.seed, "cold start"), settings.chains, device)
    if experts is None:
        raise InputError("The expert protocol starts from experts; give their folder, or use the cold protocol.")
    if experts.network.spec != network.spec:
        raise InputError("The experts are of another network than the one to be sampled; give matching experts.")
    return torch.stack([experts.snapshot(i % len(experts), -1) for i in range(settings.chains)]).to(device)
