"""Where images lie while they are used: on the device, or, if they are too many for it, on the host in a mapped file.

What is asked for of images on the host is gathered and uploaded; of a sequence of requests, the next is gathered by a
thread while the device works on the one before.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.devices import host_memory
from pseudocoresets.core.errors import InputError

SHARE_OF_MEMORY = 0.25
"""The part of a device's memory, or of the host's, that the images of a data set may take."""
AHEAD = 2
"""Requests that are gathered before they are asked for."""


class DeviceImages:
    """Images (n, channels, height, width) by index, as model inputs on a device.

    Args:
        images: As they are, on the host or on the device.
        transform: From images to inputs, on the device.
        device: Where inputs are wanted.
        ready: Transform all of them now, where the device has room for the inputs.
    """

    def __init__(
        self, images: Tensor, transform: Callable[[Tensor], Tensor], device: torch.device, ready: bool = False
    ) -> None:
        room = SHARE_OF_MEMORY * memory_of(device)
        self._device, self._transform = device, transform
        self._is_ready = ready and images.numel() * torch.float32.itemsize <= room
        self.on_host = device.type != images.device.type and not self._is_ready and images.nbytes > room
        """Whether what is asked for comes from the host."""
        self._images = images if self.on_host else images.to(device)
        if self._is_ready:
            self._images = transform(self._images)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Inputs (*index.shape, channels, height, width)."""
        if self._is_ready:
            return self._images[index]
        if self.on_host:
            return self._uploaded(self._gathered(index.cpu()), index.shape)
        return self._inputs(self._images[index.flatten()], index.shape)

    def in_turn(self, indices: Sequence[Tensor]) -> Iterator[Tensor]:
        """The same for one index after another, gathered ahead where they come from the host."""
        if not self.on_host:
            yield from (self[index] for index in indices)
            return
        with ThreadPoolExecutor(1) as ahead:
            waiting: deque[tuple[Future[Tensor], torch.Size]] = deque()
            for index in [index.cpu() for index in indices]:
                waiting.append((ahead.submit(self._gathered, index), index.shape))
                if len(waiting) > AHEAD:
                    gathered, shape = waiting.popleft()
                    yield self._uploaded(gathered.result(), shape)
            for gathered, shape in waiting:
                yield self._uploaded(gathered.result(), shape)

    def _gathered(self, index: Tensor) -> Tensor:
        """The images themselves, in memory from which the device can copy by itself."""
        like = self._images
        lot = torch.empty((index.numel(), *like.shape[1:]), dtype=like.dtype, pin_memory=self._device.type == "cuda")
        return torch.index_select(like, 0, index.flatten(), out=lot)

    def _uploaded(self, lot: Tensor, shape: torch.Size) -> Tensor:
        return self._inputs(lot.to(self._device, non_blocking=True), shape)

    def _inputs(self, lot: Tensor, shape: torch.Size) -> Tensor:
        return self._transform(lot).view(*shape, *lot.shape[1:])


def memory_of(device: torch.device) -> int:
    """Bytes of memory that a device has, used or not."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory()


def bytes_for(shape: Sequence[int]) -> Tensor:
    """uint8 to be written: in memory, or, where that would take too much of it, in a mapped file."""
    if math.prod(shape) <= SHARE_OF_MEMORY * host_memory():
        return torch.empty(*shape, dtype=torch.uint8)
    return mapped_bytes(shape)


def mapped_bytes(shape: Sequence[int]) -> Tensor:
    """uint8 in a temporary file without a name: read when used, let go when memory is short, gone with the tensor."""
    size = math.prod(shape)
    with tempfile.TemporaryFile(prefix="pseudocoresets-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise InputError(
                f"{size / 2**30:,.1f} GiB of images are too much for this machine's memory, and "
                f"'{tempfile.gettempdir()}' has no room for them ({error.strerror}); set TMPDIR to a folder that has, "
                "or scale the images down."
            ) from None
        return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=tuple(shape)))
