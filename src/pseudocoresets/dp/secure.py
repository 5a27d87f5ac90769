"""Random numbers that nobody can repeat: noise that could be computed again would protect nothing.

Everything else in this library is drawn from seeds that files record. Noise, and which examples take part in a sum, are
drawn from the operating system's cryptographic source instead, and are forgotten.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

BYTES_OF_A_NUMBER = 8
UNIFORM_BITS = 53


class Entropy(Protocol):
    """Where secret random numbers come from; tests put a seeded one in its place."""

    def normal(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Independent N(0, 1), float64."""
        ...

    def uniform(self, count: int, device: torch.device) -> Tensor:
        """Independent and uniform over (0, 1), float64."""
        ...


ByteSource: TypeAlias = Callable[[int], bytes]


class SystemEntropy:
    """The operating system's cryptographic generator; normal numbers by Box and Muller, in float64.

    z_1 = r cos(2 pi v),  z_2 = r sin(2 pi v),  r = sqrt(-2 log u),  u and v uniform over (0, 1).
    """

    def __init__(self, source: ByteSource = os.urandom) -> None:
        self._source = source

    def normal(self, shape: Sequence[int], device: torch.device) -> Tensor:
        count = math.prod(shape)
        u, v = self.uniform(count + count % 2, device).chunk(2)
        radius, angle = (-2 * u.log()).sqrt(), 2 * math.pi * v
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].view(*shape)

    def uniform(self, count: int, device: torch.device) -> Tensor:
        """(k + 1/2) / 2^53 with k drawn from 0 .. 2^53 - 1."""
        raw = torch.frombuffer(bytearray(self._source(BYTES_OF_A_NUMBER * max(1, count))), dtype=torch.int64)
        whole = raw[:count].to(device) & (2**UNIFORM_BITS - 1)
        return ((whole.double() + 0.5) / 2**UNIFORM_BITS).clamp_max(1 - 2.0**-UNIFORM_BITS)
