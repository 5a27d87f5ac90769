"""Fresh parameters of a network, many at once and on any device, where their distribution is known."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

UNIFORM = (nn.Conv2d, nn.Linear)
"""Layers whose parameters are drawn uniformly from -b to b, b = 1 / sqrt(inputs of a unit)."""
CONSTANT = (nn.GroupNorm, nn.LayerNorm)
"""Layers that start from the same values each time."""


@dataclass(frozen=True)
class UniformRanges:
    """Parameters that are independent and uniform, from centre - width to centre + width, each (size,)."""

    centre: Tensor
    width: Tensor

    def to(self, device: torch.device) -> UniformRanges:
        return UniformRanges(self.centre.to(device), self.width.to(device))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` parameter vectors (count, size)."""
        uniform = torch.rand(count, len(self.centre), generator=generator, device=generator.device)
        return torch.addcmul(self.centre, self.width, 2 * uniform - 1)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What ``build`` gives under a seed of its own; the program's random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def uniform_ranges(build: Callable[[], nn.Module]) -> UniformRanges | None:
    """The ranges of the modules that ``build`` gives, or None.

    They are known where resetting the layers of a module, all of known kinds, in their order gives exactly what
    ``build`` gives under the same seed: then nothing but the layers' own initialisation took part.
    """
    module = seeded(build, 0)
    again = copy.deepcopy(module)
    layers = [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]
    if not all(type(layer) in (*UNIFORM, *CONSTANT) for layer in layers):
        return None
    values = dict(seeded(lambda: _reset(again), 0).named_parameters())
    centre: dict[str, Tensor] = {}
    width: dict[str, Tensor] = {}
    for prefix, layer in module.named_modules():
        for name, value in layer.named_parameters(prefix, recurse=False):
            if not torch.equal(values[name], value):
                return None
            bound = 1 / math.sqrt(math.prod(layer.weight.shape[1:])) if isinstance(layer, UNIFORM) else 0.0
            centre[name] = torch.zeros_like(value) if bound else value
            width[name] = torch.full_like(value, bound)
    names = [name for name, _ in module.named_parameters()]
    return UniformRanges(*(torch.cat([each[name].detach().flatten() for name in names]) for each in (centre, width)))


def _reset(module: nn.Module) -> nn.Module:
    """The same module with the initial values of its layers drawn anew, in their order."""
    for layer in module.modules():
        if isinstance(layer, (*UNIFORM, *CONSTANT)):
            layer.reset_parameters()
    return module
