"""What a construction is about: images with a network, or rows with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from pseudocoresets.backends import Backend
from pseudocoresets.construction.privacy import NOTHING_PROMISED, Terms
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.devices import HOST
from pseudocoresets.core.energy import Energy, require_signal, uniform_weights
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.formation import tiled
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.coreset import Coreset, require_same_shape
from pseudocoresets.data.augmentation import AnyAugmentation, augmentation_for
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods import GradientMethod, Problem, RealData
from pseudocoresets.methods.selection import NOISES, selection_of_start
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, NetworkSpec
from pseudocoresets.sources.experts import Experts


class Task(Protocol):
    """The full data, the model, and samples of their posterior."""

    def start(
        self, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any], device: torch.device
    ) -> Coreset:
        """Where the points begin."""
        ...

    def continued(
        self, initial: Coreset, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any]
    ) -> Coreset:
        """The points of another coreset as the start, which remembers how they were made."""
        ...

    def problem(self, settings: ConstructionSettings, device: torch.device, backend: Backend) -> Problem:
        """What a method may ask."""
        ...

    def parameterisation(
        self, start: Coreset, method: GradientMethod, settings: ConstructionSettings
    ) -> Parameterisation:
        """How the points follow from what is learned."""
        ...

    def identity(self) -> str:
        """A fingerprint of the data, the model and the source of posterior samples."""
        ...


@dataclass(frozen=True)
class ImageTask:
    """Images in classes, a network, and experts where the method draws from them."""

    data: Dataset
    network: Network
    experts: Experts | None = None
    augmentation: AnyAugmentation | None = None
    """Of the images; differentiable Siamese augmentation where none is given."""
    terms: Terms = NOTHING_PROMISED
    """What is promised of the coreset, and so what may be asked of the data."""

    def start(
        self, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any], device: torch.device
    ) -> Coreset:
        if self.terms.data_are_secret:
            return noise_coreset(self.data, settings, self.network.spec, method, recorded, self.terms)
        return real_coreset(self.data, settings, self.network.spec, method, recorded, self.experts, device)

    def continued(
        self, initial: Coreset, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any]
    ) -> Coreset:
        require_same_shape(initial, self.data)
        if initial.formation != settings.formation:
            raise InputError(
                f"The coreset to go on from has formation {initial.formation}; go on with --formation "
                f"{initial.formation} (formation={initial.formation}), not {settings.formation}."
            )
        start = renamed(initial, settings, method, _with_origin(recorded, self.data))
        return replace(start, network=self.network.spec, guarantee=self.terms.going_on_from(initial))

    def problem(self, settings: ConstructionSettings, device: torch.device, backend: Backend) -> Problem:
        data = self.data
        if settings.weights == "unit":
            require_signal(settings.ipc * len(data.classes), data_size(data), settings.temperature)

        @cache
        def real_data() -> RealData:
            self.terms.require_readable()
            return RealData.of(data, device)

        augmentation = augmentation_for(settings.augment, self.augmentation, data.flippable, settings.mixed_kinds)
        return Problem(
            energy=Energy(Classifier(self.network, settings.prior_scale), data_size(data), settings.temperature),
            source=self.experts,
            real_data=real_data,
            augmentation=backend.augmentation(augmentation, data.shape),
            backend=backend,
        )

    def parameterisation(
        self, start: Coreset, method: GradientMethod, settings: ConstructionSettings
    ) -> Parameterisation:
        labels = method.learns_labels if settings.learn_labels is None else settings.learn_labels
        weights = method.learns_weights if settings.learn_weights is None else settings.learn_weights
        if not (method.learns_points or labels or weights):
            raise InputError(f"The method '{start.method}' learns labels and no images; leave out --keep-labels.")
        return Parameterisation(
            start.stored,
            "simplex" if labels else "fixed",
            weights,
            classes=len(start.classes),
            learn_points=method.learns_points,
            formation=start.formation,
        )

    def identity(self) -> str:
        experts = None if self.experts is None else self.experts.fingerprint
        return fingerprint(self.data.fingerprint, self.network.fingerprint, experts, self.augmentation)


def renamed(initial: Coreset, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any]) -> Coreset:
    """A coreset as the start of another construction."""
    origin = {"method": initial.method, "configuration": dict(initial.configuration)}
    return replace(initial, method=method, seed=settings.seed, configuration={**recorded, "initial": origin})


def real_coreset(
    data: Dataset,
    settings: ConstructionSettings,
    network: NetworkSpec | None,
    method: str,
    recorded: Mapping[str, Any] | None = None,
    experts: Experts | None = None,
    device: torch.device = HOST,
) -> Coreset:
    """Real images chosen by ``settings.initialisation``, or noise: where a construction starts, and the control.

    Where several are kept in one, that many more are chosen.
    """
    tiles = settings.formation**2
    selection = selection_of_start(settings.initialisation)
    index = selection.select(data, tiles * settings.ipc, settings.seed, experts, device)
    x = data.transform(data.train.images[index])
    if tiles > 1:
        require_whole_mosaics(data.train.labels[index], tiles)
        x, index = tiled(x, settings.formation), index[::tiles]
    if settings.initialisation in NOISES:
        x = _noise(x.shape, settings)
    start = _coreset(x, data.train.labels[index], data, settings, network, method, recorded)
    return replace(start, guarantee=data.guarantee)


def noise_coreset(
    data: Dataset,
    settings: ConstructionSettings,
    network: NetworkSpec,
    method: str,
    recorded: Mapping[str, Any],
    terms: Terms,
) -> Coreset:
    """A start that owes nothing to the data but what is public of them: their number, shape and classes."""
    if settings.initialisation not in NOISES:
        raise InputError(
            f"A private coreset starts from noise; real images chosen by '{settings.initialisation}' would be part of "
            f"it. Choose the initialisation {' or '.join(NOISES)}."
        )
    labels = torch.arange(len(data.classes)).repeat_interleave(settings.ipc)
    x = _noise((len(labels), *data.shape), settings)
    start = _coreset(x, labels, data, settings, network, method, recorded)
    return replace(start, guarantee=terms.guarantee)


def _noise(shape: Sequence[int], settings: ConstructionSettings) -> Tensor:
    x = torch.randn(*shape, generator=generator_for(settings.seed, "noise"))
    return faint(x) if settings.initialisation == "faint-noise" else x


def faint(x: Tensor) -> Tensor:
    """Images divided by their norms."""
    return x / x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


def data_size(data: Dataset) -> int:
    """How many examples the data stand for: of private synthetic data, those that they were made from."""
    return len(data.train) if data.guarantee is None else data.guarantee.examples


def _coreset(
    x: Tensor,
    y: Tensor,
    data: Dataset,
    settings: ConstructionSettings,
    network: NetworkSpec | None,
    method: str,
    recorded: Mapping[str, Any] | None,
) -> Coreset:
    size = data_size(data)
    return Coreset(
        x=x,
        y=y,
        weights=uniform_weights(len(y), size) if settings.weights == "full" else torch.ones(len(y)),
        transform=data.transform,
        classes=data.classes,
        data_size=size,
        source=data.name,
        method=method,
        seed=settings.seed,
        network=network,
        configuration=_with_origin(recorded or {"settings": asdict(settings)}, data),
        flippable=data.flippable,
        formation=settings.formation,
    )


def _with_origin(recorded: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """What a file records of a construction, and of how its data were made where they are a coreset's images."""
    return dict(recorded) if data.made_by is None else {**recorded, "data": dict(data.made_by)}


def require_whole_mosaics(labels: Tensor, tiles: int) -> None:
    """Images of ``labels``, class by class, must fill mosaics of one class each."""
    counts = labels.bincount()
    if bool((counts % tiles).any()):
        raise InputError(
            f"A stored image takes {tiles} images of its class, and a class has only {int(counts.min())}; choose fewer "
            "images per class or a smaller 'formation'."
        )
