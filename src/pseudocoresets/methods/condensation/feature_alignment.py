"""Feature alignment: CAFE (Wang et al. 2022).

The class means of a network's features, layer by layer, are to be the same for synthetic and real images, and the means
of the synthetic embeddings are to tell the classes of real images apart. With z_l the features of layer l = 1 .. d,
what the l-th activation function gives, and z the embedding, the input of the last linear layer,

    m_l[c] = sum_j a_jc z_l(s_j) / sum_j a_jc,    M_l[c] = 1 / |B_c| sum_{i in B_c} z_l(x_i)       (m, M for z)
    L      = sum_{l<d} 0.1 sum_c ||m_l[c] - M_l[c]||^2 + sum_c ||m_d[c] - M_d[c]||^2 + 2 sum_c ||m[c] - M[c]||^2
             - 0.01 sum_c sum_{i in B_c} log softmax_k( < z(x_i), m[k] > )[c],

B_c a batch of real images of class c, s_j the synthetic images and a_jc = w_j y_jc their weights times their labels.
0.1 is ``early_weight``, 0.01 ``discrimination``; the authors' code has the embedding's means in two of its terms, hence
2. There are only first derivatives, in the images.

How long a network serves, and how long it is trained between two iterations, follows from how well it does. In each
iteration, and in training after each epoch, its accuracy on 128 real images per class is taken; of the last ten,

    a fresh network is drawn      when those of iterations lie within ``settled`` of each other,
    training between them ends    when those of epochs lie further than ``moved`` apart, or after ``most_epochs``,

each counted from the tenth on. Training is SGD of rate ``step_size`` on the synthetic images as they are then. The
network and its accuracies are kept from iteration to iteration, and in the checkpoint.

Defaults are those of the authors' code: SGD of rate 0.1 and momentum 0.5 on the images, which start from noise, and 256
real images per class. Its 2,000 networks serve at least ten iterations each, 20,000 here. It halves the rate after 60,
80 and 90 percent of them, for which the preset ``paper`` lets it fall over the last 40 percent; it has no
``most_epochs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.kernels.kernel import positive_step_size
from pseudocoresets.methods.condensation.classes import class_means, membership
from pseudocoresets.methods.condensation.training import trained
from pseudocoresets.methods.estimator import (
    fresh_parameters,
    network_of,
    repeated_loss,
)
from pseudocoresets.methods.method import GradientMethod, Loss, StateShape
from pseudocoresets.methods.problem import ClassBatch, Problem
from pseudocoresets.models.networks import Network

NETWORK, ACCURACIES = "network", "accuracies"
"""Names in the state: the network's parameters, and its last accuracies."""
WATCHED = 10
"""Accuracies that are compared."""


@dataclass(frozen=True)
class FeatureAlignment(GradientMethod):
    """Weights of the loss, and when a network is trained enough and when it has served."""

    early_weight: float = 0.1
    """Of the layers before the last."""
    discrimination: float = 0.01
    settled: float = 0.04
    moved: float = 0.03
    most_epochs: int = 100
    step_size: float = 0.01
    """Of the network's training."""
    batch_size: int = 256
    """Real images per class, or all where a class has fewer."""
    watched_images: int = 128
    """Real images per class that an accuracy is measured on."""

    name: ClassVar[str] = "cafe"
    needs_source: ClassVar[bool] = False
    augments: ClassVar[bool] = False
    """Whether it looks at augmented images."""

    def __post_init__(self) -> None:
        self.require_at_least(
            early_weight=0, discrimination=0, settled=0, moved=0, most_epochs=1, batch_size=1, watched_images=1
        )
        positive_step_size(self.step_size)

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape]:
        return {NETWORK: (problem.energy.model.size,), ACCURACIES: (None,)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        problem = problem if self.augments else problem.without_augmentation()
        network = network_of(problem, self.name)
        if NETWORK in points.state:
            theta, watched = self._trained(network, points, problem, randomness), points.state[ACCURACIES].cpu()
        else:
            theta, watched = fresh_parameters(network, 1, points.x, randomness)[0], torch.zeros(0)

        def both(at: Points, given: Mapping[str, Tensor], randomness: Randomness) -> Mapping[str, Tensor]:
            value = self.misalignment(given["theta"], at, problem, randomness)
            return {"value": value, "accuracy": self._accuracy(network, given["theta"], problem, randomness)}

        value, found = repeated_loss((self, network), both, points, {"theta": theta}, problem, randomness)
        watched = torch.cat([watched, found["accuracy"].cpu()[None]])[-WATCHED:]
        state = {} if self._lie_within(watched, self.settled) else {NETWORK: theta, ACCURACIES: watched}
        return Loss(value, {"accuracy": found["accuracy"]}, state)

    def misalignment(self, theta: Tensor, points: Points, problem: Problem, randomness: Randomness) -> Tensor:
        """L at the network ``theta`` (size,), differentiable in the points."""
        network = network_of(problem, self.name)
        batch = problem.real_class_batch(self.title, self.batch_size, randomness)
        augment = problem.transformation(1, randomness)
        wanted, embeddings = _real_features(network, theta, batch, augment, problem)
        classes = len(batch.counts)
        members = membership(points, network.spec.classes)[:, :classes]
        both = (members.sum(0) > 0) & (F.one_hot(batch.y, classes).sum(0) > 0)
        total = points.x.new_zeros(())
        layers = problem.backend.layer_features(network, theta, augment(points.x))
        weights = [self.early_weight] * (len(layers) - 2) + [1.0, 2.0]
        for weight, features, means in zip(weights[-len(layers) :], layers, wanted, strict=True):
            gaps = class_means(features, members) - means
            total = total + weight * (both[:, None] * gaps).square().sum()
        scores = (embeddings @ class_means(layers[-1], members).T).masked_fill(~both, -torch.inf)
        losses = F.cross_entropy(scores, batch.y, reduction="none").where(both[batch.y], 0.0)
        return total + self.discrimination * losses.sum()

    def _trained(self, network: Network, points: Points, problem: Problem, randomness: Randomness) -> Tensor:
        """The network of the state, trained for as many epochs as its accuracies ask for."""
        theta, recent, left = points.state[NETWORK], torch.zeros(0), self.most_epochs
        while left > 0:
            epochs = 1 if len(recent) else min(WATCHED, left)
            theta, accuracies = self._epochs(epochs, network, theta, points, problem, randomness)
            recent, left = torch.cat([recent, accuracies.cpu()])[-WATCHED:], left - epochs
            if len(recent) == WATCHED and not self._lie_within(recent, self.moved):
                break
        return theta

    def _epochs(
        self, epochs: int, network: Network, theta: Tensor, points: Points, problem: Problem, randomness: Randomness
    ) -> tuple[Tensor, Tensor]:
        """The network after so many epochs, and its accuracy after each."""

        def train(given: Mapping[str, Tensor], randomness: Randomness) -> Mapping[str, Tensor]:
            own, theta, accuracies = Points(given["x"], given["y"], given["weights"]), given["theta"], []
            for _ in range(epochs):
                theta = trained(network, theta, own, 1, self.step_size, problem.augmentation, problem, randomness)
                accuracies.append(self._accuracy(network, theta, problem, randomness))
            return {"theta": theta, "accuracies": torch.stack(accuracies)}

        tensors = {"theta": theta, "x": points.x, "y": points.y, "weights": points.weights}
        found = problem.repeated((self, "training", network, epochs), train, tensors, randomness)
        return found["theta"], found["accuracies"]

    def _accuracy(self, network: Network, theta: Tensor, problem: Problem, randomness: Randomness) -> Tensor:
        """The share of fresh real images that the network names rightly."""
        x, y, _ = problem.real_class_batch(self.title, self.watched_images, randomness)
        return (problem.backend.probabilities(network, theta[None], x)[0].argmax(-1) == y).float().mean()

    def _lie_within(self, accuracies: Tensor, distance: float) -> bool:
        """Whether there are enough of them, the last ones, and none is further from another."""
        return len(accuracies) >= WATCHED and bool(accuracies.max() - accuracies.min() < distance)


def _real_features(
    network: Network, theta: Tensor, batch: ClassBatch, augment: Transformation, problem: Problem
) -> tuple[list[Tensor], Tensor]:
    """The class means of every layer (classes, size), zero for a class without images, and all embeddings."""
    means: list[list[Tensor]] = []
    embeddings: list[Tensor] = []
    with torch.no_grad():
        for images in augment(batch.x).split(batch.counts):
            layers = problem.backend.layer_features(network, theta, images)
            means.append([features.sum(0) / max(1, len(images)) for features in layers])
            embeddings.append(layers[-1])
    return [torch.stack(each) for each in zip(*means, strict=True)], torch.cat(embeddings)
