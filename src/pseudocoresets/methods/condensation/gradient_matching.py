"""Gradient matching: DC (Zhao, Mopuri and Bilen 2021).

The gradient of a network on synthetic images of a class is to point where that on real images of it does. With theta
the network's parameters, B_c a batch of real images of class c and S_c the synthetic ones,

    g_c  = grad_theta 1 / |B_c| sum_{i in B_c} CE(f(x_i; theta), c)
    q_c  = grad_theta sum_{j in S_c} a_j CE(f(s_j; theta), c) / sum_j a_j
    L    = sum_c sum_l sum_u [ 1 - < q_c[l, u], g_c[l, u] > / (|q_c[l, u]| |g_c[l, u]| + 1e-6) ],

where [l, u] are the incoming weights of unit u of layer l; biases and the parameters of norms are left out. a_j are the
points' weights; with soft labels a_jc = w_j y_jc, and every image is one of every class. dL/ds is exact: the derivative
of q_c in the images is a second derivative of the cross-entropy.

Every ``matches`` iterations a network is drawn from its initialisation. Between two matches it is trained by SGD of
rate ``step_size`` for ``epochs`` passes over the synthetic images as they are then. The network and the number of its
matches are carried from iteration to iteration, and in the checkpoint. Images are seen as they are, without
augmentation; ``dsa`` is the same with it.

Defaults are those of the authors' code for ten images per class: SGD of rate 0.1 and momentum 0.5 on the images, which
start from noise; 1,000 networks with ten matches each, which are 10,000 iterations here; 256 real images per class.
With m images per class there are m matches to a network, and 1 (m = 1), 50 (10), 25 (20), 20 (30), 15 (40) or 10 (50)
epochs between them; the preset ``paper`` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import Model
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.gradients.learned import with_gradient
from pseudocoresets.kernels.kernel import positive_step_size
from pseudocoresets.methods.condensation.classes import COUNTS, by_class, class_counts
from pseudocoresets.methods.condensation.training import trained
from pseudocoresets.methods.estimator import network_of, require_at_least, shared_transformation
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.networks import Network

NETWORK, MATCHED = "network", "matched"
"""The names under which the network's parameters, and the number of its matches, are carried."""
SMALLEST_PRODUCT = 1e-6
"""Added to the product of two norms, so that gradients next to zero have no direction."""


@dataclass(frozen=True)
class GradientMatching(GradientMethod):
    """``matches`` with each network, and ``epochs`` of training between them."""

    matches: int = 10
    epochs: int = 50
    step_size: float = 0.01
    """Of the network's training."""
    batch_size: int = 256
    """Real images per class, or all where a class has fewer."""

    name: ClassVar[str] = "gm"
    needs_source: ClassVar[bool] = False
    augments: ClassVar[bool] = False
    """Whether it looks at augmented images."""

    def __post_init__(self) -> None:
        require_at_least(
            f"The method '{self.name}'",
            matches=(self.matches, 1),
            epochs=(self.epochs, 1),
            batch_size=(self.batch_size, 1),
        )
        positive_step_size(self.step_size)

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        problem = problem if self.augments else problem.without_augmentation()
        network = network_of(problem, self.name)
        matched = int(points.state.get(MATCHED, torch.tensor(0))) % self.matches
        theta = self._network(network, matched, points, problem, randomness)
        distance, counts = self.distance(theta, points, problem, randomness), class_counts(points, network.spec.classes)
        state = {NETWORK: theta, MATCHED: torch.tensor(matched + 1), COUNTS: counts}
        return Loss(distance, {"distance": distance.detach()}, state)

    def distance(self, theta: Tensor, points: Points, problem: Problem, randomness: Randomness) -> Tensor:
        """L at the network ``theta`` (size,), differentiable in the points."""
        network, model = network_of(problem, self.name), problem.energy.model
        batch = problem.real_class_batch(f"The method '{self.name}'", self.batch_size, randomness)
        augment = shared_transformation(problem, randomness)
        real, labels = augment(batch.x).split(batch.counts), batch.y.split(batch.counts)
        seen = replace(points, x=augment(points.x))
        total = points.x.new_zeros(())
        for c, own in by_class(seen, class_counts(points, network.spec.classes)).items():
            if c < len(real) and len(real[c]):
                wanted = problem.real_gradients(theta[None], real[c], labels[c]).gradients[0]
                tensors = {"x": own.x, "weights": own.weights, "y": own.y, "theta": theta, "wanted": wanted}
                value, gradients = problem.backend.value_and_gradients(
                    (GradientMatching, model), match(model, network), tensors
                )
                total = total + with_gradient(value, {name: tensors[name] for name in gradients}, gradients)
        return total

    def _network(
        self, network: Network, matched: int, points: Points, problem: Problem, randomness: Randomness
    ) -> Tensor:
        """A fresh one, or the one that was matched before, trained on the points as they are now."""
        if matched == 0:
            return network.draw(1, randomness.device)[0].to(points.x)
        theta, augmentation = points.state[NETWORK], problem.augmentation
        return trained(network, theta, points, self.epochs, self.step_size, augmentation, problem, randomness)


def match(model: Model, network: Network) -> Callable[..., Tensor]:
    """The distance of the gradient on one class's points from the one that is wanted, as a function of tensors."""

    def distance(x: Tensor, weights: Tensor, y: Tensor, theta: Tensor, wanted: Tensor) -> Tensor:
        place = theta.detach().requires_grad_()
        energy = -(weights * model.log_likelihood(place, x, y)).sum()
        (found,) = torch.autograd.grad(energy, place, create_graph=True)
        return layer_distance(network, found, wanted)

    return distance


def layer_distance(
    network: Network, found: Tensor, wanted: Tensor, smallest_product: float = SMALLEST_PRODUCT
) -> Tensor:
    """sum over layers and units of one minus the cosine of the angle between their weights' gradients (size,)."""
    pairs = zip(network.unflatten(found).values(), network.unflatten(wanted).values(), strict=True)
    units = [(q.flatten(1), g.flatten(1)) for q, g in pairs if q.dim() > 1]
    cosines = [(q * g).sum(1) / (q.norm(dim=1) * g.norm(dim=1) + smallest_product) for q, g in units]
    return (1 - torch.cat(cosines)).sum()
