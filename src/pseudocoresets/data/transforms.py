"""From pixels to a model's input space and back: normalisation and ZCA whitening."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from pseudocoresets._io.schema import Mismatch
from pseudocoresets.core.errors import InputError

ZCA_EPSILON = 0.1
FLOAT_PIXEL_SLACK = 1e-3
LARGEST_LEVEL = {torch.uint8: 255, torch.uint16: 65535}
WHITENING_CHUNK = 4096
"""Images that are whitened at once: bounds the double-precision copy."""

_WHITENING = ("whitening", "unwhitening", "whitening_mean")
_FINGERPRINT_VERSION = 1


@dataclass(frozen=True)
class WhiteningOrigin:
    """Which images of a data set a whitening was fitted on, so that it can be fitted again."""

    fingerprint: str
    epsilon: float = ZCA_EPSILON
    held_out: tuple[tuple[float, int], ...] = ()
    """Fraction and seed of each ``Dataset.holding_out`` before the fit; none if all training images were used."""

    def __str__(self) -> str:
        parts = "".join(f".holding_out({fraction}, {seed})" for fraction, seed in self.held_out)
        return f"the training images of {parts[1:]}" if parts else "all training images"

    def as_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "epsilon": self.epsilon,
            "held_out": [list(part) for part in self.held_out],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WhiteningOrigin:
        held_out = tuple((float(fraction), int(seed)) for fraction, seed in document["held_out"])
        return cls(str(document["fingerprint"]), float(document["epsilon"]), held_out)


@dataclass(frozen=True, eq=False)
class InputTransform:
    """Pixels ``p`` to model inputs ``x`` and back; 0 is black and 1 is white.

    Pixels of raw images r:          p = (r - low) / (high - low)
    Normalisation, per channel:      z = (p - mean) / std
    ZCA whitening, if fitted:        x = W (z - z_mean),   W = V diag(1 / sqrt(lambda + eps)) V^T
    and its inverse:                 z = W^-1 x + z_mean,  W^-1 = V diag(sqrt(lambda + eps)) V^T

    where ``V diag(lambda) V^T`` is the covariance of the flattened training images. Fitted in float64, held in float32.
    The two matrix products are done in float64, so that neither TF32 nor autocast degrades the way back to pixels.
    """

    mean: Tensor
    std: Tensor
    whitening: Tensor | None = None
    unwhitening: Tensor | None = None
    whitening_mean: Tensor | None = None
    origin: WhiteningOrigin | None = None
    """What the whitening was fitted on, where that is known."""
    span: Tensor | None = None
    """``(low, high)``: the raw values that stand for black and white, as whole numbers for images of whole numbers and
    in floating point for others. Without it they are 0 and 255 in uint8, 0 and 65,535 in uint16, 0 and 1 else."""
    public: bool = False
    """Whether its numbers are constants that owe nothing to the data; not recorded in files."""

    @property
    def kind(self) -> str:
        return "normalise" if self.whitening is None else "zca"

    def __call__(self, images: Tensor) -> Tensor:
        """Model inputs (float32) for raw images of the data's own type, or for pixels: floating point in 0..1."""
        self._check_shape(images)
        if self.whitening is None or images.dim() == 3 or len(images) <= WHITENING_CHUNK:
            return self._whiten(self._normalise(as_pixels(images, self.span)))
        return torch.cat([self(part) for part in torch.split(images, WHITENING_CHUNK)])

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Floating-point pixels for model inputs; values outside [0, 1] are kept."""
        self._check_shape(inputs)
        inputs = inputs.float()
        if self.unwhitening is not None and self.whitening_mean is not None:
            flat = _product(inputs.flatten(-3), self.unwhitening)
            inputs = (flat + self.whitening_mean.to(flat)).float().reshape(inputs.shape)
        return inputs * _per_channel(self.std, inputs) + _per_channel(self.mean, inputs)

    def to(self, device: str | torch.device) -> Self:
        moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """What a file must hold to rebuild this transform."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], origin: WhiteningOrigin | None = None) -> InputTransform:
        """The transform whose ``tensors()`` these are."""
        whitening = [name for name in _WHITENING if name in tensors]
        if whitening and len(whitening) < len(_WHITENING):
            raise Mismatch(f"its input transform is incomplete: whitening needs {', '.join(_WHITENING)}")
        given: Mapping[str, Any] = tensors
        try:
            return cls(**given, origin=origin)
        except TypeError:
            wanted = "it needs mean and std, and nothing of a compact file"
            raise Mismatch(f"its input transform is incomplete: {wanted}") from None

    def _normalise(self, pixels: Tensor) -> Tensor:
        return (pixels - _per_channel(self.mean, pixels)) / _per_channel(self.std, pixels)

    def _whiten(self, normalised: Tensor) -> Tensor:
        if self.whitening is None or self.whitening_mean is None:
            return normalised
        centred = normalised.flatten(-3) - self.whitening_mean.to(normalised.device)
        return _product(centred, self.whitening).float().reshape(normalised.shape)

    def _check_shape(self, images: Tensor) -> None:
        channels = len(self.mean)
        size = None if self.whitening is None else len(self.whitening)
        if images.dim() < 3 or images.shape[-3] != channels or size not in (None, images.shape[-3:].numel()):
            values = "" if size is None else f" of {size} values"
            raise InputError(
                f"This transform is for images{values} with {channels} channels, (..., {channels}, height, width); "
                f"got {tuple(images.shape)}."
            )


def fit_normalisation(images: Tensor, span: Tensor | None = None) -> InputTransform:
    """Per-channel mean and deviation of raw images, in float64 and without a copy of them all.

    A channel that never varies is only centred.
    """
    moments = _byte_moments(images) if images.dtype == torch.uint8 and span is None else _pixel_moments(images, span)
    mean, std = moments
    return InputTransform(mean.float(), torch.where(std > 1e-6, std, 1.0).float(), span=span)


def public_normalisation(channels: int, span: Tensor | None = None) -> InputTransform:
    """Constants for data that must not be asked: x = (p - 0.5) / 0.25 in colour, and x = p / 0.5 in grey.

    Augmentation fills what it uncovers with x = 0: mid-grey in colour, and black in grey, where scans and digits lie.
    """
    if span is not None and span.is_floating_point() and span.tolist() != [0.0, 1.0]:
        raise InputError(
            "The range of these floating-point images was found in the data; give pixels from 0 to 1, whose range is "
            "public."
        )
    mean, deviation = (0.0, 0.5) if channels == 1 else (0.5, 0.25)
    return InputTransform(torch.full((channels,), mean), torch.full((channels,), deviation), span=span, public=True)


def _byte_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel of uint8 images, from their histograms."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.float64)
        for part in torch.split(images[:, channel], WHITENING_CHUNK):
            counts += torch.bincount(part.flatten(), minlength=256).cpu()
        share = counts / counts.sum()
        mean = (share * levels).sum()
        means.append(mean)
        stds.append((share * (levels - mean).square()).sum().sqrt())
    return torch.stack(means), torch.stack(stds)


def _pixel_moments(images: Tensor, span: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel, summed in two passes over parts of the images."""
    count = images[:, 0].numel()
    parts = [(start, start + WHITENING_CHUNK) for start in range(0, len(images), WHITENING_CHUNK)]

    def mean_of(function: Callable[[Tensor], Tensor]) -> Tensor:
        sums = (function(as_pixels(images[i:j], span, torch.float64)).sum((0, 2, 3)) for i, j in parts)
        return torch.stack([each.cpu() for each in sums]).sum(0) / count

    mean = mean_of(lambda pixels: pixels)
    return mean, mean_of(lambda pixels: (pixels - _per_channel(mean, pixels)).square()).sqrt()


def fit_zca(
    images: Tensor,
    epsilon: float = ZCA_EPSILON,
    chunk: int = WHITENING_CHUNK,
    device: str | torch.device | None = None,
    span: Tensor | None = None,
) -> InputTransform:
    """Normalisation followed by ZCA whitening of the flattened images.

    The covariance is summed in float64 over chunks, on ``device`` (that of the images unless given); the result
    lies on the CPU.
    """
    normalisation = fit_normalisation(images, span)
    device = torch.device(device) if device is not None else images.device
    mean, covariance = _moments(images, normalisation, chunk, device)
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
    scale = (eigenvalues.clamp_min(0) + epsilon).sqrt()
    return replace(
        normalisation,
        whitening=(eigenvectors / scale @ eigenvectors.T).float().cpu(),
        unwhitening=(eigenvectors * scale @ eigenvectors.T).float().cpu(),
        whitening_mean=mean.float().cpu(),
        origin=WhiteningOrigin(fingerprint(images, epsilon, span), epsilon),
    )


def fingerprint(images: Tensor, epsilon: float = ZCA_EPSILON, span: Tensor | None = None) -> str:
    """Tells apart what whitening is fitted on: the bytes of raw images, their type, shape and span, and epsilon."""
    plain = images.dtype == torch.uint8 and span is None
    kind = "" if plain else f" {images.dtype} {None if span is None else span.tolist()}"
    digest = hashlib.blake2b(f"{_FINGERPRINT_VERSION} {epsilon} {tuple(images.shape)}{kind}".encode(), digest_size=16)
    for part in torch.split(images, WHITENING_CHUNK):
        digest.update(part.contiguous().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _moments(images: Tensor, normalisation: InputTransform, chunk: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the normalised, flattened images, in float64."""
    mean, std = (values.double().to(device)[:, None, None] for values in (normalisation.mean, normalisation.std))
    size = images[0].numel()
    total = torch.zeros(size, dtype=torch.float64, device=device)
    products = torch.zeros(size, size, dtype=torch.float64, device=device)
    for part in torch.split(images, chunk):
        pixels = as_pixels(part.to(device), normalisation.span, torch.float64)
        flat = ((pixels - mean) / std).flatten(1)
        total += flat.sum(0)
        products.addmm_(flat.T, flat)
    average = total / len(images)
    covariance = (products - len(images) * torch.outer(average, average)) / max(1, len(images) - 1)
    return average, covariance


def as_pixels(images: Tensor, span: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Raw images as floating-point pixels, see ``InputTransform.span``."""
    if span is not None and images.is_floating_point() == span.is_floating_point():
        precise = torch.promote_types(images.dtype, dtype)  # a small range far from zero is not rounded away
        low, high = span.to(images.device, precise)
        return ((images.to(precise) - low) / (high - low)).to(dtype)
    if images.dtype in LARGEST_LEVEL:
        return images.to(dtype) / LARGEST_LEVEL[images.dtype]
    if not images.is_floating_point():
        raise InputError(
            f"Images must be uint8, uint16 or floating point in 0..1; got {images.dtype}. "
            "Dataset.from_tensors(..., levels=...) takes other whole numbers."
        )
    low, high = images.aminmax() if images.numel() else (torch.zeros(()), torch.zeros(()))
    if not (low >= -FLOAT_PIXEL_SLACK and high <= 1 + FLOAT_PIXEL_SLACK):
        raise InputError(
            f"Floating-point pixels must lie in 0..1; these go from {low.item():.3g} to {high.item():.3g}. "
            "Pass raw uint8 images, or divide by 255."
        )
    return images.to(dtype)


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """``rows @ matrix`` in float64, where the device has it."""
    dtype = torch.float32 if rows.device.type == "mps" else torch.float64
    return rows.to(dtype) @ matrix.to(rows.device, dtype)


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device)[:, None, None]
