"""Posterior samples from a coreset, by protocol.

cold     chains start from a fresh random initialisation and see only the coreset (the honest one, and the default)
point    one network for each chain, trained on the coreset from scratch by SGD with momentum
expert   chains start from an expert's last snapshot; the full data leaks in through it, so a control belongs beside it
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.backends.fused import block_length, default_accelerator
from pseudocoresets.core.devices import device_memory_error, resolve_device
from pseudocoresets.core.energy import Energy, FunctionTarget
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.core.state import Rates, sampling_rates
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import Augmentation, dsa
from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.inference.settings import NUTS, SamplingSettings
from pseudocoresets.kernels import (
    KERNELS,
    SCHEDULES,
    SGHMC,
    Langevin,
    Schedule,
    explores,
    is_adjusted,
    run_chain,
    sample_nuts,
    warm_up,
)
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network, from_spec
from pseudocoresets.sources.experts import Experts

PROTOCOLS = ("cold", "point", "expert")
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
            return self._probabilities(parameters, transform(images.to(parameters.device)))
        except torch.OutOfMemoryError as error:
            if len(images) == 1:
                raise device_memory_error("predicting one image", "use fewer chains or samples", error) from None
        halves = images.chunk(2)
        return torch.cat([self._predict_batch(parameters, half, transform) for half in halves], 1)

    def _probabilities(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        fast = default_accelerator().probabilities(self.network, parameters, inputs)
        if fast is not None:
            return fast
        return torch.stack([self.network.logits(theta, inputs).float().softmax(-1) for theta in parameters])


def sample_posterior(
    coreset: Coreset,
    sampler: str = "langevin",
    start: str = "cold",
    chains: int = 5,
    *,
    network: str | Network | None = None,
    experts: Experts | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> PosteriorSamples:
    """Sample the posterior of ``coreset`` under the protocol ``start``: cold, point or expert.

    The network is the one that the coreset was made with, unless another is named. ``settings`` are those of
    ``SamplingSettings``.
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
    posterior = _Posterior(coreset, used, chosen, randomness)
    with task(progress or Silent(), f"posterior of {coreset.method} ({start})", chosen.steps) as bar:
        kept = (_train_points if start == "point" else _run_chains)(posterior, positions, bar)
    return PosteriorSamples(kept, used, coreset.require_images(), start, chosen)


class _Posterior:
    """The posterior of a coreset on a device, as a target for a kernel or as captured chains."""

    def __init__(self, coreset: Coreset, network: Network, settings: SamplingSettings, randomness: Randomness) -> None:
        device = randomness.device.device
        self.network = network
        self.settings = settings
        self.randomness = randomness
        self._model = Classifier(network, settings.prior_scale)
        self.energy = Energy(self._model, coreset.data_size, settings.temperature)
        self.augmentation: Augmentation | None = (
            dsa(coreset.flippable, settings.mixed_kinds) if settings.augment else None
        )
        self._x, self._y = coreset.images.to(device), coreset.labels.to(device)
        self._weights = coreset.weights.to(device)

    def target(self, augment: bool = True) -> FunctionTarget:
        """With augmentation, each evaluation draws its own: right for unadjusted kernels only."""
        augmentation = self.augmentation if augment else None
        return self.energy.target(
            self._x,
            self._y,
            self._weights,
            None if augmentation is None else lambda x: augmentation.draw(len(x), self.randomness)(x),
        )

    def captured_run(
        self, positions: Tensor, milestones: set[int], rates: Callable[[int], Rates], bar: Progress
    ) -> list[Tensor] | None:
        """Positions after the steps in ``milestones``, on the fast path; None where it does not apply.

        ``rates(t)`` says how step t = 0, 1, ... goes.
        """
        length = block_length(math.gcd(*milestones), len(self._x))
        runner = default_accelerator().chains_for(
            self.network,
            positions.device,
            len(positions),
            len(self._x),
            length,
            self._y.is_floating_point(),
            shared=True,
        )
        if runner is None:
            return None
        runner.set_position(positions)
        runner.set_labels(self._y, self._weights / self.energy.data_size)
        decay = self._model.decay(self.energy.data_size)
        found = []
        for step in range(0, max(milestones), length):
            runner.set_rates([rates(t) for t in range(step, step + length)], decay)
            runner.run_block(self._x.expand(1, length, *self._x.shape), self.augmentation, self.randomness)
            bar.advance(length)
            if step + length in milestones:
                found.append(runner.position())
        if not torch.isfinite(found[-1]).all():
            raise DivergenceError(f"The chains left the finite numbers at step size {rates(0).step_size}; lower it.")
        return found


def _run_chains(posterior: _Posterior, positions: Tensor, bar: Progress) -> Tensor:
    """Kept positions (chains, samples, size) of the chosen sampler."""
    settings = posterior.settings
    if settings.sampler == NUTS:
        kept = _run_nuts(posterior, positions)
        bar.advance(settings.steps)
        return kept
    kernel = KERNELS[settings.sampler](step_size=settings.step_size)
    schedule = SCHEDULES[settings.schedule](settings.steps)
    if isinstance(kernel, Langevin | SGHMC):
        temperature = settings.temperature / posterior.energy.data_size
        found = posterior.captured_run(
            positions,
            settings.kept_steps(),
            partial(rates_at, kernel=kernel, schedule=schedule, temperature=temperature),
            bar,
        )
        if found is not None:
            return torch.stack(found, 1)
    target = posterior.target(augment=not is_adjusted(kernel))
    generator = posterior.randomness.device
    steps = settings.steps
    if is_adjusted(kernel):
        warming = max(1, round(settings.burn_in * steps))
        kernel, positions = warm_up(kernel, positions, target, warming, generator)
    chain = run_chain(
        kernel,
        positions,
        target,
        steps,
        generator,
        settings.kept_steps(),
        schedule=schedule,
        on_step=lambda _: bar.advance(),
    )
    return chain.kept.transpose(0, 1)


def rates_at(t: int, kernel: Langevin | SGHMC, schedule: Schedule, temperature: float) -> Rates:
    """Step t of a kernel under a schedule; the exploration phases of a cyclical one are without noise."""
    return sampling_rates(
        kernel.step_size * schedule(t),
        0.0 if explores(schedule, t) else temperature,
        1 - kernel.momentum_decay if isinstance(kernel, SGHMC) else 0.0,
        kernel.step_size * schedule(t - 1) if t > 0 else None,
    )


def _run_nuts(posterior: _Posterior, positions: Tensor) -> Tensor:
    settings = posterior.settings
    if positions.shape[1] > LARGEST_NUTS_MODEL:
        raise InputError(
            f"NUTS is for models of at most {LARGEST_NUTS_MODEL:,} parameters; this network has "
            f"{positions.shape[1]:,}. Use langevin, sghmc or hmc."
        )
    run = sample_nuts(
        posterior.target(augment=False),
        positions,
        draws=settings.samples,
        warmup=max(1, round(settings.burn_in * settings.steps)),
        seed=settings.seed,
        metric="diagonal",
    )
    return run.samples


def _train_points(posterior: _Posterior, positions: Tensor, bar: Progress) -> Tensor:
    """SGD with momentum on the mean cross-entropy plus the prior's decay; one sample a chain, the last position.

    v <- momentum v + grad U(theta),  theta <- theta - eta v,  eta a tenth in the second half
    """
    settings = posterior.settings
    rate, turn = settings.point_learning_rate, max(1, round(POINT_DECAY_AT * settings.steps))
    found = posterior.captured_run(
        positions,
        {turn, settings.steps},
        lambda step: Rates(rate if step < turn else rate / 10, momentum=POINT_MOMENTUM),
        bar,
    )
    if found is not None:
        return found[-1][:, None]
    target = posterior.target()
    theta = positions.clone().requires_grad_()
    optimiser = torch.optim.SGD([theta], lr=rate, momentum=POINT_MOMENTUM)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [turn], gamma=0.1)
    for _ in range(settings.steps):
        optimiser.zero_grad()
        target.potential(theta).sum().backward()
        optimiser.step()
        schedule.step()
        bar.advance()
    if not torch.isfinite(theta).all():
        raise DivergenceError(f"Training diverged at learning rate {rate}; lower it.")
    return theta.detach()[:, None]


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
