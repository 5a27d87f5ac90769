"""Training experts: SGD on the full data, several experts at once as a population."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from pseudocoresets.backends import Backend, ChainRunner, choose_backend
from pseudocoresets.core.devices import device_memory_error, resolve_device
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.core.state import Rates
from pseudocoresets.data.augmentation import Augmentation, dsa
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.models.networks import AnyNetwork, Network, as_network
from pseudocoresets.sources.experts.store import Experts, ExpertSettings, ExpertStore, TrainedOn

IMAGES_PER_BLOCK = 20_000
"""The most images that are augmented at once."""


def train_experts(
    data: Dataset,
    network: AnyNetwork = "convnet",
    count: int = 100,
    epochs: int = 50,
    out: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 256,
    learning_rate: float = 0.01,
    momentum: float = 0.0,
    augment: bool = True,
    seed: int = 0,
    population: int | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
) -> Experts:
    """Train ``count`` experts, or those of them that the folder ``out`` does not hold yet.

    ``population`` experts are trained side by side; each is written as soon as its group is done, so a run that is
    killed and started again goes on with the next group. Without ``out`` they are kept in memory.
    """
    if count < 1:
        raise InputError(f"At least one expert is needed; got {count}.")
    if population is not None and population < 1:
        raise InputError(f"At least one expert is trained at a time; got a population of {population}.")
    network = as_network(network, data.shape, len(data.classes))
    settings = ExpertSettings(epochs, batch_size, learning_rate, momentum, augment, seed)
    trained_on = TrainedOn(data.name, data.fingerprint)
    store = None if out is None else ExpertStore.create_or_open(out, network, trained_on, settings)
    todo = list(range(count)) if store is None else store.missing(count)
    in_memory: dict[int, Tensor] = {}
    keep = in_memory.__setitem__ if store is None else store.add
    if todo:
        where = resolve_device(device)
        trainer = _Trainer(data, network, settings, where, backend or choose_backend(where))
        with task(progress or Silent(), f"experts on {data.name}", len(todo) * epochs) as shown:
            for numbers in _groups(todo, population or trainer.default_population):
                for number, trajectory in zip(numbers, trainer.train_in_parts(numbers, shown), strict=True):
                    keep(number, trajectory)
    if store is not None:
        return store.experts(count)
    return Experts(network, trained_on, settings, list(in_memory.values()))


class _Trainer:
    """The full data on the device, and SGD on it for a population of parameter sets."""

    def __init__(
        self, data: Dataset, network: Network, settings: ExpertSettings, device: torch.device, backend: Backend
    ) -> None:
        self._network = network
        self._settings = settings
        self._device = device
        self._backend = backend
        self._images = data.transform(data.train.images.to(device))
        self._labels = data.train.labels.to(device)
        self._augmentation: Augmentation | None = dsa(data.flippable) if settings.augment else None
        self.default_population = 1 if device.type == "cpu" else 4

    def train_in_parts(self, numbers: list[int], progress: Progress) -> list[Tensor]:
        """Train these side by side, or in halves if the device cannot hold so many."""
        try:
            return self.train(numbers, progress)
        except torch.OutOfMemoryError as error:
            if len(numbers) == 1:
                advice = "lower the batch size or choose a smaller network"
                raise device_memory_error("training one expert", advice, error) from None
        middle = len(numbers) // 2
        return self.train_in_parts(numbers[:middle], progress) + self.train_in_parts(numbers[middle:], progress)

    def train(self, numbers: list[int], progress: Progress) -> list[Tensor]:
        """Trajectories (epochs + 1, parameters) of these experts.

        theta <- theta - learning_rate v,  v <- momentum v + grad (mean cross-entropy of a batch)
        """
        seed = self._settings.seed
        theta = torch.stack([self._network.initialise(derive_seed(seed, "expert", n)) for n in numbers]).to(
            self._device
        )
        randomness = Randomness.for_purpose(seed, "expert training", *numbers, device=self._device)
        snapshots = [theta.cpu()]
        batch, steps = self._settings.batch_size, self._steps_per_epoch
        runner = self._backend.chains(
            self._network, self._device, len(theta), batch, steps, False, False, IMAGES_PER_BLOCK
        )
        runner.set_position(theta)
        runner.set_rates(Rates(self._settings.learning_rate, momentum=self._settings.momentum))
        for epoch in range(1, self._settings.epochs + 1):
            theta = self._epoch(runner, randomness)
            if not torch.isfinite(theta).all():
                raise DivergenceError(
                    f"Expert training diverged in epoch {epoch} at learning rate {self._settings.learning_rate}; "
                    "lower it."
                )
            snapshots.append(theta.cpu())
            progress.advance(len(numbers))
        return list(torch.stack(snapshots, 1))

    def _epoch(self, runner: ChainRunner, randomness: Randomness) -> Tensor:
        """The parameters after one more pass over the data."""
        factors = torch.full((self._settings.batch_size,), 1 / self._settings.batch_size, device=self._device)
        for block in self._batches(runner.chains, randomness).split(runner.steps, 1):
            runner.set_labels(self._labels[block], factors)
            runner.run_block(self._images[block], self._augmentation, randomness)
        return runner.position()

    @property
    def _steps_per_epoch(self) -> int:
        return -(-len(self._labels) // self._settings.batch_size)

    def _batches(self, experts: int, randomness: Randomness) -> Tensor:
        """An order of its own for each expert, (experts, steps, batch); the last batch is filled up from the first."""
        keys = torch.rand(experts, len(self._labels), generator=randomness.device, device=self._device)
        order = keys.argsort(1)
        wanted = self._steps_per_epoch * self._settings.batch_size
        repeats = -(-wanted // order.shape[1])
        return order.repeat(1, repeats)[:, :wanted].view(experts, self._steps_per_epoch, -1)


def _groups(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]
