"""Whitening is fitted once for the same images: the result is kept in the user's cache folder."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pseudocoresets._io.files import TensorFile, naming, write_tensors
from pseudocoresets._io.schema import Array
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.settings import POSITIVE
from pseudocoresets.data.transforms import (
    ZCA_EPSILON,
    InputTransform,
    WhiteningOrigin,
    fingerprint,
    fit_normalisation,
    fit_zca,
)

SMALLEST_KEPT = 1024
"""Values an image must have for its whitening to be worth keeping; smaller fits take well under a second."""

CACHED_ARRAYS = {
    "mean": Array(["(channels,) float32"]),
    "std": Array(["(channels,) float32"], within=POSITIVE),
    "span": Array(["(2,) int64 or float32 or float64"], optional=True),
    "whitening": Array(["(d, d) float32"]),
    "unwhitening": Array(["(d, d) float32"]),
    "whitening_mean": Array(["(d,) float32"]),
}
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class FitOnDemand:
    """Fits normalisation, or ZCA whitening, to training images, and says beforehand which of them."""

    whiten: bool = False
    device: str | torch.device | None = None
    """Where whitening is fitted."""
    span: Tensor | None = None

    @property
    def kind(self) -> str:
        return "zca" if self.whiten else "normalise"

    def __call__(self, images: Tensor) -> InputTransform:
        if self.whiten:
            return fit_zca_once(images, self.device, self.span)
        return fit_normalisation(images, self.span)


def fit_zca_once(
    images: Tensor, device: str | torch.device | None = None, span: Tensor | None = None
) -> InputTransform:
    """``fit_zca``, or its result on the same images from an earlier time.

    Without a ``device`` it is fitted on the GPU where there is one: a fraction of a second instead of a minute or more.
    """
    if device is None and torch.cuda.is_available():
        device = "cuda"
    if images[0].numel() < SMALLEST_KEPT:
        return fit_zca(images, device=device, span=span)
    origin = WhiteningOrigin(fingerprint(images, span=span))
    kept = kept_zca(origin)
    if kept is not None:
        return kept
    transform = fit_zca(images, device=device, span=span)
    with suppress(InputError, OSError):  # a cache that cannot be written only costs the next fit
        write_tensors(_path(origin), transform.tensors(), {"format": _FORMAT, "epsilon": ZCA_EPSILON})
    return transform


def is_kept(transform: InputTransform) -> bool:
    """Whether it is a whitening that the cache keeps under what it was fitted on."""
    whitening = None if transform.origin is None else transform.whitening
    return whitening is not None and len(whitening) >= SMALLEST_KEPT


def kept_zca(origin: WhiteningOrigin) -> InputTransform | None:
    """The whitening that an earlier fit on the same images left in the cache."""
    path = _path(origin)
    try:
        tensors = TensorFile.open(path).tensors(CACHED_ARRAYS)
        with naming(path):
            return InputTransform.from_tensors(tensors, origin)
    except (FileFormatError, InputError):
        return None


def cache_folder() -> Path:
    """``pseudocoresets`` below ``XDG_CACHE_HOME``, which is ``~/.cache`` unless set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pseudocoresets"


def _path(origin: WhiteningOrigin) -> Path:
    return cache_folder() / f"zca-{origin.fingerprint}.safetensors"
