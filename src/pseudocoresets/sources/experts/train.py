"""Training experts: SGD on the full data, several experts at once as a population."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pseudocoresets import presets
from pseudocoresets._io.files import only_writer
from pseudocoresets.backends import Backend, ChainRunner, choose_backend
from pseudocoresets.core.devices import device_memory_error, is_out_of_memory, resolve_device, threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import Progress, Silent, by_default, task
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.core.settings import SCALE, build_settings
from pseudocoresets.core.state import Rates
from pseudocoresets.data.augmentation import AnyAugmentation, augmentation_for
from pseudocoresets.data.dataset import Dataset, require_public
from pseudocoresets.data.resident import DeviceImages
from pseudocoresets.dp import Budget, Entropy, SystemEntropy
from pseudocoresets.models.networks import AnyNetwork, Network, as_network
from pseudocoresets.presets import NO_DATASET, Preset
from pseudocoresets.sources.experts.private import CLIPPING, PrivateTrainer, plan_releases, require_finite
from pseudocoresets.sources.experts.store import Experts, ExpertSettings, ExpertStore, PrivateTraining, TrainedOn

IMAGES_PER_BLOCK = 20_000
"""The most images that are augmented at once."""


def train_experts(
    data: Dataset,
    network: AnyNetwork = "convnet",
    count: int | None = None,
    epochs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    preset: str | os.PathLike[str] | Preset = "quick",
    augmentation: AnyAugmentation | None = None,
    population: int | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    privacy: Budget | None = None,
    clipping: float = CLIPPING,
    **settings: Any,
) -> Experts:
    """Train experts, or those of them that the folder ``out`` does not hold yet.

    Args:
        data: The full data.
        network: A name, a module, its class or a function that builds it.
        count: How many experts there should be in the end.
        epochs: Epochs of each.
        out: A folder; each expert is written as soon as its group is done, so that a run that is killed and started
            again goes on with the next group. Without it, experts are kept in memory.
        preset: Where what is not given comes from, as in the command.
        augmentation: In place of differentiable Siamese augmentation.
        population: Experts that are trained side by side.
        backend: How to compute; chosen for the device where none is given.
        privacy: The budget of differential privacy for all experts together, which are then trained by DP-SGD; the
            data must be normalised by public constants (``Dataset.publicly_normalised``).
        clipping: The norm that DP-SGD clips the gradient of one example to.
        settings: Those of ``ExpertSettings``.
    """
    own = presets.preset(preset, data.name) if privacy is None else presets.preset(preset, NO_DATASET)
    count = own.expert_count if count is None else count
    given = settings if epochs is None else {**settings, "epochs": epochs}
    chosen = build_settings(ExpertSettings, {**own.experts, **given}, "The training of experts")
    shown = progress or by_default()
    return train(data, network, count, chosen, out, population, device, backend, shown, augmentation, privacy, clipping)


def train(
    data: Dataset,
    network: AnyNetwork,
    count: int,
    settings: ExpertSettings,
    out: str | os.PathLike[str] | None = None,
    population: int | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    augmentation: AnyAugmentation | None = None,
    privacy: Budget | None = None,
    clipping: float = CLIPPING,
    entropy: Entropy | None = None,
) -> Experts:
    """The same with everything chosen; ``entropy`` is the operating system's unless a test gives another.

    Experts are trained in groups of ``population`` that do not depend on which of them are there already, so that
    those of a run that was killed are those of one that was not. Private ones are trained one after another.
    """
    if count < 1:
        raise InputError(f"At least one expert is needed; got {count}.")
    if population is not None and population < 1:
        raise InputError(f"At least one expert is trained at a time; got a population of {population}.")
    network = as_network(network, data.shape, len(data.classes))
    private = None if privacy is None else _private_training(data, count, settings, privacy, clipping, augmentation)
    trained_on = TrainedOn.of(data, private is not None)
    store = (
        None if out is None else ExpertStore.create_or_open(out, network, trained_on, settings, private, data.guarantee)
    )
    private = private if store is None else store.private
    todo = list(range(count)) if store is None else store.missing(count)
    in_memory: dict[int, Tensor] = {}
    keep = in_memory.__setitem__ if store is None else store.add
    if todo:
        where = resolve_device(device)
        with (
            nullcontext() if out is None else only_writer(out),
            threads_for(data.shape),
            task(progress or Silent(), f"training experts on {data.name}", len(todo) * settings.epochs) as shown,
        ):
            if private is None:
                trainer = _Trainer(data, network, settings, where, backend or choose_backend(where), augmentation)
                trainer.train_missing(todo, range(count), population, shown, keep)
            else:
                if store is not None:
                    store.renew_release()
                computing, drawn = backend or choose_backend(where), entropy or SystemEntropy()
                secretly = PrivateTrainer(data, network, settings, where, computing, private, drawn)
                for number in todo:
                    keep(number, secretly.train(number, shown))
    if store is not None:
        return store.experts(count)
    guarantee = data.guarantee if private is None else private.guarantee
    return Experts(network, trained_on, settings, list(in_memory.values()), guarantee)


def _private_training(
    data: Dataset,
    count: int,
    settings: ExpertSettings,
    budget: Budget,
    clipping: float,
    augmentation: AnyAugmentation | None,
) -> PrivateTraining:
    """What the experts may spend; refused where something else would tell of single examples."""
    if data.guarantee is not None:
        raise InputError("These data are private already, and so is all that is learned from them; give no budget.")
    require_public(data)
    if augmentation is not None:
        raise InputError("Private experts are trained with the library's own augmentation, which never mixes images.")
    if clipping not in SCALE:
        raise InputError(f"The norm that gradients are clipped to is a number {SCALE}; got {clipping}.")
    return PrivateTraining(budget, clipping, plan_releases(data, count, settings, budget))


def train_block(
    data: Dataset,
    network: AnyNetwork,
    block: Sequence[int],
    settings: ExpertSettings,
    out: str | os.PathLike[str],
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    population: int | None = None,
) -> None:
    """The experts of these numbers that ``out`` does not hold; other processes may add others at the same time."""
    network, where = as_network(network, data.shape, len(data.classes)), resolve_device(device)
    store = ExpertStore.create_or_open(out, network, TrainedOn(data.name, data.fingerprint), settings)
    todo = [number for number in store.missing(block[-1] + 1) if number in block]
    if todo:
        with threads_for(data.shape):
            trainer = _Trainer(data, network, settings, where, backend or choose_backend(where), None)
            trainer.train_missing(todo, block, population, Silent(), store.add)


BATCH_SIZE = 256
FEWEST_STEPS = 16
"""Steps per epoch, at least, where no batch size is given: an epoch of fewer would teach nothing."""


class _Trainer:
    """The full data, on the device if it has room, and SGD on it for a population of parameter sets."""

    def __init__(
        self,
        data: Dataset,
        network: Network,
        settings: ExpertSettings,
        device: torch.device,
        backend: Backend,
        augmentation: AnyAugmentation | None,
    ) -> None:
        self._network = network
        self._settings = settings
        self._batch_size = settings.batch_size or min(BATCH_SIZE, max(1, len(data.train) // FEWEST_STEPS))
        self._device = device
        self._backend = backend
        self._images = DeviceImages(data.train.images, data.transform.to(device), device, ready=True)
        self._labels = data.train.labels.to(device)
        self._augmentation = augmentation_for(settings.augment, augmentation, data.flippable)
        self.default_population = 1 if device.type == "cpu" else 4

    def train_missing(
        self,
        todo: Sequence[int],
        numbers: Sequence[int],
        population: int | None,
        progress: Progress,
        keep: Callable[[int, Tensor], None],
    ) -> None:
        """``numbers`` in groups; of a group in which any is to be done, those that are are kept."""
        for group in _groups(list(numbers), population or self.default_population):
            if wanted := set(todo).intersection(group):
                trained = dict(zip(group, self.train_in_parts(group, progress), strict=True))
                for number in sorted(wanted):
                    keep(number, trained[number])

    def train_in_parts(self, numbers: list[int], progress: Progress) -> list[Tensor]:
        """Train these side by side, or in halves if the device cannot hold so many."""
        try:
            return self.train(numbers, progress)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
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
        batch, steps = self._batch_size, self._steps_per_epoch
        runner = self._backend.chains(
            self._network, self._device, len(theta), batch, steps, False, False, IMAGES_PER_BLOCK
        )
        runner.set_position(theta)
        runner.set_rates(Rates(self._settings.learning_rate, momentum=self._settings.momentum))
        for epoch in range(1, self._settings.epochs + 1):
            theta = self._epoch(runner, randomness)
            require_finite(theta, epoch, self._settings)
            snapshots.append(theta.cpu())
            progress.advance(len(numbers))
        return list(torch.stack(snapshots, 1))

    def _epoch(self, runner: ChainRunner, randomness: Randomness) -> Tensor:
        """The parameters after one more pass over the data."""
        factors = torch.full((self._batch_size,), 1 / self._batch_size, device=self._device)
        blocks = self._batches(runner.chains, randomness).split(runner.steps, 1)
        for block, images in zip(blocks, self._images.in_turn(blocks), strict=True):
            runner.set_labels(self._labels[block], factors)
            runner.run_block(images, self._augmentation, randomness)
        return runner.position()

    @property
    def _steps_per_epoch(self) -> int:
        return -(-len(self._labels) // self._batch_size)

    def _batches(self, experts: int, randomness: Randomness) -> Tensor:
        """An order of its own for each expert, (experts, steps, batch); the last batch is filled up from the first."""
        keys = torch.rand(experts, len(self._labels), generator=randomness.device, device=self._device)
        order = keys.argsort(1)
        wanted = self._steps_per_epoch * self._batch_size
        repeats = -(-wanted // order.shape[1])
        return order.repeat(1, repeats)[:, :wanted].view(experts, self._steps_per_epoch, -1)


def _groups(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]
