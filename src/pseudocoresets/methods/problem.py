"""What a method may ask about the problem it solves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.backends import Backend, ChainPlan, MeanEnergies, PlainBackend
from pseudocoresets.core.energy import DifferentiatedModel, Energy, Model
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw, PosteriorSource
from pseudocoresets.data.augmentation import AnyAugmentation, Transformation
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.resident import DeviceImages
from pseudocoresets.gradients import Descent
from pseudocoresets.kernels import AnyKernel

Work: TypeAlias = Callable[[Mapping[str, Tensor], Randomness], Mapping[str, Tensor]]
"""From tensors by name, and what it draws, to others."""
BATCH_SIZE = 1000
SEED_BITS = 63


class ClassBatch(NamedTuple):
    """Real images class by class, their labels, and how many of each class there are."""

    x: Tensor
    y: Tensor
    counts: tuple[int, ...]


class RealData:
    """Images on the labels' device if it has room; what is asked for is mapped to the model's inputs.

    A GPU that has room for the inputs of all images gets them once, so that no batch is transformed again.
    """

    def __init__(self, images: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self._images = DeviceImages(images, transform, labels.device, ready=labels.device.type == "cuda")
        self._labels = labels
        self._first: dict[int, tuple[Tensor, tuple[int, ...]]] = {}

    @classmethod
    def of(cls, data: Dataset, device: torch.device) -> RealData:
        """The training images of a data set."""
        return cls(data.train.images, data.train.labels.to(device), data.transform.to(device))

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every point once, in order."""
        for index in torch.arange(len(self), device=self._labels.device).split(BATCH_SIZE):
            yield self.rows(index)

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        generator = self._generator(randomness)
        return self.rows(torch.randint(len(self), (size,), generator=generator, device=generator.device))

    def class_batch(self, size: int, randomness: Randomness) -> ClassBatch:
        """``size`` random images of each class, or all where a class has fewer, class by class."""
        generator = self._generator(randomness)
        keys = torch.rand(len(self), generator=generator, device=generator.device, dtype=torch.float64)
        first, counts = self._first_of_each_class(size)
        order = (self._labels.to(keys.device) + keys).argsort()
        return ClassBatch(*self.rows(order[first.to(keys.device)]), counts)

    def _generator(self, randomness: Randomness) -> torch.Generator:
        """Of the device that holds the images: what the host draws, it need not wait for."""
        if not self._images.on_host:
            return randomness.device
        return torch.Generator().manual_seed(randomness.host.getrandbits(SEED_BITS))

    def _first_of_each_class(self, size: int) -> tuple[Tensor, tuple[int, ...]]:
        """Positions, in data sorted by class, of the first ``size`` of each, and how many there are; found once."""
        if size not in self._first:
            sizes = self._labels.bincount().cpu()
            ends, counts = sizes.cumsum(0), sizes.clamp_max(size)
            places = [torch.arange(end - n, end - n + k) for n, end, k in zip(sizes, ends, counts, strict=True)]
            self._first[size] = torch.cat(places).to(self._labels.device), tuple(counts.tolist())
        return self._first[size]

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of chosen points."""
        return self._images[indices], self._labels[indices]


class Piece:
    """Work on tensors of always the same shapes, captured by a backend."""

    def __init__(self, work: Work, tensors: Mapping[str, Tensor], backend: Backend) -> None:
        self._inputs = inputs = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._run = backend.repeated(lambda randomness: work(inputs, randomness))

    def __call__(self, tensors: Mapping[str, Tensor], randomness: Randomness) -> dict[str, Tensor]:
        for name, tensor in self._inputs.items():
            tensor.copy_(tensors[name].detach())
        return {name: tensor.clone() for name, tensor in self._run(randomness).items()}


class Frame(NamedTuple):
    """The coordinates in which chains run: an energy as a function of them, and the way to them and back."""

    energy: Energy
    coordinates: Gaussian | None

    def enter(self, theta: Tensor) -> Tensor:
        """phi = L^-1 (theta - mean) for theta (chains, size)."""
        return theta if self.coordinates is None else self.coordinates.whitened(theta)

    def leave(self, phi: Tensor) -> Tensor:
        """theta = mean + L phi."""
        return phi if self.coordinates is None else self.coordinates.unwhitened(phi)


@dataclass(frozen=True)
class WhitenedModel:
    """A model as a function of phi, theta = mean + L phi, with its log-densities times ``scale``."""

    model: Model
    coordinates: Gaussian
    scale: float

    @property
    def size(self) -> int:
        return self.model.size

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.scale * self.model.log_likelihood(self.coordinates.unwhitened(theta), x, y)

    def log_prior(self, theta: Tensor) -> Tensor:
        return self.scale * self.model.log_prior(self.coordinates.unwhitened(theta))


@dataclass(frozen=True)
class WhitenedDifferentiatedModel(WhitenedModel):
    """The same for a model that knows its gradients: that in phi is L^T times that in theta."""

    model: DifferentiatedModel

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        value, gradient = self.model.log_likelihood_and_gradient(self.coordinates.unwhitened(theta), x, y, weights)
        return self.scale * value, self.scale * gradient @ self.coordinates.factor

    def log_prior_gradient(self, theta: Tensor) -> Tensor:
        return self.scale * self.model.log_prior_gradient(self.coordinates.unwhitened(theta)) @ self.coordinates.factor


@dataclass(frozen=True)
class Problem:
    """The energy, samples of the full posterior, the real data, augmentation, and how to compute.

    Args:
        energy: The model, the size of the full data and the temperature.
        source: Samples of the full posterior.
        real_data: The full data, brought to the device when first asked for.
        augmentation: Of the points, drawn at each step of a chain.
        backend: How to compute.
        coordinates: A Gaussian N(mean, L L^T) near the posterior of given points. Where there is one, kernels run and
            noise is drawn in the coordinates phi, theta = mean + L phi, on the potential U / T at temperature 1, so
            that step sizes have no units.
        pieces: What ``repeated`` has captured.
    """

    energy: Energy
    source: PosteriorSource | None = None
    real_data: Callable[[], FullData] | None = None
    augmentation: AnyAugmentation | None = None
    backend: Backend = field(default_factory=PlainBackend)
    coordinates: Callable[[Points], Gaussian] | None = None
    pieces: dict[Hashable, Piece] = field(default_factory=dict, repr=False, compare=False)

    def draw(
        self, method: str, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness
    ) -> Draw:
        """``count`` pairs of samples of the full posterior; ``method`` is who asks."""
        if self.source is None:
            raise InputError(f"{method} needs experts; train some first.")
        return self.source.draw(count, max_start_epoch, expert_epochs, randomness)

    def full_data(self, method: str = "This method") -> FullData:
        """The full data, on the device; ``method`` is who asks."""
        if self.real_data is None:
            raise InputError(f"{method} needs the real data; give it to the problem.")
        return self.real_data()

    def real_batch(self, method: str, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Inputs and labels of ``size`` random points of the full data."""
        return self.full_data(method).batch(size, randomness)

    def real_class_batch(self, method: str, size: int, randomness: Randomness) -> ClassBatch:
        """``size`` random images of each class, or all where a class has fewer."""
        real = self.full_data(method)
        if not isinstance(real, RealData):
            raise InputError(f"{method} needs real images in classes; give them to the problem.")
        return real.class_batch(size, randomness)

    def energies(self, thetas: Tensor, x: Tensor, points: Points) -> Tensor:
        """E(x, theta_j) / n for each parameter set, with the labels and weights of ``points``."""
        return self.backend.energies(self.energy, thetas, x, points)

    def real_energies(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """- mean_i log p(y_i | x_i, theta_j) for each parameter set, without a graph."""
        return self.backend.mean_energies(self.energy.model, thetas, x, y)

    def real_gradients(self, thetas: Tensor, x: Tensor, y: Tensor) -> MeanEnergies:
        """The same with its gradients in the parameters."""
        return self.backend.mean_energies_and_gradients(self.energy.model, thetas, x, y)

    def repeated(
        self, key: Hashable, work: Work, tensors: Mapping[str, Tensor], randomness: Randomness
    ) -> Mapping[str, Tensor]:
        """``work`` on ``tensors``, without a graph, as a piece that a device may capture and repeat for other tensors.

        ``key`` and the tensors' shapes stand for everything that the work depends on, but for the tensors' values and
        what it draws; it decides nothing on the host (see ``GradientMethod.repeats``). The randomness of a problem is
        one object.
        """
        if not self.backend.captures:
            return work(tensors, randomness)
        full = (key, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))
        if full not in self.pieces:
            self.pieces[full] = Piece(work, tensors, self.backend)
        return self.pieces[full](tensors, randomness)

    def run_chain(
        self,
        kernel: AnyKernel,
        start: Tensor,
        points: Points,
        steps: int,
        randomness: Randomness,
        noisy: bool = True,
    ) -> Tensor:
        """The end (chains, size) of ``steps`` kernel steps from ``start`` on the posterior of ``points``; no graph.

        Without noise, the temperature is zero: Langevin is then gradient descent.
        """
        frame = self.frame(points)
        plan = ChainPlan(kernel, frame.energy, points, steps, self.augmentation, noisy)
        return frame.leave(self.backend.run_chain(plan, frame.enter(start), randomness)[-1])

    def perturbed(self, theta: Tensor, sigma: float, points: Points, randomness: Randomness) -> Tensor:
        """theta + sigma xi, xi ~ N(0, I) (chains, size); theta + sigma L xi in coordinates whitened by L."""
        if sigma == 0:
            return theta
        noise = torch.randn(theta.shape, generator=randomness.device, device=theta.device, dtype=theta.dtype)
        if self.coordinates is not None:
            noise = noise @ self.coordinates(points.detached()).factor.T
        return theta + sigma * noise

    def frame(self, points: Points) -> Frame:
        """The coordinates for chains on the posterior of ``points``."""
        if self.coordinates is None:
            return Frame(self.energy, None)
        if not self.energy.temperature > 0:
            raise InputError("Whitened coordinates need a positive temperature.")
        near, size = self.coordinates(points.detached()), self.energy.data_size
        own, scale = self.energy.model, size / self.energy.temperature
        model = (
            WhitenedDifferentiatedModel(own, near, scale)
            if isinstance(own, DifferentiatedModel)
            else WhitenedModel(own, near, scale)
        )
        return Frame(Energy(model, size, temperature=float(size)), near)

    def transformation(self, count: int, randomness: Randomness) -> Transformation:
        """One drawn augmentation for ``count`` points, or the identity; ``count`` 1 is one for all, however many."""
        return _identity if self.augmentation is None else self.augmentation.draw(count, randomness)

    def without_augmentation(self) -> Problem:
        return replace(self, augmentation=None)

    def descent(
        self,
        points: Points,
        steps: int,
        points_per_step: int = 0,
        momentum: float = 0.0,
        speeds: Tensor | None = None,
    ) -> Descent:
        """The descent on ``points``, whose hyper-parameters hold its step size."""
        return Descent(self.energy, points, steps, points_per_step, momentum, self.augmentation, speeds=speeds)


def _identity(x: Tensor) -> Tensor:
    return x
