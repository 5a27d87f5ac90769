"""Exact draws, for models whose posterior is a Gaussian in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from pseudocoresets.core.errors import InputError
from pseudocoresets.sources.gaussian_fit import GaussianFit


@dataclass(frozen=True)
class ExactDraws(GaussianFit):
    """Independent draws of the full posterior itself, of which the nearest Gaussian is all there is."""

    def __post_init__(self) -> None:
        if not self.model.has_gaussian_posterior:
            raise InputError(
                f"The posterior of {type(self.model).__name__} is not a Gaussian; use GaussianFit or a reference run."
            )
