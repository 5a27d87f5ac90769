"""Capturing CUDA graphs, and what happens where CUDA, cuDNN or Triton do not allow it: the plain path goes on."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
LIBRARIES = ("torch", "triton")
"""Packages whose own lines say little about what could not be captured."""
FIRST = -1
"""The priority of what the next kernel waits for: streams beside it, as for gradients of weights, have 0."""

logger = logging.getLogger(__name__)


class Capturing:
    """Builds what is captured; None where something other than memory is in its way, with one warning for a cause."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, build: Callable[[], T]) -> T | None:
        try:
            return build()
        except Exception as error:  # the plain path computes the same
            first = _first(error)
            if isinstance(first, torch.OutOfMemoryError):
                raise first from None
            cause = str(first).split("\n")[0] + _line_of(first)
            if cause not in self._known:
                self._known.add(cause)
                logger.warning("The fast path could not be captured (%s); the plain path is used.", cause)
            return None


def captured(work: Callable[[], None], warm_up: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """``work`` as a graph; ``warm_up`` runs before it, beside the current stream: Triton compiles and cuDNN chooses."""
    with cudnn_benchmark():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            warm_up()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with capture_into(graph):
            work()
    return graph


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN try its algorithms for the shapes within the block."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def capture_into(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """What the block launches becomes ``graph``; what it launches on other streams gives way to the rest.

    Python collects no garbage meanwhile: another graph that is freed during a capture invalidates it. A capture that
    fails as it ends would leave its stream the current one.
    """
    before, stream = torch.cuda.current_stream(), _first_stream(torch.cuda.current_device())
    try:
        with without_collection(), torch.cuda.graph(graph, stream=stream):
            yield
    finally:
        torch.cuda.set_stream(before)


@cache
def _first_stream(device: int) -> torch.cuda.Stream:
    """One for all captures on a device, because libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device, priority=FIRST)


@contextmanager
def without_collection() -> Iterator[None]:
    """Objects that hold each other are not freed within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _first(error: BaseException) -> BaseException:
    """What went wrong first: the end of a capture that was broken off is an error of its own."""
    return error if error.__context__ is None else _first(error.__context__)


def _line_of(error: BaseException) -> str:
    """The last line, ours or the user's, that led to it; a mode that every function goes through says nothing."""
    frames = (frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "__torch_function__")
    own = [frame for frame in frames if not set(LIBRARIES).intersection(Path(frame.filename).parts)]
    return f", at {Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}" if own else ""
