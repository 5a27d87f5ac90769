"""Gradient matching: DC (Zhao, Mopuri and Bilen 2021).

The gradient of a network on synthetic images of a class is to point where that on real images of it does. With theta
the network's parameters, B_c a batch of real images of class c and S_c the synthetic ones,

    g_c  = grad_theta 1 / |B_c| sum_{i in B_c} CE(f(x_i; theta), c)
    q_c  = grad_theta sum_{j in S_c} a_j CE(f(s_j; theta), c) / sum_j a_j
    L    = sum_c sum_l sum_u [ 1 - < q_c[l, u], g_c[l, u] > / (|q_c[l, u]| |g_c[l, u]| + 1e-6) ],

where [l, u] are the incoming weights of unit u of layer l; biases and the parameters of norms are left out. a_j are the
points' weights; with soft labels a_jc = w_j y_jc, and every image is one of every class. The derivative of q_c in the
images is a second derivative of the cross-entropy E_c: with v_c = dL/dq_c,

    exact          dL/ds = grad_s < v_c, grad_theta E_c(theta, s) >
    differences    dL/ds = [grad_s E_c(theta + h v_c, s) - grad_s E_c(theta - h v_c, s)] / (2 h),   h |v_c| = r |theta|,

r being the ``radius``. The published gradient, and the default, is exact. For a network of ReLUs the other is another
direction, one that sees units switch, and for moves of a useful size L falls about as far along it or further
(docs/research-notes.md).

Every ``matches`` iterations a network is drawn from its initialisation. Between two matches it is trained by SGD of
rate ``step_size`` for ``epochs`` passes over the synthetic images as they are then. The network and the number of its
matches are kept from iteration to iteration, and in the checkpoint. Images are seen as they are, without
augmentation; ``dsa`` is the same with it.

Defaults are those of the authors' code for ten images per class: SGD of rate 0.1 and momentum 0.5 on the images, which
start from noise; 1,000 networks with ten matches each, which are 10,000 iterations here; 256 real images per class.
With m images per class there are m matches to a network, and 1 (m = 1), 50 (10), 25 (20), 20 (30), 15 (40) or 10 (50)
epochs between them; the preset ``paper`` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.gradients import Differences, Exact, GradientEstimator, build_gradient
from pseudocoresets.gradients.estimators import spacing
from pseudocoresets.kernels.kernel import positive_step_size
from pseudocoresets.methods.condensation.classes import COUNTS, by_class, class_counts, class_gradients, weight_rows
from pseudocoresets.methods.condensation.training import trained
from pseudocoresets.methods.estimator import (
    fresh_parameters,
    network_of,
    repeated_loss,
)
from pseudocoresets.methods.method import GradientMethod, Loss, StateShape
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.networks import Network

NETWORK, MATCHED = "network", "matched"
"""Names in the state: the network's parameters, and the number of its matches."""
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
    gradient: str | GradientEstimator = "exact"
    """``exact``, or ``differences`` with their radius, such as ``differences:radius=0.1``."""

    name: ClassVar[str] = "gm"
    needs_source: ClassVar[bool] = False
    augments: ClassVar[bool] = False
    """Whether it looks at augmented images."""

    def __post_init__(self) -> None:
        self.require_at_least(matches=1, epochs=1, batch_size=1)
        positive_step_size(self.step_size)
        if not isinstance(build_gradient(self.gradient), Exact | Differences):
            raise InputError(f"The gradient of '{self.name}' is exact or differences; got {self.gradient}.")

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape]:
        network = network_of(problem, self.name)
        return {NETWORK: (network.size,), MATCHED: (), COUNTS: (network.spec.classes,)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        problem = problem if self.augments else problem.without_augmentation()
        network = network_of(problem, self.name)
        counts = class_counts(points, network.spec.classes)
        points = replace(points, state={**points.state, COUNTS: counts})
        matched = int(points.state.get(MATCHED, torch.tensor(0))) % self.matches
        theta = self._network(network, matched, points, problem, randomness)

        def value(at: Points, given: Mapping[str, Tensor], randomness: Randomness) -> Mapping[str, Tensor]:
            return {"value": self.distance(given["theta"], replace(at, state=own), problem, randomness)}

        own, key = {COUNTS: counts}, (self, network, tuple(counts.tolist()))
        distance, _ = repeated_loss(key, value, points, {"theta": theta}, problem, randomness)
        state = {NETWORK: theta, MATCHED: torch.tensor(matched + 1), COUNTS: counts}
        return Loss(distance, {"distance": distance.detach()}, state)

    def distance(self, theta: Tensor, points: Points, problem: Problem, randomness: Randomness) -> Tensor:
        """L at the network ``theta`` (size,), differentiable in the points."""
        network = network_of(problem, self.name)
        batch = problem.real_class_batch(self.title, self.batch_size, randomness)
        augment = problem.transformation(1, randomness)
        real, labels = augment(batch.x).split(batch.counts), batch.y.split(batch.counts)
        seen = replace(points, x=augment(points.x))
        members = by_class(seen, class_counts(points, network.spec.classes))
        both = {c: own for c, own in members.items() if c < len(real) and len(real[c])}
        if not both:
            return points.x.sum() * 0
        wanted = [problem.real_gradients(theta[None], real[c], labels[c]).gradients[0] for c in both]
        estimator = build_gradient(self.gradient)
        if not isinstance(estimator, Differences):
            found = class_gradients(network, theta, list(both.values()))
            return cosine_distance(found, weight_rows(network, torch.stack(wanted)))
        total = points.x.new_zeros(())
        for own, gradient in zip(both.values(), wanted, strict=True):
            total = total + self._by_differences(estimator, theta, own, gradient, problem, network)
        return total

    def _by_differences(
        self, estimator: Differences, theta: Tensor, own: Points, wanted: Tensor, problem: Problem, network: Network
    ) -> Tensor:
        """One class's part of L, with the gradient that differences find."""
        place, fixed = theta.detach().requires_grad_(), own.detached()
        with torch.enable_grad():
            energy = -(fixed.weights * problem.energy.model.log_likelihood(place, fixed.x, fixed.y)).sum()
            found = torch.autograd.grad(energy, place)[0].requires_grad_()
            value = layer_distance(network, found, wanted)
        pull = torch.autograd.grad(value, found)[0]
        h = spacing(estimator.radius * theta.norm()[None, None], pull[None])
        away = h * pull
        shares = replace(own, weights=own.weights * problem.energy.data_size)
        above, below = problem.energies(torch.cat([theta + away, theta - away]), own.x, shares)
        along = (above - below) / (2 * h.squeeze())
        return value.detach() + along - along.detach()

    def _network(
        self, network: Network, matched: int, points: Points, problem: Problem, randomness: Randomness
    ) -> Tensor:
        """A fresh one, or the one that was matched before, trained on the points as they are now."""
        if matched == 0:
            return fresh_parameters(network, 1, points.x, randomness)[0]

        def train(given: Mapping[str, Tensor], randomness: Randomness) -> Mapping[str, Tensor]:
            own, augmentation = Points(given["x"], given["y"], given["weights"]), problem.augmentation
            theta = trained(
                network, given["theta"], own, self.epochs, self.step_size, augmentation, problem, randomness
            )
            return {"theta": theta}

        tensors = {"theta": points.state[NETWORK], "x": points.x, "y": points.y, "weights": points.weights}
        return problem.repeated((self, "training", network), train, tensors, randomness)["theta"]


def layer_distance(
    network: Network, found: Tensor, wanted: Tensor, smallest_product: float = SMALLEST_PRODUCT
) -> Tensor:
    """The distance of gradients (..., size)."""
    return cosine_distance(weight_rows(network, found), weight_rows(network, wanted), smallest_product)


def cosine_distance(
    found: Sequence[Tensor], wanted: Sequence[Tensor], smallest_product: float = SMALLEST_PRODUCT
) -> Tensor:
    """sum over layers and units of one minus the cosine of the angle between their rows (..., units, inputs)."""
    total = found[0].new_zeros(())
    for q, g in zip(found, wanted, strict=True):
        cosines = (q * g).sum(-1) / (q.norm(dim=-1) * g.norm(dim=-1) + smallest_product)
        total = total + (1 - cosines).sum()
    return total
