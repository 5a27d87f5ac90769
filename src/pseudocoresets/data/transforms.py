"""From pixels to a model's input space and back: normalisation and ZCA whitening."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.errors import FileFormatError, InputError

ZCA_EPSILON = 0.1
FLOAT_PIXEL_SLACK = 1e-3


@dataclass(frozen=True)
class InputTransform:
    """Pixels ``p`` in [0, 1] to model inputs ``x`` and back.

    Normalisation, per channel:      z = (p - mean) / std
    ZCA whitening, if fitted:        x = W (z - z_mean),   W = V diag(1 / sqrt(lambda + eps)) V^T
    and its inverse:                 z = W^-1 x + z_mean,  W^-1 = V diag(sqrt(lambda + eps)) V^T

    where ``V diag(lambda) V^T`` is the covariance of the flattened training images. Fitted in float64.
    """

    mean: Tensor
    std: Tensor
    whitening: Tensor | None = None
    unwhitening: Tensor | None = None
    whitening_mean: Tensor | None = None

    @property
    def kind(self) -> str:
        return "normalise" if self.whitening is None else "zca"

    def __call__(self, images: Tensor) -> Tensor:
        """Model inputs (float32) for raw images: uint8 in 0..255, or floating point in 0..1."""
        return self._whiten(self._normalise(pixels_as_float(images)))

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Floating-point pixels for model inputs; values outside [0, 1] are kept."""
        inputs = inputs.float()
        if self.whitening is not None:
            assert self.unwhitening is not None and self.whitening_mean is not None
            flat = inputs.flatten(-3) @ self.unwhitening.to(inputs.device)
            inputs = (flat + self.whitening_mean.to(inputs.device)).unflatten(-1, inputs.shape[-3:])
        return inputs * _per_channel(self.std, inputs) + _per_channel(self.mean, inputs)

    def to(self, device: str | torch.device) -> InputTransform:
        return InputTransform(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """What a file must hold to rebuild this transform."""
        fields = {name: getattr(self, name) for name in InputTransform.__dataclass_fields__}
        return {name: tensor for name, tensor in fields.items() if tensor is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any]) -> InputTransform:
        try:
            return cls(**tensors)
        except TypeError:
            raise FileFormatError("The file's input transform is incomplete; it needs at least mean and std.") from None

    def _normalise(self, pixels: Tensor) -> Tensor:
        return (pixels - _per_channel(self.mean, pixels)) / _per_channel(self.std, pixels)

    def _whiten(self, normalised: Tensor) -> Tensor:
        if self.whitening is None:
            return normalised
        assert self.whitening_mean is not None
        device = normalised.device
        flat = normalised.flatten(-3) - self.whitening_mean.to(device)
        return (flat @ self.whitening.to(device)).unflatten(-1, normalised.shape[-3:])


def fit_normalisation(images: Tensor) -> InputTransform:
    """Per-channel mean and deviation of uint8 images, from their histograms (exact, and no float copy)."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.transpose(0, 1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * levels).sum()
        means.append(mean)
        stds.append((share * (levels - mean).square()).sum().sqrt())
    return InputTransform(torch.stack(means).float(), torch.stack(stds).clamp_min(1e-6).float())


def fit_zca(images: Tensor, epsilon: float = ZCA_EPSILON, chunk: int = 4096) -> InputTransform:
    """Normalisation followed by ZCA whitening of the flattened images."""
    normalise = fit_normalisation(images)
    size = images[0].numel()
    total = torch.zeros(size, dtype=torch.float64)
    products = torch.zeros(size, size, dtype=torch.float64)
    for part in images.split(chunk):
        flat = normalise(part).flatten(1).double()
        total += flat.sum(0)
        products += flat.T @ flat
    mean = total / len(images)
    covariance = (products - len(images) * torch.outer(mean, mean)) / max(1, len(images) - 1)
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
    scale = (eigenvalues.clamp_min(0) + epsilon).sqrt()
    return InputTransform(
        normalise.mean,
        normalise.std,
        whitening=(eigenvectors / scale @ eigenvectors.T).float(),
        unwhitening=(eigenvectors * scale @ eigenvectors.T).float(),
        whitening_mean=mean.float(),
    )


def pixels_as_float(images: Tensor) -> Tensor:
    """Raw images as floating-point pixels in [0, 1]."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise InputError(f"Images must be uint8 in 0..255 or floating point in 0..1; got {images.dtype}.")
    low, high = images.aminmax() if images.numel() else (torch.zeros(()), torch.zeros(()))
    if low < -FLOAT_PIXEL_SLACK or high > 1 + FLOAT_PIXEL_SLACK:
        raise InputError(
            f"Floating-point pixels must lie in 0..1; these go from {low.item():.3g} to {high.item():.3g}. "
            "Pass raw uint8 images, or divide by 255."
        )
    return images.float()


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device)[:, None, None]
