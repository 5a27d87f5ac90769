"""Minimising a function of pseudo-points by L-BFGS."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.devices import one_blas_thread
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points

GOOD_ENOUGH = 1e-2
"""Nats below which a divergence needs no more work."""

CORRECTIONS = 60
"""Steps that L-BFGS remembers; points that share their work are ill-conditioned, and 20 take several times as many."""

Objective = Callable[[Points], Tensor]


def points_of(form: Parameterisation, free: Tensor) -> Points:
    """The points behind a flat vector, differentiable in it."""
    return form.points(form.unflattened(free))


class _Enough(Exception):
    """Raised where a search has come as far as was asked."""


def minimise(
    form: Parameterisation, free: Tensor, objective: Objective, iterations: int, enough: float = -math.inf
) -> tuple[Tensor, float]:
    """The best vector of at most ``iterations`` of L-BFGS and its value; what is not finite is infinitely bad.

    The search ends at the first value below ``enough``.
    """
    from scipy.optimize import minimize

    best: dict[str, np.ndarray | float] = {"value": math.inf, "free": free.numpy()}

    def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        unknown = torch.from_numpy(vector).requires_grad_()
        try:
            value = objective(points_of(form, unknown)) + 0 * unknown.sum()  # it may depend on none of them
            (gradient,) = torch.autograd.grad(value, unknown)
        except DivergenceError:
            return 1e30, np.zeros_like(vector)
        if not (bool(torch.isfinite(value)) and bool(torch.isfinite(gradient).all())):
            return 1e30, np.zeros_like(vector)
        value = value.detach()
        if float(value) < best["value"]:
            best.update(value=float(value), free=vector.copy())
        if float(value) < enough:
            raise _Enough
        return float(value), gradient.numpy()

    options = {"maxiter": iterations, "maxfun": 2 * iterations + 20, "ftol": 1e-13, "gtol": 1e-9, "maxcor": CORRECTIONS}
    with contextlib.suppress(_Enough), one_blas_thread():
        minimize(value_and_gradient, free.numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(np.asarray(best["free"])), float(best["value"])


def minimise_again(
    form: Parameterisation,
    free: Tensor,
    objective: Objective,
    iterations: int,
    restarts: int,
    enough: float = -math.inf,
) -> Tensor:
    """:func:`minimise`, started again up to ``restarts`` times while that lowers a divergence by a twentieth."""
    free, before = minimise(form, free, objective, iterations, enough)
    for _ in range(restarts):
        if before < GOOD_ENOUGH:
            break
        free, after = minimise(form, free, objective, iterations, enough)
        if after > 0.95 * before:
            break
        before = after
    return free
