"""Kernels that are launched while the one before them still runs, on chips that can (compute capability 9).

Such a kernel waits at its beginning until all that came before it is done, so that it computes the same, but its
programs are on the chip by then. As each waits before it lets the next one begin, what a kernel does before its own
wait may read whatever its predecessor does not write.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton
    gdc_launch_dependents = gdc_wait = None

FIRST_CAPABILITY = (9, 0)


@triton.jit
def follow(early: tl.constexpr):
    """If the kernel was launched ``early``, wait for all that came before, and then let the next one begin."""
    if early:
        gdc_wait()
        gdc_launch_dependents()


def can_follow(device: torch.device) -> bool:
    """Whether kernels may be launched early on a device."""
    if gdc_wait is None or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY


def launch_options(early: bool) -> dict[str, bool]:
    """What tells Triton to launch a kernel early."""
    return {"launch_pdl": True} if early else {}
