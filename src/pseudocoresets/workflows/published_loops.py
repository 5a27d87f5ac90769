"""Condensation methods as their authors' scripts compute them: plain PyTorch, one class after another.

They are what ``bpc bench --methods`` measures beside the library's formulations; nothing else uses them. A call is one
update of the images and, where the method trains a network, the training before it. Real images are on the device as
float32, networks are ordinary modules, gradients are autograd's, and precision is float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import Augmentation, Transformation, dsa
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.models.networks import NETWORKS, Network
from pseudocoresets.models.networks.stack import Stack

IMAGE_RATE, MOMENTUM = 1e-3, 0.5
TRAINING_BATCH = 256


@dataclass(frozen=True)
class LoopSettings:
    """What a loop shares with the library's method: its options, by the same names."""

    batch_size: int = 256
    epochs: int = 50
    matches: int = 10
    step_size: float = 0.01
    watched_images: int = 128
    early_weight: float = 0.1
    discrimination: float = 0.01


class PublishedLoop(ABC):
    """The synthetic images, the real ones by class, and SGD on the former."""

    def __init__(
        self, data: Dataset, network: Network, ipc: int, settings: LoopSettings, augment: bool, device: torch.device
    ) -> None:
        self._network, self._settings, self._device = network, settings, device
        self._randomness = Randomness.for_purpose(0, "published", device=device)
        self._augmentation: Augmentation | None = dsa(data.flippable) if augment else None
        self._images = data.transform(data.train.images).to(device)
        self._labels = data.train.labels.to(device)
        self._classes = [torch.nonzero(data.train.labels == c).squeeze(1) for c in range(len(data.classes))]
        self._ipc, shape = ipc, (len(self._classes) * ipc, *data.shape)
        self._x = torch.randn(shape, device=device, requires_grad=True)
        self._y = torch.arange(len(self._classes), device=device).repeat_interleave(ipc)
        self._optimiser = torch.optim.SGD([self._x], lr=IMAGE_RATE, momentum=MOMENTUM)

    @abstractmethod
    def __call__(self) -> None:
        """One update of the synthetic images."""

    def _fresh_network(self) -> Stack:
        spec = self._network.spec
        module = NETWORKS[spec.name](spec.shape, spec.classes, **spec.options).to(self._device)
        assert isinstance(module, Stack)
        return module

    def _real(self, c: int, count: int) -> Tensor:
        order = torch.randperm(len(self._classes[c]))[:count]
        return self._images[self._classes[c][order].to(self._device)]

    def _synthetic(self, c: int) -> Tensor:
        return self._x[c * self._ipc : (c + 1) * self._ipc]

    def _shared_augmentation(self) -> Transformation:
        """One draw for the real and the synthetic images of a class."""
        if self._augmentation is None:
            return lambda x: x
        kind = self._randomness.host.choice(self._augmentation.kinds)
        return self._augmentation.draw_kind(kind, 1, self._randomness.device)

    def _update(self, loss: Tensor) -> None:
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()

    def _train(self, module: nn.Module, epochs: int, after_epoch: Callable[[], object] | None = None) -> None:
        """SGD on the synthetic images in shuffled batches."""
        optimiser = torch.optim.SGD(module.parameters(), lr=self._settings.step_size)
        x = self._x.detach()
        for _ in range(epochs):
            for batch in torch.randperm(len(x), device=self._device).split(TRAINING_BATCH):
                seen = x[batch]
                if self._augmentation is not None:
                    seen = self._augmentation.draw(len(seen), self._randomness)(seen)
                optimiser.zero_grad()
                F.cross_entropy(module(seen), self._y[batch]).backward()
                optimiser.step()
            if after_epoch is not None:
                after_epoch()


class DistributionMatchingLoop(PublishedLoop):
    """A fresh network, and for each class the squared distance of the means of its embeddings."""

    def __call__(self) -> None:
        module = self._fresh_network()
        embed = nn.Sequential(*_before_classifier(module)).requires_grad_(False)
        loss = torch.zeros((), device=self._device)
        for c in range(len(self._classes)):
            augment = self._shared_augmentation()
            real = embed(augment(self._real(c, self._settings.batch_size))).detach()
            synthetic = embed(augment(self._synthetic(c)))
            loss = loss + (real.mean(0) - synthetic.mean(0)).square().sum()
        self._update(loss)


class GradientMatchingLoop(PublishedLoop):
    """For each class the distance of the gradients, layer by layer; then the network is trained for some epochs."""

    _matched = 0
    _module: nn.Module | None = None

    def __call__(self) -> None:
        if self._module is None or self._matched == self._settings.matches:
            self._module, self._matched = self._fresh_network(), 0
        else:
            self._train(self._module, self._settings.epochs)
        module, parameters = self._module, list(self._module.parameters())
        loss = torch.zeros((), device=self._device)
        for c in range(len(self._classes)):
            augment = self._shared_augmentation()
            x, synthetic = augment(self._real(c, self._settings.batch_size)), augment(self._synthetic(c))
            wanted = torch.autograd.grad(_class_loss(module(x), c), parameters)
            found = torch.autograd.grad(_class_loss(module(synthetic), c), parameters, create_graph=True)
            loss = loss + sum(_layer_distance(q, g.detach()) for q, g in zip(found, wanted, strict=True))
        self._update(loss)
        self._matched += 1


class FeatureAlignmentLoop(PublishedLoop):
    """For each class the means of all layers' features, then the discrimination loss, and ten epochs of training.

    How long the authors train follows from accuracies, which mean nothing on random images; ten epochs are the least.
    """

    _EPOCHS = 10
    _module: Stack | None = None

    def __call__(self) -> None:
        if self._module is None:
            self._module = self._fresh_network()
        else:
            self._train(self._module, self._EPOCHS, self._accuracy)
        loss = torch.zeros((), device=self._device)
        embeddings, centres = [], []
        for c in range(len(self._classes)):
            augment = self._shared_augmentation()
            with torch.no_grad():
                wanted = _layer_features(self._module, augment(self._real(c, self._settings.batch_size)))
            found = _layer_features(self._module, augment(self._synthetic(c)))
            weights = [self._settings.early_weight] * (len(found) - 2) + [1.0, 2.0]
            for weight, real, synthetic in zip(weights, wanted, found, strict=True):
                loss = loss + weight * (real.mean(0) - synthetic.mean(0)).square().sum()
            embeddings.append(wanted[-1])
            centres.append(found[-1].mean(0))
        scores = torch.cat(embeddings) @ torch.stack(centres).T
        labels = torch.arange(len(self._classes), device=self._device).repeat_interleave(len(scores) // len(centres))
        loss = loss + self._settings.discrimination * F.cross_entropy(scores, labels, reduction="sum")
        self._update(loss)
        self._accuracy()

    @torch.no_grad()
    def _accuracy(self) -> float:
        assert self._module is not None
        right = 0
        for c in range(len(self._classes)):
            right += int((self._module(self._real(c, self._settings.watched_images)).argmax(1) == c).sum())
        return right / (len(self._classes) * self._settings.watched_images)


LOOPS: Mapping[str, tuple[type[PublishedLoop], bool]] = {
    "gm": (GradientMatchingLoop, False),
    "dsa": (GradientMatchingLoop, True),
    "dm": (DistributionMatchingLoop, True),
    "cafe": (FeatureAlignmentLoop, False),
    "cafe-dsa": (FeatureAlignmentLoop, True),
}
"""By method, the loop and whether it augments."""


def _class_loss(logits: Tensor, c: int) -> Tensor:
    return F.cross_entropy(logits, torch.full((len(logits),), c, device=logits.device))


def _layer_distance(found: Tensor, wanted: Tensor) -> Tensor:
    """sum over output units of 1 - cosine; nothing for biases and norms."""
    if found.dim() < 2:
        return found.new_zeros(())
    q, g = found.flatten(1), wanted.flatten(1)
    return (1 - (q * g).sum(1) / (q.norm(dim=1) * g.norm(dim=1) + 1e-6)).sum()


def _layer_features(module: Stack, x: Tensor) -> list[Tensor]:
    """What each activation function gives, and the embedding, all flattened."""
    found = []
    for layer in _before_classifier(module):
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            found.append(x.flatten(1))
    return [*found, x]


def _before_classifier(module: Stack) -> list[nn.Module]:
    return [*module.get_submodule("features").children(), nn.Flatten()]
