"""What a backend computes: energies, predictions, gradients, chains, and descents with their adjoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import Energy, Model, Target
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.data.augmentation import AnyAugmentation, Transformation
from pseudocoresets.gradients.descent import Trajectories
from pseudocoresets.kernels import AnyKernel, Schedule
from pseudocoresets.models.networks import Network

T = TypeVar("T")
IMAGES_PER_BLOCK = 5000
"""Images that a chain augments at once."""


class MeanEnergies(NamedTuple):
    """- mean_i log p(y_i | x_i, theta) at each of several parameter vectors, and its gradients there; no graph."""

    energies: Tensor
    gradients: Tensor


@dataclass(frozen=True)
class ChainPlan:
    """``steps`` transitions of a kernel on the posterior of weighted points.

    Args:
        kernel: One transition.
        energy: The model, the size of the full data and the temperature.
        points: The weighted data; no gradient is taken in them.
        steps: Number of transitions.
        augmentation: Drawn afresh at each step; once for a kernel that accepts or rejects, whose potential must not
            change.
        noisy: False sets the temperature to zero: Langevin is then gradient descent.
        schedule: Scales the step size of each step.
        keep_at: After which steps, counted from 1, a position is kept; only after the last where there are none.
    """

    kernel: AnyKernel
    energy: Energy
    points: Points
    steps: int
    augmentation: AnyAugmentation | None = None
    noisy: bool = True
    schedule: Schedule | None = None
    keep_at: Collection[int] = ()

    @property
    def kept_steps(self) -> Collection[int]:
        return self.keep_at or (self.steps,)


class ChainRunner(Protocol):
    """Several chains of descent or sampling on images, in blocks of ``steps`` steps."""

    chains: int
    steps: int

    def set_position(self, theta: Tensor) -> None:
        """Where the chains are, (chains, size); velocities start at zero."""
        ...

    def position(self) -> Tensor:
        """A copy of where the chains are."""
        ...

    def set_rates(self, rates: Rates | Sequence[Rates], decay: float = 0.0) -> None:
        """How a block's steps go, all alike or each its own; the prior adds ``decay`` theta to the gradient."""
        ...

    def set_labels(self, y: Tensor, factors: Tensor) -> None:
        """Labels and factors w_i / n, broadcast to (sources, steps, images)."""
        ...

    def run_block(self, x: Tensor, augmentation: AnyAugmentation | None, randomness: Randomness) -> None:
        """Take ``steps`` steps on images (sources, steps, images, channels, height, width)."""
        ...


class Backend(Trajectories, Protocol):
    """The plain one defines what each job computes; another may compute it faster, in another precision."""

    captures: bool
    """Whether ``repeated`` captures work, so that it pays to keep what it gives."""

    def energies(self, energy: Energy, thetas: Tensor, x: Tensor, points: Points) -> Tensor:
        """E(x, theta_j) / n for each parameter set, with the labels and weights of ``points``; differentiable in x."""
        ...

    def probabilities(self, network: Network, thetas: Tensor, inputs: Tensor) -> Tensor:
        """Class probabilities (len(thetas), n, classes) for inputs in model space."""
        ...

    def mean_energies(self, model: Model, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """- mean_i log p(y_i | x_i, theta_j) for each parameter set, without a graph."""
        ...

    def mean_energies_and_gradients(self, model: Model, thetas: Tensor, x: Tensor, y: Tensor) -> MeanEnergies:
        """The same with its gradients in the parameters."""
        ...

    def clipped_gradients(
        self, network: Network, theta: Tensor, x: Tensor, y: Tensor, norm: float, admitted: Tensor | None = None
    ) -> Tensor:
        """sum_i g_i min(1, norm / |g_i|) over examples that are ``admitted``, g_i = grad -log p(y_i | x_i, theta).

        In float64, (size,); g_i is computed from example i alone, and |g_i| is the norm of the very numbers that are
        added, whatever rounding they have. What it keeps for one number of examples serves the next batch of as many.
        """
        ...

    def features(self, network: Network, theta: Tensor, x: Tensor) -> Tensor:
        """The embeddings (batch, features) of images under one parameter set, differentiable in the images."""
        ...

    def layer_features(self, network: Network, theta: Tensor, x: Tensor) -> list[Tensor]:
        """What each activation function gives (batch, size), and last the embeddings; differentiable in the images."""
        ...

    def augmentation(self, given: AnyAugmentation | None, shape: Sequence[int]) -> AnyAugmentation | None:
        """The fastest form of an augmentation for images of this shape: the same distribution of transformations."""
        ...

    def repeated(self, work: Callable[[Randomness], T]) -> Callable[[Randomness], T]:
        """``work``, to be called again and again; it may be captured, and then gives the same tensors each time.

        What it does must not depend on what it drew, or on any tensor's values, but for the values that it computes.
        Its tensors, and the generator of the randomness, are the same objects in every call.
        """
        ...

    def chains(
        self,
        network: Network,
        device: torch.device,
        count: int,
        images: int,
        steps: int,
        soft: bool,
        shared: bool,
        images_per_block: int = IMAGES_PER_BLOCK,
    ) -> ChainRunner:
        """A runner whose blocks divide ``steps``.

        Args:
            network: Whose parameters the chains move.
            device: Where they are.
            count: Number of chains.
            images: Images in a step of one chain.
            steps: A number of steps after which the caller wants to see the chains.
            soft: Whether labels are distributions.
            shared: Whether all chains see the same images (a coreset), or each its own (experts).
            images_per_block: The most images to augment at once.
        """
        ...

    def target(self, energy: Energy, points: Points, augment: Transformation | None = None) -> Target:
        """The posterior of weighted points for a kernel that is run elsewhere; see ``Energy.target``."""
        ...

    def run_chain(
        self,
        plan: ChainPlan,
        start: Tensor,
        randomness: Randomness,
        on_steps: Callable[[int], object] | None = None,
    ) -> Tensor:
        """Positions (kept, chains, size) of chains from ``start`` (chains, size), without a graph.

        ``on_steps`` is called with the number of steps taken since its last call.
        """
        ...
