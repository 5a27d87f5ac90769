"""What a chip is like, for the choice of tiles."""

from __future__ import annotations

from functools import lru_cache

import torch

MEASURED_ON = 132
"""Multiprocessors of the H200, on which the bounds between tiles were measured."""
LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes of a program on the smallest chips that run code for sm_80; an A100 has 163 KiB, an H200 227."""


def spread_over_chip(values: int, device: torch.device) -> int:
    """As many values as would fill the H200 as full as ``values`` fill this device."""
    return values * MEASURED_ON // multiprocessors(device)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Those of a CUDA device; of any other, where kernels are interpreted or only compiled, the H200's."""
    if device.type != "cuda":
        return MEASURED_ON
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have, all of a multiprocessor's but one KiB; of what is no CUDA device, the least."""
    if device.type != "cuda":
        return LEAST_SHARED_MEMORY
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor) - 1024
