"""One forward for one parameter set or a population of them.

A parameter set is a flat vector ``theta`` of shape ``(size,)``; a population has a leading chain dimension ``(chains, size)``.
Kernels, experts and files then need not know what the parameters are parameters of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pseudocoresets.errors import InputError
from pseudocoresets.seeds import derive_seed

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class NetworkSpec:
    """All that is needed to build a network again: what experts and coresets record of it."""

    name: str
    shape: Shape
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "classes": self.classes,
            "options": dict(self.options),
        }


class Network:
    """A classifier whose parameters are passed in, as one vector or as a population of vectors."""

    def __init__(self, build: Callable[[], nn.Module], spec: NetworkSpec) -> None:
        self.spec = spec
        self._build = build
        with torch.random.fork_rng(devices=[]):
            self._module = build()
        refuse_batch_statistics(self._module, spec.name)
        self._names = [name for name, _ in self._module.named_parameters()]
        self._shapes = [tuple(parameter.shape) for parameter in self._module.parameters()]
        self._sizes = [math.prod(shape) for shape in self._shapes]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(self._sizes)

    def initialise(self, seed: int, chains: int | None = None, device: str | torch.device = "cpu") -> Tensor:
        """Parameters as the module's own initialisation draws them: ``(size,)``, or ``(chains, size)``."""
        if chains is None:
            return self._initialise_one(seed).to(device)
        return torch.stack([self._initialise_one(derive_seed(seed, i)) for i in range(chains)]).to(device)

    def logits(self, theta: Tensor, images: Tensor) -> Tensor:
        """Class scores.

        theta (size,), images (batch, ...)                                   -> (batch, classes)
        theta (chains, size), images (batch, ...) or (chains, batch, ...)    -> (chains, batch, classes)
        """
        if theta.dim() == 1:
            return self._forward(theta, images)
        if theta.shape[0] == 1:
            own = images[0] if images.dim() == 5 else images
            return self._forward(theta[0], own)[None]
        return self._forward_population(theta, images)

    def module(self, theta: Tensor) -> nn.Module:
        """An ordinary module with these parameters, for use outside this library."""
        with torch.random.fork_rng(devices=[]):
            module = self._build()
        module.load_state_dict(self.unflatten(theta.detach().cpu().clone()), strict=False)
        return module

    def flatten(self, module: nn.Module) -> Tensor:
        """The parameter vector of an ordinary module of this architecture."""
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Views of one parameter vector under the module's own parameter names."""
        parts = theta.split(self._sizes)
        return {
            name: part.view(shape) for name, shape, part in zip(self._names, self._shapes, parts, strict=True)
        }

    def _forward(self, theta: Tensor, images: Tensor) -> Tensor:
        module = self._module_on(theta.device)
        logits: Tensor = functional_call(module, self.unflatten(theta), (images,))
        return logits

    def _forward_population(self, theta: Tensor, images: Tensor) -> Tensor:
        images_dim = 0 if images.dim() == 5 else None
        logits: Tensor = vmap(self._forward, in_dims=(0, images_dim))(theta, images)
        return logits

    def _module_on(self, device: torch.device) -> nn.Module:
        if next(self._module.parameters()).device != device:
            self._module.to(device)
        return self._module

    def _initialise_one(self, seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.flatten(self._build())


def refuse_batch_statistics(module: nn.Module, name: str) -> None:
    """A posterior over parameters needs p(y | x, theta) to depend on x alone, not on the rest of the batch."""
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        raise InputError(
            f"The network '{name}' normalises with batch statistics, so its likelihood of one image depends on the others and "
            "has no posterior to sample; use instance, group or layer normalisation instead."
        )
