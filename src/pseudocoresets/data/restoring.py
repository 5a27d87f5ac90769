"""Whitening that a small file leaves out: what it was, and how to fit it again and be certain that it is the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io.schema import Mismatch
from pseudocoresets.core.errors import DataUnavailableError, InputError
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.transforms import (
    WHITENING_CHUNK,
    ZCA_EPSILON,
    InputTransform,
    WhiteningOrigin,
    as_pixels,
    fingerprint,
    fit_normalisation,
    fit_zca,
)
from pseudocoresets.data.zca_cache import cache_folder, fit_zca_once, kept_zca

SINGLE = torch.finfo(torch.float32).eps
DOUBLE = torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False, kw_only=True)
class MissingWhitening(InputTransform):
    """A transform whose whitening matrices are not at hand, only the record of what they were fitted on.

    The probes are what the whitening makes of fixed values r in the place of an image (``probe_values``), there,
    W (r - z_mean), and back, W^-1 r + z_mean. Another fit that does the same to rounding is the same whitening.
    """

    origin: WhiteningOrigin
    source: str
    """Name of the data set whose training images it was fitted on."""
    probe_whitened: Tensor
    probe_unwhitened: Tensor

    @classmethod
    def from_record(cls, tensors: Mapping[str, Tensor], origin: WhiteningOrigin, source: str) -> MissingWhitening:
        """The transform whose ``tensors()`` and origin a compact file holds."""
        given: Mapping[str, Any] = tensors
        try:
            return cls(**given, origin=origin, source=source)
        except TypeError:
            raise Mismatch("its record of the whitening is incomplete") from None

    @property
    def kind(self) -> str:
        return "zca"

    def __call__(self, images: Tensor) -> Tensor:
        raise self._missing()

    def to_pixels(self, inputs: Tensor) -> Tensor:
        raise self._missing()

    def images_in(self, data: Dataset) -> Tensor | None:
        """The images that the whitening was fitted on: the training images of ``data``, or the recorded part."""
        for part in _parts(data, self.origin.held_out):
            if fingerprint(part.train.images, self.origin.epsilon, self.span) == self.origin.fingerprint:
                return part.train.images
        return None

    def fitted_again(self, data: Dataset) -> InputTransform:
        """The whole transform, fitted to the same images and held to the probes."""
        images = self.images_in(data)
        if images is None:
            raise InputError(
                f"This coreset's whitening was fitted on {self.origin} of '{self.source}', but '{data.name}' as given "
                f"has other training images ({len(data.train)} of them); give the data that the coreset was made from."
            )
        usual = self.origin.epsilon == ZCA_EPSILON
        fitted = fit_zca_once(images, span=self.span) if usual else fit_zca(images, self.origin.epsilon, span=self.span)
        if not self.is_met_by(fitted):
            raise InputError(
                f"Whitening fitted on {self.origin} of '{self.source}' differs from the one that this coreset was made "
                f"with by more than rounding; delete '{cache_folder()}' and try again, or ask for the full file."
            )
        return self._as_recorded(fitted)

    def found(self, data_dir: str | os.PathLike[str] | None) -> InputTransform:
        """The whole transform from the cache, else from the data set below ``data_dir``, else this one."""
        kept = kept_zca(self.origin)
        if kept is not None and self.is_met_by(kept):
            return self._as_recorded(kept)
        if data_dir is None:
            return self
        from pseudocoresets.data import load_dataset

        try:
            data = load_dataset(self.source, data_dir, download=False)
        except (DataUnavailableError, InputError):
            return self
        return self.fitted_again(data)

    def is_met_by(self, fitted: InputTransform) -> bool:
        """Whether ``fitted`` has this normalisation and does the same to the probes, to rounding.

        Fits on two machines differ in float64 by what summation and eigendecomposition err,

            |C - C'| <= (d + chunk) u |C|,   with d the values of an image, so
            |W - W'| <= |C - C'| / (2 eps^1.5)   and   |W^-1 - W'^-1| <= |C - C'| / (2 eps^0.5),

        the steepest slopes of these operator monotone functions; |C| is at most the squared Frobenius norm of W^-1.
        Rounding to float32 then moves each entry of W and z_mean, and the stored probe itself, by one unit.
        """
        if fitted.whitening is None or fitted.unwhitening is None or fitted.whitening_mean is None:
            return False
        if len(fitted.whitening) != len(self.probe_whitened):
            return False
        whitening, unwhitening = fitted.whitening.cpu().double(), fitted.unwhitening.cpu().double()
        mean, values = fitted.whitening_mean.cpu().double(), probe_values(len(whitening))
        there, back = _probe(fitted)
        covariance_error = (len(mean) + WHITENING_CHUNK) * DOUBLE * float(unwhitening.square().sum())
        slope_there, slope_back = 0.5 * self.origin.epsilon**-1.5, 0.5 * self.origin.epsilon**-0.5
        centred = values - mean
        rounding_there = 2 * SINGLE * (whitening.abs() @ (centred.abs() + mean.abs()))
        rounding_back = 2 * SINGLE * (unwhitening.abs() @ values.abs() + mean.abs())
        return (
            _within(self.mean, fitted.mean, SINGLE * fitted.mean.abs())
            and _within(self.std, fitted.std, SINGLE * fitted.std.abs())
            and _within(self.probe_whitened, there, rounding_there + slope_there * covariance_error * centred.norm())
            and _within(self.probe_unwhitened, back, rounding_back + slope_back * covariance_error * values.norm())
        )

    def _as_recorded(self, fitted: InputTransform) -> InputTransform:
        """With the file's own normalisation and origin, where this one lies."""
        return replace(fitted, mean=self.mean, std=self.std, origin=self.origin).to(self.mean.device)

    def _missing(self) -> InputError:
        return InputError(
            f"This coreset comes from a compact file, which leaves out the whitening (fitted on {self.origin} of "
            f"'{self.source}'). Give the folder that holds '{self.source}', with Coreset.load(path, data_dir=...) or "
            f"--data-dir, or the data set itself, with coreset.restored(data); "
            f"'bpc data fetch {self.source.partition('?')[0]}' brings it if it is of the catalogue."
        )


def without_matrices(transform: InputTransform, source: str) -> InputTransform:
    """What a compact file keeps of a transform: all of a normalisation, the record of a whitening."""
    if transform.kind != "zca" or isinstance(transform, MissingWhitening):
        return transform
    if transform.origin is None:
        raise InputError(
            "This coreset does not say which images its whitening was fitted on, so a compact file could not bring it "
            f"back; coreset.restored(data) finds out, with data the set '{source}' that it was made from."
        )
    there, back = _probe(transform)
    return MissingWhitening(
        transform.mean,
        transform.std,
        origin=transform.origin,
        span=transform.span,
        source=source,
        probe_whitened=there.float(),
        probe_unwhitened=back.float(),
    )


def with_origin(transform: InputTransform, data: Dataset) -> InputTransform:
    """The same whitening with its origin: all training images of ``data``, or those of its usual validation split.

    The mean image tells which of them; fitting again and comparing makes certain.
    """
    for part in _parts(data, ((0.1, 0),)):
        if not _has_mean(transform, part.train.images):
            continue
        fitted = part.fitted_by(partial(fit_zca_once, span=transform.span))
        candidate = without_matrices(fitted, data.name)
        if isinstance(candidate, MissingWhitening) and candidate.is_met_by(transform):
            return replace(transform, origin=fitted.origin)
    raise InputError(
        f"The whitening of this coreset was fitted neither on all training images of '{data.name}' as given nor on "
        f"those of holding_out(); give the data that it was made from, or keep the full file."
    )


def probe_values(size: int) -> Tensor:
    """Fixed values in [-2, 2), the same on every machine: bytes of SHAKE-256, scaled."""
    stream = bytearray(hashlib.shake_256(b"pseudocoresets whitening probe").digest(size))
    return (torch.frombuffer(stream, dtype=torch.uint8).double() - 128) / 64


def _probe(transform: InputTransform) -> tuple[Tensor, Tensor]:
    """W (r - z_mean) and W^-1 r + z_mean in float64, r the probe's values."""
    assert transform.whitening is not None
    assert transform.unwhitening is not None
    assert transform.whitening_mean is not None
    mean, values = transform.whitening_mean.cpu().double(), probe_values(len(transform.whitening))
    there = transform.whitening.cpu().double() @ (values - mean)
    return there, transform.unwhitening.cpu().double() @ values + mean


def _parts(data: Dataset, held_out: tuple[tuple[float, int], ...]) -> Iterator[Dataset]:
    """``data`` as it is, and without what was held out."""
    yield data
    for fraction, seed in held_out:
        data = data.holding_out(fraction, seed)
    if held_out:
        yield data


def _has_mean(transform: InputTransform, images: Tensor) -> bool:
    """Whether the mean image of a whitening is that of ``images``, to the rounding of pixels, mean and deviation."""
    assert transform.whitening_mean is not None
    normalisation = fit_normalisation(images, transform.span)
    parts = torch.split(images, WHITENING_CHUNK)
    pixels = torch.stack([as_pixels(part, transform.span, torch.float64).sum(0) for part in parts]).sum(0) / len(images)
    mean, std = (values.double()[:, None, None] for values in (normalisation.mean, normalisation.std))
    average = ((pixels - mean) / std).flatten()
    bound = 2 * SINGLE * (average.abs() + (mean / std).expand(images.shape[1:]).flatten())
    return _within(transform.whitening_mean, average, bound)


def _within(recorded: Tensor, found: Tensor, bound: Tensor) -> bool:
    if recorded.shape != found.shape:
        return False
    return bool(((recorded.cpu().double() - found.cpu().double()).abs() <= bound.cpu()).all())
