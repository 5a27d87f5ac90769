"""Models whose log-densities are computed outside PyTorch: NumPy functions with gradients, and JAX.

PyTorch sees each as a function of its own with a backward pass. A NumPy function gives values and gradients in theta,
which is all that coresets of real points need; a JAX function is differentiated by JAX to any order and in points and
targets too, so that synthetic points can be learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.extras import installed_by
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.core.targets import Array
from pseudocoresets.models.expectation import UncheckedModel


@dataclass(frozen=True)
class NumpyModel(UncheckedModel):
    """A model as two NumPy functions that give values and gradients in theta, such as those of a compiled program.

    ``likelihood(theta, x, y)`` gives log p(y_i | x_i, theta), (m,), and its gradients, (m, size); ``prior(theta)`` the
    log-prior and its gradient, (size,). Both take one parameter vector (size,). Points are not differentiated, so that
    only coresets of real points can be made.
    """

    likelihood: Callable[[Array, Array, Array], tuple[Array, Array]]
    prior: Callable[[Array], tuple[float, Array]]
    size: int

    pseudo_target: ClassVar[TargetRange] = "fixed"
    classes: ClassVar[int] = 0

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if x.requires_grad:
            raise InputError("A NumPy function does not say how it changes with the points; choose real ones.")
        arrays = x.detach().numpy(), y.detach().numpy()
        return self._called(lambda one: self.likelihood(one, *arrays), theta, (len(x),))

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._called(self.prior, theta, ())

    def _called(self, function: Callable[[Array], tuple[Any, Array]], theta: Tensor, shape: tuple[int, ...]) -> Tensor:
        found = [function(one) for one in theta.detach().reshape(-1, self.size).numpy()]
        values = torch.from_numpy(np.stack([np.asarray(value, np.float64) for value, _ in found]))
        gradients = torch.from_numpy(np.stack([np.asarray(gradient, np.float64) for _, gradient in found]))
        if values.shape[1:] != shape or gradients.shape[1:] != (*shape, self.size):
            raise InputError(
                f"The function must give values {shape} and gradients {(*shape, self.size)}; got "
                f"{tuple(values.shape[1:])} and {tuple(gradients.shape[1:])}."
            )
        lead = tuple(theta.shape[:-1])
        known: Tensor = _WithGradients.apply(
            theta, values.reshape(lead + shape), gradients.reshape((*lead, *shape, self.size))
        )
        return known


class _WithGradients(torch.autograd.Function):
    """Values whose derivatives in theta are known; theta's gradient is linear in that of the values."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, values: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        ctx.per_datum = values.ndim == theta.ndim
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        products = gradients[0][..., None] * ctx.saved_tensors[0]
        return products.sum(-2) if ctx.per_datum else products, None, None


@dataclass(frozen=True)
class JaxModel(UncheckedModel):
    """A model as two JAX functions of one parameter vector: ``likelihood(theta, x, y)``, (m,), and ``prior(theta)``.

    JAX differentiates them in double precision, in parameters, points and targets.
    """

    likelihood: Callable[[Any, Any, Any], Any]
    prior: Callable[[Any], Any]
    size: int
    pseudo_target: TargetRange = "fixed"

    classes: ClassVar[int] = 0

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return call_jax(self._many_likelihoods if theta.ndim == 2 else self.likelihood, theta, x, y)

    def log_prior(self, theta: Tensor) -> Tensor:
        return call_jax(self._many_priors if theta.ndim == 2 else self.prior, theta)

    @cached_property
    def _many_likelihoods(self) -> Callable[..., Any]:
        return import_jax().vmap(self.likelihood, (0, None, None))

    @cached_property
    def _many_priors(self) -> Callable[..., Any]:
        return import_jax().vmap(self.prior)


def import_jax() -> Any:
    """JAX, which comes with the extra ``jax``."""
    with installed_by("jax", "JAX models need jax"):
        import jax
        import jax.flatten_util
    return jax


def call_jax(function: Callable[..., Any], *inputs: Tensor) -> Tensor:
    """A JAX function of tensors, differentiable to any order: its pullback is a JAX function too."""
    found: Tensor = _JaxCall.apply(function, *inputs)
    return found


class _JaxCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        jax = import_jax()
        with jax.enable_x64(True):
            found = _compiled(function)(*(tensor.detach().double().numpy() for tensor in inputs))
        return torch.from_numpy(np.array(found, np.float64))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs = ctx.saved_tensors
        found = [
            call_jax(_pullback(ctx.function, i), *inputs, gradients[0]) if needed else None
            for i, needed in enumerate(ctx.needs_input_grad[1:])
        ]
        return None, *found


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = import_jax().jit(function)
    return compiled


@cache
def _pullback(function: Callable[..., Any], which: int) -> Callable[..., Any]:
    """(inputs, cotangent) -> the cotangent of one of the inputs."""

    def pulled(*inputs: Any) -> Any:
        return import_jax().vjp(function, *inputs[:-1])[1](inputs[-1])[which]

    return pulled
