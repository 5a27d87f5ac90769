"""Experts by DP-SGD (Abadi et al. 2016): training that no single example changes by much.

In each step every example takes part with probability q = batch size / n, on its own, and with g_i the gradient of
example i's cross-entropy at theta,

    v     <- momentum v + (sum_i g_i min(1, c / |g_i|) + N(0, (z c)^2 I)) / (q n)
    theta <- theta - learning_rate v

n being the number of examples. All steps of all experts share one budget, which decides z; snapshots are computed from
the noisy sums alone. A step has one augmentation for all images: one of its own for each would depend on who else takes
part, so that an example would change the others' gradients too. For the same reason a step's examples are taken in
parts of always the same size, of which blank images that are not admitted to the sum fill the last: how many take part
decides how many parts there are, and not which kernels compute a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.backends import Backend
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.data.augmentation import augmentation_for
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Budget, Entropy, Guarantee, Release, calibrated, noisy_sum
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts.store import ExpertSettings, PrivateTraining

CLIPPING = 1.0
GRADIENT_NUMBERS = 2**28
"""The most numbers in the gradients that are held at once: a GiB."""
MOST_AT_ONCE, FEWEST_AT_ONCE = 256, 32
"""Examples of a part; with fewer a device has too little to do."""
PARTS = 8
"""Of a step, about: of the last, half is blank on average."""


def plan_releases(data: Dataset, count: int, settings: ExpertSettings, budget: Budget) -> Guarantee:
    """The guarantee of ``count`` experts together, with the noise that it takes."""
    size = len(data.train)
    rate, steps = sampling_rate(size, settings), settings.epochs * steps_per_epoch(size, settings)
    what = f"clipped gradients of {count} expert{'s' if count > 1 else ''}, {steps} steps each"
    return calibrated(budget, size, lambda noise: Release(what, noise, rate, count * steps))


def sampling_rate(size: int, settings: ExpertSettings) -> float:
    """The probability of each example to take part in a step."""
    if settings.batch_size is None:
        raise InputError("Private training needs a batch size: give --expert-batch-size, the larger the better.")
    return min(1.0, settings.batch_size / size)


def steps_per_epoch(size: int, settings: ExpertSettings) -> int:
    return max(1, round(1 / sampling_rate(size, settings)))


def examples_at_once(network: Network, expected: float) -> int:
    """The size of the parts of a step in which so many examples take part on average, from what is public alone."""
    wanted = max(math.ceil(expected / PARTS), min(FEWEST_AT_ONCE, math.ceil(expected)))
    return max(1, min(wanted, MOST_AT_ONCE, GRADIENT_NUMBERS // network.size))


def require_finite(theta: Tensor, epoch: int, settings: ExpertSettings) -> None:
    """Refuse to go on with parameters that left the finite numbers."""
    if not torch.isfinite(theta).all():
        raise DivergenceError(
            f"Expert training diverged in epoch {epoch} at learning rate {settings.learning_rate}; lower it."
        )


class PrivateTrainer:
    """The full data on the device, and DP-SGD on them."""

    def __init__(
        self,
        data: Dataset,
        network: Network,
        settings: ExpertSettings,
        device: torch.device,
        backend: Backend,
        private: PrivateTraining,
        entropy: Entropy,
    ) -> None:
        self._network, self._settings, self._device, self._backend = network, settings, device, backend
        self._images = data.transform(data.train.images.to(device))
        self._labels = data.train.labels.to(device)
        augmentation = augmentation_for(settings.augment, None, data.flippable)
        self._augmentation = backend.augmentation(augmentation, data.shape)
        self._clipping, self._release, self._entropy = private.clipping, private.guarantee.releases[0], entropy
        self._steps = steps_per_epoch(len(data.train), settings)
        self._at_once = examples_at_once(network, self._release.sampling_rate * len(data.train))

    def train(self, number: int, progress: Progress) -> Tensor:
        """The trajectory (epochs + 1, parameters) of one expert."""
        return torch.stack(list(self._snapshots(number, progress)))

    def _snapshots(self, number: int, progress: Progress) -> Iterator[Tensor]:
        theta = self._network.initialise(derive_seed(self._settings.seed, "expert", number)).to(self._device)
        randomness = Randomness.for_purpose(self._settings.seed, "private expert", number, device=self._device)
        velocity = torch.zeros_like(theta)
        yield theta.cpu()
        for epoch in range(1, self._settings.epochs + 1):
            for _ in range(self._steps):
                velocity = self._settings.momentum * velocity + self.gradient(theta, randomness)
                theta = theta - self._settings.learning_rate * velocity
            require_finite(theta, epoch, self._settings)
            progress.advance()
            yield theta.cpu()

    def gradient(self, theta: Tensor, randomness: Randomness) -> Tensor:
        """(sum_i g_i min(1, c / |g_i|) + N(0, (z c)^2 I)) / (q n) over examples that take part by chance."""
        rate, size = self._release.sampling_rate, len(self._labels)
        chosen = (self._entropy.uniform(size, self._device) < rate).nonzero().squeeze(1)
        augment = None if self._augmentation is None else self._augmentation.draw(1, randomness)
        total = torch.zeros_like(theta, dtype=torch.float64)
        for x, y, admitted in self._parts(chosen):
            seen = x if augment is None else augment(x)
            total += self._backend.clipped_gradients(self._network, theta, seen, y, self._clipping, admitted)
        noisy = noisy_sum(total, self._clipping, self._release.noise_multiplier, self._entropy)
        return noisy / (rate * size)

    def _parts(self, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images and labels of the examples in parts of one size, and which of them are no filling."""
        filled = F.pad(chosen, (0, -len(chosen) % self._at_once))
        admitted = torch.arange(len(filled), device=self._device) < len(chosen)
        for first in range(0, len(filled), self._at_once):
            part, real = (each[first : first + self._at_once] for each in (filled, admitted))
            yield torch.where(real[:, None, None, None], self._images[part], 0.0), self._labels[part] * real, real
