"""Models written in probabilistic languages: NumPyro, PyMC, Stan.

Of each, the log-density of one datum at a time is needed, in the language's own unconstrained parameters, and all that
does not depend on data, Jacobians of the change to those parameters included, as the prior.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.extras import installed_by
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.core.targets import Array
from pseudocoresets.models.external import JaxModel, NumpyModel, import_jax

MOST_DATA = 100_000
"""Of a Stan program, each a model of its own."""


def numpyro_model(
    model: Callable[..., None],
    x: Any,
    y: Any,
    observed: str = "obs",
    pseudo_target: TargetRange = "fixed",
) -> JaxModel:
    """A NumPyro model(x, y) with one observed site as a model of rows, in NumPyro's unconstrained parameters.

    The likelihood of a datum is the log-probability of its value at the site ``observed``; all else, with the Jacobian
    of the change to unconstrained parameters, is the prior. Parameters stand in the order of their sites.

    Args:
        x: Some rows of the data, to trace the model with.
        y: Their targets.
    """
    jax = import_jax()
    with installed_by("jax", "NumPyro models need numpyro"):
        from numpyro import handlers
        from numpyro.infer.util import constrain_fn, initialize_model, potential_energy
    few = np.asarray(x, np.float64)[:1], np.asarray(y, np.float64)[:1]
    with jax.enable_x64(True):
        start = initialize_model(jax.random.PRNGKey(0), model, model_args=few).param_info.z
        flat, unflattened = jax.flatten_util.ravel_pytree(start)

    def likelihood(theta: Any, points: Any, targets: Any) -> Any:
        values = constrain_fn(model, (points, targets), {}, unflattened(theta))
        traced = handlers.trace(handlers.substitute(handlers.seed(model, 0), values)).get_trace(points, targets)
        site = traced[observed]
        return site["fn"].log_prob(site["value"])

    def prior(theta: Any) -> Any:
        joint = -potential_energy(model, few, {}, unflattened(theta))
        return joint - likelihood(theta, *few).sum()

    return JaxModel(likelihood, prior, int(flat.size), pseudo_target)


def pymc_model(model: Any, x: str = "x", y: str = "y", pseudo_target: TargetRange = "fixed") -> JaxModel:
    """A PyMC model with one observed variable as a model of rows, in PyMC's unconstrained parameters.

    The likelihood of a datum is the log-probability of its observed value; the prior is that of the free variables and
    potentials. PyTensor hands both to JAX. Parameters stand in the order of ``model.value_vars``.

    Args:
        x: The name of the ``pm.Data`` that holds the points (n, features).
        y: The name of the one that holds the targets and is observed.
    """
    import_jax()
    with installed_by("pymc", "PyMC models need pymc and jax"):
        import pytensor.tensor as pt
        from pymc.sampling.jax import get_jaxified_graph
        from pytensor.graph.replace import clone_replace
    if len(model.observed_RVs) != 1:
        raise InputError(f"A PyMC model of rows needs one observed variable; got {len(model.observed_RVs)}.")
    theta, points, targets = pt.dvector("theta"), model[x].type(), model[y].type()
    shapes = [np.shape(model.initial_point()[value.name]) for value in model.value_vars]
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    parts = (theta[begin:end].reshape(shape) for begin, end, shape in zip(ends, ends[1:], shapes, strict=False))
    values = dict(zip(model.value_vars, parts, strict=True))
    free = model.logp(vars=[*model.free_RVs, *model.potentials])
    (per_datum,) = model.logp(vars=model.observed_RVs, sum=False)
    given = {**values, model[x]: points, model[y]: targets}
    likelihood = get_jaxified_graph([theta, points, targets], [clone_replace(per_datum, given)])
    prior = get_jaxified_graph([theta], [clone_replace(free, values)])
    return JaxModel(lambda *inputs: likelihood(*inputs)[0], lambda one: prior(one)[0], int(ends[-1]), pseudo_target)


def stan_data(x: Array, y: Array) -> dict[str, Any]:
    """Rows as a Stan program often wants them: N, K, matrix[N, K] x and y; whole numbers may be integers there."""
    whole = [int(value) if value == int(value) else value for value in y.tolist()]
    return {"N": len(y), "K": x.shape[1], "x": x.tolist(), "y": whole}


def stan_model(
    program: str | os.PathLike[str],
    x: Any,
    y: Any,
    data: Callable[[Array, Array], dict[str, Any]] = stan_data,
) -> NumpyModel:
    """A Stan program through BridgeStan as a model of rows, in Stan's unconstrained parameters.

    The program must take any number of data, none included, and add up their log-likelihoods. With p(theta, D) the
    density that it defines for data D, the prior is log p(theta, {}) and the likelihood of datum i
    log p(theta, {i}) - log p(theta, {}), with gradients in theta; so real points are chosen.

    Args:
        program: A ``.stan`` file, which BridgeStan compiles with its own sources, or the library that came of it.
        x: Some rows of the data, whose width the program is told.
        y: Their targets.
        data: The program's data for points (m, features) and targets, for m = 1 and m = 0.
    """
    with installed_by("stan", "Stan programs need bridgestan"):
        import bridgestan
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    path = os.fspath(program)
    if path.endswith(".stan"):
        path = str(bridgestan.compile_model(path))

    def of_rows(points: Array, targets: Array) -> Any:
        return bridgestan.StanModel(path, json.dumps(data(points, targets)), warn=False)

    @lru_cache(maxsize=MOST_DATA)
    def of_datum(point: bytes, target: bytes) -> Any:
        values = np.frombuffer(target).reshape(1, *y.shape[1:])
        return of_rows(np.frombuffer(point)[None], values)

    nothing = of_rows(x[:0], y[:0])

    def prior(theta: Array) -> tuple[float, Array]:
        value, gradient = nothing.log_density_gradient(theta, propto=False)
        return float(value), gradient

    def likelihood(theta: Array, points: Array, targets: Array) -> tuple[Array, Array]:
        data_models = (
            of_datum(*(np.ascontiguousarray(each).tobytes() for each in row))
            for row in zip(points, targets, strict=True)
        )
        found = [model.log_density_gradient(theta, propto=False) for model in data_models]
        value, gradient = prior(theta)
        return np.array([each for each, _ in found]) - value, np.array([slope for _, slope in found]) - gradient

    return NumpyModel(likelihood, prior, int(nothing.param_unc_num()))
