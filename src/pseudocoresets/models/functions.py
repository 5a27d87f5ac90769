"""A model of the user's own, given as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution

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
        return _where_possible(partial(self._log_likelihood, x=x, y=y), theta)

    def log_prior(self, theta: Tensor) -> Tensor:
        return _where_possible(self._log_prior, theta)

    def _log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        values = self.log_likelihood_function(theta, x, y)
        if values.shape != (len(x),):
            raise InputError(
                f"log_likelihood must give one value per datum, shape ({len(x)},); got {tuple(values.shape)}."
            )
        return values

    def _log_prior(self, theta: Tensor) -> Tensor:
        value = self.log_prior_function(theta)
        if value.ndim:
            raise InputError(f"log_prior must give one number; got shape {tuple(value.shape)}.")
        return value


def _where_possible(function: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """The function at one theta or many; not finite where PyTorch's distributions refuse their parameters.

    A search or a sampler may try places where, say, exp(theta) is a scale of zero, and must hear that they are bad.
    """
    every = function if theta.ndim == 1 else torch.func.vmap(function)
    try:
        return every(theta)
    except InputError:
        raise
    except (ValueError, RuntimeError):  # the latter where vmap cannot put a number into the sentence
        validated = Distribution._validate_args
        Distribution.set_default_validate_args(False)
        try:
            values = every(theta)
        finally:
            Distribution.set_default_validate_args(validated)
        if bool(torch.isfinite(values).all()):
            raise
        return values


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
