"""Whitening is fitted once for the same images: the result is kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from pseudocoresets.data.transforms import ZCA_EPSILON, InputTransform, fit_zca
from pseudocoresets.errors import FileFormatError, InputError
from pseudocoresets.files import read_tensors, write_tensors

SMALLEST_KEPT = 1024
"""Values an image must have for its whitening to be worth keeping; smaller fits take well under a second."""

_FORMAT = 1


def fit_zca_once(images: Tensor, device: str | torch.device | None = None) -> InputTransform:
    """``fit_zca``, or its result on the same images from an earlier time.

    Without a ``device`` it is fitted on the GPU where there is one: a fraction of a second instead of a minute or more.
    """
    if device is None and torch.cuda.is_available():
        device = "cuda"
    if images[0].numel() < SMALLEST_KEPT:
        return fit_zca(images, device=device)
    path = cache_folder() / f"zca-{_fingerprint(images)}.safetensors"
    try:
        return InputTransform.from_tensors(read_tensors(path)[0])
    except FileFormatError:
        transform = fit_zca(images, device=device)
    with suppress(InputError, OSError):  # a cache that cannot be written only costs the next fit
        write_tensors(path, transform.tensors(), {"format": _FORMAT, "epsilon": ZCA_EPSILON})
    return transform


def cache_folder() -> Path:
    """``pseudocoresets`` below ``XDG_CACHE_HOME``, which is ``~/.cache`` unless set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pseudocoresets"


def _fingerprint(images: Tensor) -> str:
    digest = hashlib.blake2b(f"{_FORMAT} {ZCA_EPSILON} {tuple(images.shape)}".encode(), digest_size=16)
    for part in torch.split(images, 4096):
        digest.update(part.contiguous().cpu().numpy().data)
    return digest.hexdigest()
