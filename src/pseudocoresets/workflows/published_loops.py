"""Condensation as its authors wrote it: plain PyTorch loops, one call for one update of the images.

They are what ``bpc bench`` sets our methods beside: an ordinary module in float32, one class after another, autograd,
and a loader that hands out the synthetic images for the training of networks in between. The real images lie on the
device, as in the published scripts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import Augmentation, Transformation
from pseudocoresets.models.networks import Network

REAL_BATCH = 256
TRAINING_BATCH = 256
WATCHED_IMAGES = 128
NETWORK_RATE = 0.01
WATCHED = 10
LAYER_WEIGHTS = (0.1, 1.0, 1.0)
"""Of the activations before the last, of the last, and of the embedding."""


class PublishedLoop(ABC):
    """Real images by class on the device, synthetic ones, and a network that is drawn anew now and then."""

    def __init__(
        self,
        network: Network,
        images: Tensor,
        labels: Tensor,
        ipc: int,
        augmentation: Augmentation | None,
        matches: int = 1,
        epochs: int = 1,
    ) -> None:
        self._network, self._images, self._augmentation = network, images, augmentation
        self._matches, self._epochs = matches, epochs
        self._classes = network.spec.classes
        self._members = [(labels == c).nonzero().squeeze(1).cpu() for c in range(self._classes)]
        device = images.device
        self.synthetic = torch.randn(self._classes * ipc, *network.spec.shape, device=device, requires_grad=True)
        self.labels = torch.arange(self._classes, device=device).repeat_interleave(ipc)
        self._optimiser = torch.optim.SGD([self.synthetic], lr=0.1, momentum=0.5)
        self._randomness = Randomness.for_purpose(0, "published", device=device)
        self._calls = 0
        self._module = self._fresh()

    def __call__(self) -> None:
        """One update of the synthetic images, and what the published loop does before the next."""
        self._calls += 1
        loss = self.loss(self._module)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        loss.item()
        if self._calls % self._matches == 0:
            self._module = self._fresh()
        else:
            self._train(self._module, self._epochs)

    @abstractmethod
    def loss(self, module: nn.Module) -> Tensor:
        """What the update descends, differentiable in the synthetic images."""

    def _fresh(self) -> nn.Module:
        return self._network.module(self._network.initialise(self._calls)).to(self._images.device)

    def _real(self, c: int, count: int) -> Tensor:
        members = self._members[c]
        return self._images[members[torch.randperm(len(members))[:count]].to(self._images.device)]

    def _own(self, c: int) -> Tensor:
        return self.synthetic.view(self._classes, -1, *self.synthetic.shape[1:])[c]

    def _siamese(self) -> Transformation:
        """One augmentation with one set of parameters, or none."""
        if self._augmentation is None:
            return lambda images: images
        kind = self._randomness.host.choice(self._augmentation.kinds)
        return self._augmentation.draw_kind(kind, 1, self._randomness.device)

    def _train(self, module: nn.Module, epochs: int) -> None:
        own = TensorDataset(self.synthetic.detach().clone(), self.labels)
        loader = DataLoader(own, batch_size=TRAINING_BATCH, shuffle=True)
        optimiser = torch.optim.SGD(module.parameters(), lr=NETWORK_RATE)
        for _ in range(epochs):
            for images, labels in loader:
                seen = images if self._augmentation is None else self._augmented(images)
                optimiser.zero_grad()
                loss = F.cross_entropy(module(seen), labels)
                loss.backward()
                optimiser.step()
                loss.item()

    def _augmented(self, images: Tensor) -> Tensor:
        assert self._augmentation is not None
        return self._augmentation.draw(len(images), self._randomness)(images)


class PublishedDistributionMatching(PublishedLoop):
    """Distances of the class means of the embeddings, class by class."""

    def loss(self, module: nn.Module) -> Tensor:
        embed = _embedding(module)
        total = torch.zeros((), device=self._images.device)
        for c in range(self._classes):
            augment = self._siamese()
            real = embed(augment(self._real(c, REAL_BATCH))).detach()
            total = total + (real.mean(0) - embed(augment(self._own(c))).mean(0)).square().sum()
        return total


class PublishedGradientMatching(PublishedLoop):
    """One minus the cosine of the angle between gradients, class by class, layer by layer and unit by unit."""

    def loss(self, module: nn.Module) -> Tensor:
        parameters = list(module.parameters())
        total = torch.zeros((), device=self._images.device)
        for c in range(self._classes):
            augment = self._siamese()
            real, own = augment(self._real(c, REAL_BATCH)), augment(self._own(c))
            wanted = torch.autograd.grad(F.cross_entropy(module(real), _all(c, real)), parameters)
            found = torch.autograd.grad(F.cross_entropy(module(own), _all(c, own)), parameters, create_graph=True)
            for q, g in zip(found, wanted, strict=True):
                if q.dim() > 1:
                    q, g = q.flatten(1), g.flatten(1)
                    total = total + (1 - (q * g).sum(-1) / (q.norm(dim=-1) * g.norm(dim=-1) + 1e-6)).sum()
        return total


class PublishedFeatureAlignment(PublishedLoop):
    """Distances of the class means of all layers, and the synthetic centres as a classifier of the real images.

    Its training ends as the authors' does, by the accuracies of the last ten epochs.
    """

    def loss(self, module: nn.Module) -> Tensor:
        pairs = []
        for c in range(self._classes):
            augment = self._siamese()
            pairs.append((augment(self._real(c, REAL_BATCH)), augment(self._own(c))))
        real, own = (torch.cat(images) for images in zip(*pairs, strict=True))
        labels = torch.arange(self._classes, device=real.device).repeat_interleave(len(real) // self._classes)
        of_real, of_own = _layers(module, real), _layers(module, own)
        weights = [LAYER_WEIGHTS[0]] * (len(of_own) - 2) + list(LAYER_WEIGHTS[1:])
        total = F.cross_entropy(_classifier(module)(of_real[-1]), labels)
        for weight, theirs, ours in zip(weights, of_real, of_own, strict=True):
            total = total + weight * (self._means(theirs) - self._means(ours)).square().sum()
        centres = self._means(of_own[-1])
        total = total + (self._means(of_real[-1]) - centres).square().sum()
        return total + 0.01 * F.cross_entropy(of_real[-1] @ centres.T, labels, reduction="sum")

    def _train(self, module: nn.Module, epochs: int) -> None:
        accuracies: list[float] = []
        for _ in range(epochs):
            super()._train(module, 1)
            accuracies = [*accuracies, self._accuracy(module)][-WATCHED:]
            if len(accuracies) == WATCHED and max(accuracies) - min(accuracies) > 0.03:
                break

    def _accuracy(self, module: nn.Module) -> float:
        right = [(module(self._real(c, WATCHED_IMAGES)).argmax(1) == c).float().mean() for c in range(self._classes)]
        return float(torch.stack(right).mean())

    def _means(self, features: Tensor) -> Tensor:
        return features.view(self._classes, -1, features.shape[1]).mean(1)


PUBLISHED_LOOPS: Mapping[str, Callable[..., PublishedLoop]] = {
    "dm": PublishedDistributionMatching,
    "gm": PublishedGradientMatching,
    "dsa": PublishedGradientMatching,
    "cafe": PublishedFeatureAlignment,
    "cafe-dsa": PublishedFeatureAlignment,
}
"""By the name of our method; ``gm`` and ``cafe`` take no augmentation."""


def _all(c: int, images: Tensor) -> Tensor:
    return torch.full((len(images),), c, device=images.device)


def _embedding(module: nn.Module) -> nn.Module:
    """All of a stack but its classifier."""
    return nn.Sequential(*list(module.children())[:-1])


def _classifier(module: nn.Module) -> nn.Module:
    return list(module.children())[-1]


def _layers(module: nn.Module, images: Tensor) -> list[Tensor]:
    """What each activation of a stack gives, and last the embeddings; flattened."""
    found, x = [], images
    for layer in next(module.children()).children():
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            found.append(x.flatten(1))
    return [*found, x.flatten(1)]
