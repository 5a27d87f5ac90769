"""One iteration of a construction as one CUDA graph, which the host only launches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

import torch
from torch import Tensor

from pseudocoresets.backends.fused.capture import Capturing, capture_into, cudnn_benchmark
from pseudocoresets.core.seeds import Randomness

T = TypeVar("T")
WARM_UPS = 3
"""Runs before the capture, in which kernels are compiled, workspaces made and inner graphs captured."""


@dataclass(frozen=True)
class Slot:
    """A tensor that the host draws anew before each run."""

    draw: Callable[[random.Random], Tensor]
    tensor: Tensor
    streams: Sequence[Randomness] = ()
    """Those that ``draw`` starts anew."""

    def fill(self, host: random.Random) -> None:
        self.tensor.copy_(self.draw(host))

    def as_captured(self) -> tuple[Tensor, list[Randomness]]:
        return self.tensor, [Randomness(NoDecisions(), stream.device) for stream in self.streams]


@dataclass(frozen=True)
class RecordedRandomness(Randomness):
    """Keeps a slot for whatever is drawn on the host."""

    slots: list[Slot]

    def tensor(self, draw: Callable[[random.Random], Tensor]) -> Tensor:
        self.slots.append(Slot(draw, draw(self.host).clone()))
        return self.slots[-1].tensor

    def numbered(
        self, draw: Callable[[random.Random], Sequence[int]], seed: int, *purpose: str | int
    ) -> tuple[Tensor, list[Randomness]]:
        tensor, streams = super().numbered(draw, seed, *purpose)

        def again(host: random.Random) -> Tensor:
            numbers = draw(host)
            for number, stream in zip(numbers, streams, strict=True):
                stream.reseed(seed, *purpose, number)
            return torch.tensor(numbers)

        self.slots.append(Slot(again, tensor, streams))
        return tensor, streams


@dataclass(frozen=True)
class CapturedRandomness(Randomness):
    """Gives the slots in their order, and no other decision of the host."""

    slots: Iterator[Slot]

    def tensor(self, draw: Callable[[random.Random], Tensor]) -> Tensor:
        return next(self.slots).tensor

    def numbered(
        self, draw: Callable[[random.Random], Sequence[int]], seed: int, *purpose: str | int
    ) -> tuple[Tensor, list[Randomness]]:
        return next(self.slots).as_captured()


class HostDecision(Exception):
    """Something is decided on the host, which a graph would repeat for ever."""


class NoDecisions(random.Random):
    """A stream that nobody may draw from."""

    def random(self) -> NoReturn:
        raise HostDecision

    def getrandbits(self, k: int) -> NoReturn:
        self.random()


class CapturedIteration(Generic[T]):
    """``work`` of always the same kernels and tensors, but for what it draws; it gives the same tensors each time.

    Work that decides something on the host after all, or that cannot be captured, is done again and again.
    """

    def __init__(self, work: Callable[[Randomness], T], capturing: Capturing) -> None:
        self._work = work
        self._capturing = capturing
        self._runs = 0
        self._slots: list[Slot] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._capturable = True
        self._result: T

    def __call__(self, randomness: Randomness) -> T:
        self._runs += 1
        if self._runs <= WARM_UPS:
            return self._warm_up(randomness)
        if self._graph is None and self._capturable:
            self._graph = self._capturing(lambda: self._capture(randomness.device))
            self._capturable = self._graph is not None
        if self._graph is None:
            return self._work(randomness)
        for slot in self._slots:
            slot.fill(randomness.host)
        self._graph.replay()
        return self._result

    def _warm_up(self, randomness: Randomness) -> T:
        """An ordinary run; cuDNN tries its algorithms now, and the last one makes the slots."""
        if self._runs == WARM_UPS:
            randomness = RecordedRandomness(randomness.host, randomness.device, self._slots)
        with cudnn_benchmark():
            return self._work(randomness)

    def _capture(self, generator: torch.Generator) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        generators = [generator, *(stream.device for slot in self._slots for stream in slot.streams)]
        states = [each.clone_state() for each in generators]
        for each in generators:
            graph.register_generator_state(each)
        torch.cuda.synchronize()
        try:
            with cudnn_benchmark(), capture_into(graph):
                self._result = self._work(CapturedRandomness(NoDecisions(), generator, iter(self._slots)))
        except HostDecision:
            return None
        except Exception:
            for each, state in zip(generators, states, strict=True):  # theirs wait for the rest of the capture
                each.graphsafe_set_state(state)
            raise
        return graph
