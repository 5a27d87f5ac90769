"""Posterior samples from a coreset, by protocol.

cold     chains start from a fresh random initialisation and see only the coreset (the honest one, and the default)
point    one network for each chain, trained on the coreset from scratch by SGD with momentum
expert   chains start from an expert's last snapshot; the full data leaks in through it, so a control belongs beside it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.devices import resolve_device
from pseudocoresets.energy import Classifier, Energy, FunctionTarget
from pseudocoresets.errors import DivergenceError, InputError
from pseudocoresets.experts import Experts
from pseudocoresets.kernels import KERNELS, is_adjusted, run_chain
from pseudocoresets.networks import Network, build_network, from_spec
from pseudocoresets.progress import Progress, Silent, task
from pseudocoresets.seeds import Randomness, derive_seed

PROTOCOLS = ("cold", "point", "expert")
POINT_MOMENTUM = 0.9
POINT_DECAY_AT = 0.5
"""Fraction of the training after which the point protocol divides its learning rate by ten."""
LOGITS_PER_BATCH = 2_000_000


@dataclass(frozen=True)
class SamplingSettings:
    """How samples are drawn: ``samples`` equally spaced positions from the last ``1 - burn_in`` of ``steps``."""

    sampler: str = "langevin"
    chains: int = 5
    steps: int = 1000
    samples: int = 20
    burn_in: float = 0.5
    step_size: float = 0.03
    temperature: float = 1.0
    prior_scale: float = 1.0
    augment: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.chains, self.steps, self.samples) < 1:
            raise InputError("Sampling needs at least one chain, one step and one sample.")
        if not 0 <= self.burn_in < 1:
            raise InputError(f"Burn-in is a fraction of the steps, from 0 to below 1; got {self.burn_in}.")
        if self.samples > self.steps - round(self.burn_in * self.steps):
            raise InputError(
                f"{self.samples} samples do not fit into the steps after burn-in; raise 'steps' or lower 'samples'."
            )

    def kept_steps(self) -> set[int]:
        """The steps (counted from 1) after which a sample is kept; the last is one of them."""
        first = round(self.burn_in * self.steps)
        return {first + (self.steps - first) * (i + 1) // self.samples for i in range(self.samples)}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


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
        batch = max(1, LOGITS_PER_BATCH // (len(flat) * self.network.spec.classes * 100))
        parts = []
        with torch.no_grad():
            for chunk in images.split(max(batch, 250)):
                inputs = transform(chunk.to(flat.device))
                parts.append(torch.stack([self.network.logits(theta, inputs).float().softmax(-1) for theta in flat]))
        return torch.cat(parts, 1).unflatten(0, (chains, samples))


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
    target = _target(coreset, used, chosen, randomness)
    with task(progress or Silent(), f"posterior of {coreset.method} ({start})", chosen.steps) as bar:
        run = _train_points if start == "point" else _run_chains
        kept = run(positions, target, chosen, randomness, lambda step: bar.advance())
    return PosteriorSamples(kept, used, coreset.transform, start, chosen)


def _run_chains(
    positions: Tensor,
    target: FunctionTarget,
    settings: SamplingSettings,
    randomness: Randomness,
    on_step: Callable[[int], object],
) -> Tensor:
    kernel = KERNELS[settings.sampler](step_size=settings.step_size)
    chain = run_chain(
        kernel, positions, target, settings.steps, randomness.device, settings.kept_steps(), on_step=on_step
    )
    return chain.kept.transpose(0, 1)


def _train_points(
    positions: Tensor,
    target: FunctionTarget,
    settings: SamplingSettings,
    randomness: Randomness,
    on_step: Callable[[int], object],
) -> Tensor:
    """SGD with momentum on the mean cross-entropy plus the prior's decay; one sample a chain, the last position.

    v <- momentum v + grad U(theta),  theta <- theta - eta v,  eta a tenth in the second half
    """
    theta = positions.clone().requires_grad_()
    optimiser = torch.optim.SGD([theta], lr=settings.step_size, momentum=POINT_MOMENTUM)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [round(POINT_DECAY_AT * settings.steps)], gamma=0.1)
    for step in range(1, settings.steps + 1):
        optimiser.zero_grad()
        target.potential(theta).sum().backward()
        optimiser.step()
        schedule.step()
        on_step(step)
    if not torch.isfinite(theta).all():
        raise DivergenceError(f"Training diverged at step size {settings.step_size}; lower it.")
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


def _target(coreset: Coreset, network: Network, settings: SamplingSettings, randomness: Randomness) -> FunctionTarget:
    """The coreset's posterior; samplers that accept or reject see the points as they are, the others augmented."""
    device = randomness.device.device
    energy = Energy(Classifier(network, settings.prior_scale), coreset.data_size, settings.temperature)
    stochastic = settings.augment and not is_adjusted(KERNELS[settings.sampler])
    augmentation = dsa(coreset.flippable) if stochastic else None
    return energy.target(
        coreset.images.to(device),
        coreset.labels.to(device),
        coreset.weights.to(device),
        None if augmentation is None else lambda x: augmentation.draw(len(x), randomness)(x),
    )
