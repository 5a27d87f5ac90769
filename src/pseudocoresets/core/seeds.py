"""Random numbers that depend on what they are for, and not on what was drawn before them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, for example ``derive_seed(0, "construct", iteration)``.

    Every use has a stream of its own, so that a resumed run draws the same numbers as an undisturbed one and adding
    a draw in one place changes nothing elsewhere.
    """
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(seed: int, *purpose: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator on ``device``, seeded for one purpose."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *purpose))


@dataclass(frozen=True)
class Randomness:
    """Two streams: ``host`` for decisions the program branches on, ``device`` for tensors.

    Keeping them apart means that no decision ever waits for the device.
    """

    host: random.Random
    device: torch.Generator

    @classmethod
    def for_purpose(cls, seed: int, *purpose: str | int, device: str | torch.device = "cpu") -> Randomness:
        randomness = cls(random.Random(), torch.Generator(device=device))
        randomness.reseed(seed, *purpose)
        return randomness

    def tensor(self, draw: Callable[[random.Random], Tensor]) -> Tensor:
        """What ``draw`` makes of the host's stream; work that is repeated as it was captured gets it anew each time.

        Its shape, and the work done with it, must not depend on what is drawn.
        """
        return draw(self.host)

    def numbered(
        self, draw: Callable[[random.Random], Sequence[int]], seed: int, *purpose: str | int
    ) -> tuple[Tensor, list[Randomness]]:
        """The numbers that ``draw`` makes of the host's stream, on the device, and a pair of streams for each of them.

        The streams of number k are those of ``for_purpose(seed, *purpose, k)``. There must always be as many numbers.
        """
        numbers, device = draw(self.host), self.device.device
        streams = [Randomness.for_purpose(seed, *purpose, number, device=device) for number in numbers]
        return torch.tensor(numbers, device=device), streams

    def reseed(self, seed: int, *purpose: str | int) -> None:
        """Start both streams anew for another purpose, keeping the generator objects."""
        self.host.seed(derive_seed(seed, *purpose, "host"))
        self.device.manual_seed(derive_seed(seed, *purpose, "device"))
