"""Weighted rows for other tools: columns with names, and programs that fit them with their weights."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets._io.documents import json_text
from pseudocoresets._io.files import replacing, write_text
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.extras import installed_by

Columns = dict[str, NDArray[Any]]

WEIGHT = "weight"
TOOLS = ("stan", "numpyro", "pymc", "sklearn")
"""For which there is a program that fits weighted rows."""

LIKELIHOODS: Mapping[str, Mapping[str, str]] = {
    "LinearRegression": {
        "stan": "normal_lpdf(y[i] | eta[i], {noise_scale})",
        "numpyro": "dist.Normal(eta, {noise_scale}).log_prob(y)",
        "pymc": "pm.logp(pm.Normal.dist(eta, {noise_scale}), y)",
    },
    "GaussianRegression": {
        "stan": "normal_lpdf(y[i] | eta[i], exp(theta[K + 1]))",
        "numpyro": "dist.Normal(eta, jnp.exp(theta[K])).log_prob(y)",
        "pymc": "pm.logp(pm.Normal.dist(eta, pt.exp(theta[K])), y)",
    },
    "StudentTRegression": {
        "stan": "student_t_lpdf(y[i] | {degrees}, eta[i], exp(theta[K + 1]))",
        "numpyro": "dist.StudentT({degrees}, eta, jnp.exp(theta[K])).log_prob(y)",
        "pymc": "pm.logp(pm.StudentT.dist({degrees}, mu=eta, sigma=pt.exp(theta[K])), y)",
    },
    "LogisticRegression": {
        "stan": "y[i] * eta[i] - log1p_exp(eta[i])",
        "numpyro": "y * eta - jnp.logaddexp(0.0, eta)",
        "pymc": "y * eta - pt.softplus(eta)",
    },
    "PoissonRegression": {
        "stan": "y[i] * eta[i] - exp(eta[i])",
        "numpyro": "y * eta - jnp.exp(eta)",
        "pymc": "y * eta - pt.exp(eta)",
    },
}
"""log p(y | eta, theta) up to a term in y alone; synthetic labels and counts need not be whole numbers."""


def weighted_columns(x: Tensor, y: Tensor, weights: Tensor, names: Sequence[str] = ()) -> Columns:
    """Features (by name, or x0, x1, ...), the target y (y0, y1, ... where it has several columns), and ``weight``."""
    names = tuple(names) or tuple(f"x{i}" for i in range(x.shape[1]))
    targets = {"y": y} if y.ndim == 1 else {f"y{i}": column for i, column in enumerate(y.unbind(1))}
    own = dict(zip(names, x.unbind(1), strict=True)) | targets | {WEIGHT: weights}
    if len(own) != len(names) + len(targets) + 1:
        raise InputError("A feature has the name of the target or of the weight; rename it.")
    return {name: column.detach().numpy() for name, column in own.items()}


def write_csv(path: str | os.PathLike[str], columns: Columns) -> None:
    """Numbers are written so that they are read back exactly."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def write_parquet(path: str | os.PathLike[str], columns: Columns) -> None:
    with installed_by("parquet", "Parquet files, unlike CSV, need pyarrow"):
        import pyarrow
        from pyarrow import parquet
    with replacing(path) as temporary:
        parquet.write_table(pyarrow.table(columns), temporary)


def write_stan_data(path: str | os.PathLike[str], x: Tensor, y: Tensor, weights: Tensor) -> None:
    """The data block of :func:`program` for Stan: N, K, x, y and weight."""
    document = {"N": len(x), "K": x.shape[1], "x": x.tolist(), "y": y.tolist(), WEIGHT: weights.tolist()}
    write_text(path, json_text(document))


def program(tool: str, model: Mapping[str, Any], data_file: str) -> str:
    """A program that fits the weighted rows of ``data_file`` with a recorded model and its prior N(0, s^2)."""
    kind, numbers = str(model.get("kind")), _numbers(model)
    if tool not in TOOLS:
        raise InputError(f"There is no program for '{tool}'; choose {', '.join(TOOLS)}.")
    if tool == "sklearn":
        return _template("refit_sklearn.py", data_file, sklearn_lines(kind, numbers))
    if kind not in LIKELIHOODS:
        raise InputError(f"There is no {tool} program for {kind}; export csv, whose column 'weight' any tool can use.")
    likelihood = LIKELIHOODS[kind][tool].format(**numbers)
    more = int(kind in ("GaussianRegression", "StudentTRegression"))
    lines = {"LIKELIHOOD": likelihood, "PRIOR_SCALE": repr(numbers["prior_scale"]), "MORE": str(more)}
    return _template("refit.stan" if tool == "stan" else f"refit_{tool}.py", data_file, lines)


def _numbers(model: Mapping[str, Any]) -> dict[str, float]:
    """A model's numbers; a file that came from elsewhere puts nothing else into a program."""
    try:
        return {name: float(model.get(name, 1.0)) for name in ("prior_scale", "noise_scale", "degrees")}
    except (TypeError, ValueError):
        raise InputError("The coreset's record of its model holds something else than numbers.") from None


def sklearn_lines(kind: str, numbers: Mapping[str, float]) -> dict[str, str]:
    """What scikit-learn calls the model, with the penalty that its prior is; its estimate is the posterior's mode."""
    precision = numbers["prior_scale"] ** -2
    lines = {
        "LinearRegression": (
            "Ridge",
            f"Ridge(alpha={numbers['noise_scale'] ** 2 * precision!r}, fit_intercept=False)",
            "x, y, weight",
        ),
        "LogisticRegression": (
            "LogisticRegression",
            f"LogisticRegression(C={1 / precision!r}, fit_intercept=False, tol=1e-10, max_iter=10000)",
            "np.r_[x, x], np.r_[np.ones(len(y)), np.zeros(len(y))], np.r_[weight * y, weight * (1 - y)]",
        ),
        "PoissonRegression": (
            "PoissonRegressor",
            f"PoissonRegressor(alpha={precision!r} / weight.sum(), fit_intercept=False, tol=1e-10, max_iter=10000)",
            "x, y, weight",
        ),
    }
    if kind not in lines:
        raise InputError(f"scikit-learn has no {kind}; export csv, whose column 'weight' any tool can use.")
    name, build, data = lines[kind]
    return {"NAME": name, "BUILD": build, "DATA": data}


def _template(name: str, data_file: str, lines: Mapping[str, str]) -> str:
    text = files("pseudocoresets._io").joinpath("programs", name + ".txt").read_text(encoding="utf-8")
    for key, value in {"FILE": json.dumps(data_file), **lines}.items():
        text = text.replace(f"@{key}@", value)
    return text
