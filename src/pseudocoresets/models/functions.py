"""A model of the user's own, given as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.models.expectation import SmoothModel, UncheckedModel


@dataclass(frozen=True)
class FunctionModel(UncheckedModel):
    """A model of the user's own, as two PyTorch functions.

    ``log_likelihood_function(theta, x, y)`` gives log p(y_i | x_i, theta) for every datum, (m,), and
    ``log_prior_function(theta)`` the log-prior, (), both for one parameter vector theta (size,); populations are
    handled here.
    """

    log_likelihood_function: Callable[[Tensor, Tensor, Tensor], Tensor]
    log_prior_function: Callable[[Tensor], Tensor]
    size: int
    pseudo_target: TargetRange = "fixed"
    classes: int = 0
    """How many classes the targets name; needed where ``pseudo_target`` is ``"simplex"``."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"A model needs at least one parameter; got size {self.size}.")

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if theta.ndim == 1:
            values = self.log_likelihood_function(theta, x, y)
            if values.shape != (len(x),):
                raise InputError(
                    f"log_likelihood must give one value per datum, shape ({len(x)},); got {tuple(values.shape)}."
                )
            return values
        return torch.func.vmap(lambda one: self.log_likelihood(one, x, y))(theta)

    def log_prior(self, theta: Tensor) -> Tensor:
        if theta.ndim == 1:
            value = self.log_prior_function(theta)
            if value.ndim:
                raise InputError(f"log_prior must give one number; got shape {tuple(value.shape)}.")
            return value
        return torch.func.vmap(self.log_prior)(theta)


def as_smooth(model: Model) -> SmoothModel:
    """The model with averages over Gaussians: its own, or those of its two functions."""
    if isinstance(model, SmoothModel):
        return model
    if not isinstance(model, Model):
        raise InputError(
            "A model has size, log_likelihood(theta, x, y) and log_prior(theta); "
            f"{type(model).__name__} lacks one of them."
        )
    return FunctionModel(model.log_likelihood, model.log_prior, model.size)
