"""Samples of a posterior: parameters, the model they belong to, and how they were drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io import display
from pseudocoresets.backends import Backend, PlainBackend
from pseudocoresets.core.devices import device_memory_error, threads_for
from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.extras import installed_by
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import AnyRows, as_rows
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.inference.corrected import CorrectedSamples, corrected
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network

PREDICTED_AT_ONCE = 1000


@dataclass(frozen=True, repr=False)
class PosteriorSamples:
    """Parameters of one model in several chains, how they were drawn, and how to predict with them."""

    parameters: Tensor
    """(chains, samples, size)"""
    model: Model
    protocol: str
    """Where the chains began: ``cold``, ``point`` or ``expert`` for a network, ``model`` for any other model."""
    settings: SamplingSettings
    seconds: float = math.nan
    r_hat: float = math.nan
    """The largest over the parameters; not for networks, whose parameters can be permuted."""
    ess: float = math.nan
    """The smallest effective sample size over the parameters."""
    divergences: int = 0
    exact_gaussian: Gaussian | None = None
    """The posterior itself where it is a Gaussian."""
    transform: InputTransform | None = None
    """From raw images to the network's inputs."""
    backend: Backend = field(default_factory=PlainBackend, repr=False, compare=False)
    """How predictions are computed."""
    progress: Progress = field(default_factory=Silent, repr=False, compare=False)
    """Who is told how far predictions are."""
    coreset: Coreset | None = field(default=None, repr=False, compare=False)
    """Whose posterior was sampled."""
    again: Callable[[Coreset], PosteriorSamples] | None = field(default=None, repr=False, compare=False)
    """Samples the posterior of another coreset in the same way, as a control does."""

    def __repr__(self) -> str:
        chains, samples, size = self.parameters.shape
        return f"PosteriorSamples({chains} chains of {samples} samples, {size:,} parameters, start '{self.protocol}')"

    def _repr_html_(self) -> str:
        known = {"R-hat": self.r_hat, "effective sample size": self.ess, "seconds": self.seconds}
        numbers = [(name, f"{value:.4g}") for name, value in known.items() if math.isfinite(value)]
        settings = [(name.replace("_", " "), str(value)) for name, value in self.settings.as_json().items()]
        return display.shown(repr(self), display.facts([*numbers, *settings]))

    @property
    def draws(self) -> Tensor:
        """(chains * samples, size), all chains together."""
        return self.parameters.flatten(0, 1)

    def to_arviz(self, names: Sequence[str] | None = None) -> Any:
        """The draws as ArviZ InferenceData (with its ``to_netcdf``), as ``theta`` or by the parameters' names."""
        with installed_by("arviz", "InferenceData need ArviZ"):
            import arviz
        values = self.parameters.detach().cpu().numpy()
        if names is None:
            return arviz.from_dict(posterior={"theta": values})
        if len(names) != values.shape[-1]:
            raise InputError(f"The model has {values.shape[-1]} parameters; got {len(names)} names.")
        return arviz.from_dict(posterior={name: values[..., i] for i, name in enumerate(names)})

    def to_zarr(self, path: str | os.PathLike[str], names: Sequence[str] | None = None) -> None:
        """The same as a Zarr store at ``path``, which ``xarray.open_datatree`` reads and ``arviz.from_datatree`` takes.

        ArviZ's own ``to_zarr`` refuses the current Zarr, which xarray writes.
        """
        with installed_by("arviz", "Zarr stores need Zarr"):
            import zarr  # noqa: F401
        self.to_arviz(names).to_datatree().to_zarr(os.fspath(path), consolidated=False)

    @property
    def exact(self) -> bool:
        """Whether :attr:`gaussian` is the posterior itself."""
        return self.exact_gaussian is not None

    @property
    def gaussian(self) -> Gaussian:
        """The posterior where it is a Gaussian, else one with the draws' mean and covariance."""
        return self.exact_gaussian or Gaussian.fit(self.draws)

    @property
    def seconds_per_draw(self) -> float:
        """Of one step of one chain."""
        return self.seconds / (self.settings.chains * self.settings.steps)

    @property
    def network(self) -> Network:
        if not isinstance(self.model, Classifier):
            raise InputError(f"These samples are of {type(self.model).__name__}, which is no network.")
        return self.model.network

    def corrected(self, data: AnyRows) -> CorrectedSamples:
        """These draws with weights from the full ``data``, for expectations that are right in the limit; one pass.

        Example:
            samples.corrected(rows).expectation(lambda theta: theta)
        """
        if self.coreset is None or self.coreset.holds_images:
            raise InputError("Only samples of a coreset of rows can be corrected; draw them with sample_posterior.")
        return corrected(self.draws, self.model, self.coreset.points, as_rows(data))

    def predict(self, images: Tensor) -> Tensor:
        """Class probabilities (chains, samples, n, classes) for raw images (n, channels, height, width)."""
        if self.transform is None:
            raise InputError("These samples are not of a network for images; use their model's log_likelihood.")
        chains, samples, _ = self.parameters.shape
        flat = self.parameters.flatten(0, 1)
        transform = self.transform.to(flat.device)
        parts = []
        with torch.no_grad(), threads_for(images.shape[1:]), task(self.progress, "predicting", len(images)) as shown:
            for chunk in images.split(PREDICTED_AT_ONCE):
                parts.append(self._predict_batch(flat, chunk, transform))
                shown.advance(len(chunk))
        return torch.cat(parts, 1).unflatten(0, (chains, samples))

    def _predict_batch(self, parameters: Tensor, images: Tensor, transform: InputTransform) -> Tensor:
        """Probabilities (parameters, images, classes); a batch that the device cannot hold is halved."""
        try:
            return self.backend.probabilities(self.network, parameters, transform(images.to(parameters.device)))
        except torch.OutOfMemoryError as error:
            if len(images) == 1:
                raise device_memory_error("predicting one image", "use fewer chains or samples", error) from None
        halves = images.chunk(2)
        return torch.cat([self._predict_batch(parameters, half, transform) for half in halves], 1)
