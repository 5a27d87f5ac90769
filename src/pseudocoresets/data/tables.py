"""Data for models with a known posterior: sets shipped with scikit-learn, CSV and Parquet files, synthetic data."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.extras import installed_by
from pseudocoresets.core.points import FullData, Rows, require_moderate
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.core.text import first_line, listed
from pseudocoresets.models.expectation import MOST_PARAMETERS, SmoothModel
from pseudocoresets.models.named import MODELS, build_model

Array = NDArray[Any]
MISSING = {"", "na", "nan", "null", "none", "?"}
HELD_OUT_SHARE = 0.2

EMBEDDED: Registry[tuple[str, str]] = Registry(
    "embedded data set",
    {
        "breast-cancer": ("load_breast_cancer", "logistic"),
        "wine": ("load_wine", "softmax"),
        "diabetes": ("load_diabetes", "linear"),
        "digits": ("load_digits", "softmax"),
    },
)
"""scikit-learn's loader of each embedded set, and the model it suggests."""

SYNTHETIC = "synthetic"
LARGEST_WIDTH = MOST_PARAMETERS - 1
"""Features of a table up to which a posterior's covariance is worth having."""
STANDARDISED = ("linear", "gaussian", "student-t", "random-intercepts")
"""Models whose targets are centred and scaled to unit deviation."""
COUNTS_FOR = {
    "poisson": "Poisson regression",
    "negative-binomial": "negative binomial regression",
    "random-intercepts-poisson": "Poisson regression",
}
SYNTHETIC_GROUPS = 20
GROUPED = ("random-intercepts", "random-intercepts-logistic", "random-intercepts-poisson")


@dataclass(frozen=True)
class Table:
    """Numbers with a name for each column, and a target (absent for the Gaussian mean)."""

    x: NDArray[np.float64]
    y: Array | None
    columns: tuple[str, ...]
    target: str = "target"
    event: Array | None = None
    """Of survival times: 1 where the event was seen, 0 where it was censored."""
    group: Array | None = None
    """Which group each row belongs to, for random intercepts."""


class AnyTable(FullData, Protocol):
    """Rows in memory, or those that are read in parts."""

    @property
    def columns(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class PosteriorData:
    """A model with its full and its held-out data, and what is known about them."""

    model: SmoothModel
    rows: AnyTable
    held_out: tuple[Tensor, Tensor]
    name: str
    model_name: str
    classes: tuple[str, ...] = ()
    """Values of the target that the model knows as 0, 1, ..."""
    units: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(shift, unit) of columns that were standardised: the model sees (value - shift) / unit."""


def load_posterior_data(
    source: str = "breast-cancer",
    model: str = "auto",
    target: str | None = None,
    points: int = 10000,
    dimension: int = 10,
    prior_scale: float = 1.0,
    seed: int = 0,
    event: str | None = None,
    group: str | None = None,
    formula: str | None = None,
) -> PosteriorData:
    """Data and a model: an embedded set, a CSV or Parquet file, or ``"synthetic"`` (of ``points`` and ``dimension``).

    Features are standardised on the training part (survival times are in units of their geometric mean) and an
    intercept is added (not for the Gaussian mean, nor where cutpoints stand for it); a fifth of the data is held out.
    Of a file, ``event`` names the column that says whether a survival time ended in the event, ``group`` that of the
    groups of random intercepts, and ``formula`` says target and features in one, such as ``"y ~ x + C(z)"``.
    """
    if model != "auto":
        MODELS[model]
    if (source == SYNTHETIC or source in EMBEDDED) and any((target, event, group, formula)):
        raise InputError(f"Columns and formulas are of files; '{source}' has its own target and features.")
    if source == SYNTHETIC:
        model = "logistic" if model == "auto" else model
        table = synthetic_table(model, points, dimension, seed)
    elif source in EMBEDDED:
        table = _embedded(source)
        model = EMBEDDED[source][1] if model == "auto" else model
    elif Path(source).suffix.lower() in (".csv", ".parquet"):
        table = _read_file(Path(source), Choice(target, event, group, formula), model)
        model = _suggest(table) if model == "auto" else model
    else:
        raise InputError(
            f"'{source}' is neither an embedded data set ({', '.join(EMBEDDED)}), nor 'synthetic', "
            "nor a .csv or .parquet file."
        )
    return _prepare(table, model, prior_scale, seed, Path(source).name)


# --- sources --------------------------------------------------------------------------------------


def synthetic_table(model: str, points: int, dimension: int, seed: int) -> Table:
    """Standard normal features and a target drawn from the model, with coefficients of norm one (three for classes)."""
    if points < 10 or dimension < 1:
        raise InputError(f"Synthetic data need at least 10 points and 1 dimension; got {points} and {dimension}.")
    stream = np.random.default_rng(derive_seed(seed, "synthetic", model))
    x = stream.standard_normal((points, dimension))
    theta = stream.standard_normal(dimension)
    theta /= np.linalg.norm(theta)
    columns = tuple(f"x{i}" for i in range(dimension))
    if model == "gaussian-mean":
        return Table(x + theta, None, columns)
    group = np.arange(points) % SYNTHETIC_GROUPS if model in GROUPED else None
    eta = x @ theta
    if group is not None:
        eta = eta + 0.5 * stream.standard_normal(SYNTHETIC_GROUPS)[group]
    draw: dict[str, Callable[[], Array]] = {
        "linear": lambda: eta + stream.standard_normal(points),
        "student-t": lambda: eta + stream.standard_t(4, points),
        "logistic": lambda: (stream.random(points) < 1 / (1 + np.exp(-3 * eta))).astype(int),
        "poisson": lambda: stream.poisson(np.exp(eta)),
        "negative-binomial": lambda: stream.negative_binomial(2, 2 / (2 + np.exp(eta))),
        "softmax": lambda: _draw_classes(x, stream),
        "ordinal": lambda: np.digitize(3 * eta + stream.logistic(size=points), [-2.0, 0.0, 2.0]),
        "weibull": lambda: np.exp(eta) * stream.weibull(1.5, points),
    }
    family = model.removeprefix("random-intercepts-")
    y = draw.get(family, draw["linear"])()
    event = (stream.random(points) < 0.7).astype(float) if model == "weibull" else None
    return Table(x, y, columns, event=event, group=group)


def _draw_classes(x: Array, stream: np.random.Generator, classes: int = 3) -> Array:
    logits = 3 * x @ stream.standard_normal((x.shape[1], classes)) / math.sqrt(x.shape[1])
    noise = stream.gumbel(size=logits.shape)
    return np.asarray((logits + noise).argmax(1))


def _embedded(name: str) -> Table:
    from sklearn import datasets

    bunch = getattr(datasets, EMBEDDED[name][0])()
    x = np.asarray(bunch.data, dtype=np.float64)
    varying = x.std(0) > 0
    names = [str(column) for column in getattr(bunch, "feature_names", range(x.shape[1]))]
    return Table(x[:, varying], np.asarray(bunch.target), tuple(np.array(names)[varying].tolist()))


class Choice(NamedTuple):
    """Which columns of a file play which part."""

    target: str | None = None
    event: str | None = None
    group: str | None = None
    formula: str | None = None


def _read_file(path: Path, choice: Choice, model: str) -> Table:
    if not path.is_file():
        raise InputError(f"There is no file '{path}'.")
    columns = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    for name in (choice.target, choice.event, choice.group):
        if name is not None:
            require_column(name, path, columns)
    if len(next(iter(columns.values()), [])) == 0:
        raise InputError(f"'{path}' has no rows; at least 5 are needed to hold some out.")
    event = None if choice.event is None else _numbers(choice.event, columns.pop(choice.event))
    group = None if choice.group is None else np.asarray([str(value) for value in columns.pop(choice.group)])
    if choice.formula is not None:
        return replace(formula_table(choice.formula, columns), event=event, group=group)
    target = choice.target
    if target is None and model != "gaussian-mean":
        raise InputError(f"Name the target column of '{path}' with --target; its columns are {listed(list(columns))}.")
    if len(columns) > LARGEST_WIDTH:
        raise InputError(
            f"'{path}' has {len(columns):,} columns; a posterior of at most {LARGEST_WIDTH:,} coefficients is measured "
            "here, so leave some out."
        )
    features = {name: _numbers(name, values) for name, values in columns.items() if name != target}
    if not features:
        raise InputError(f"'{path}' has no column beside the target '{target}'; a model needs at least one feature.")
    y = None if target is None else _target_values(target, columns[target])
    return Table(np.stack(list(features.values()), 1), y, tuple(features), target or "target", event, group)


def formula_table(formula: str, columns: Mapping[str, Sequence[Any]]) -> Table:
    """Target and features by a formula such as ``"y ~ x + C(z)"``, through formulaic, without its intercept.

    A target of text is a class. Columns that the formula does not mention do not matter.
    """
    with installed_by("formula", "Formulas need formulaic"):
        import pandas
        from formulaic import ModelMatrices, model_matrix
        from formulaic.errors import FormulaicError
    mentioned = {name: values for name, values in columns.items() if "." in formula or name in formula}
    frame = pandas.DataFrame({name: _target_values(name, values) for name, values in mentioned.items()})
    left, tilde, features = formula.partition("~")
    target = left.strip()
    classes = target in frame and bool(tilde) and frame[target].dtype.kind not in "biuf"
    try:
        with np.errstate(all="ignore"):
            matrices: Any = model_matrix(
                features if classes else formula,
                frame.drop(columns=[target] * classes),
                context={},
                na_action="ignore",  # rows are not dropped, but refused below
            )
    except (FormulaicError, SyntaxError, ValueError, KeyError, NameError) as error:
        raise InputError(f"The formula '{formula}' cannot be used ({first_line(error)}).") from None
    if classes:
        y, right = np.asarray(frame[target], dtype=str), matrices
    elif isinstance(matrices, ModelMatrices) and "lhs" in matrices._to_dict() and matrices.lhs.shape[1] == 1:
        y, right = matrices.lhs.to_numpy(np.float64)[:, 0], matrices.rhs
        target = str(matrices.lhs.columns[0])
    else:
        raise InputError(f"A formula has one target, as in 'y ~ x + C(z)'; got '{formula}'.")
    if "Intercept" not in right:
        raise InputError(
            f"The formula '{formula}' leaves the intercept out; features are centred here, so write it with one."
        )
    right = right.drop(columns=["Intercept"])
    if not 1 <= right.shape[1] <= LARGEST_WIDTH:
        raise InputError(
            f"The formula '{formula}' names {right.shape[1]:,} features; a model needs between 1 and {LARGEST_WIDTH:,}."
        )
    if not classes:
        require_moderate(y, f"The target '{target}'")
    x, names = right.to_numpy(np.float64), tuple(map(str, right))
    for name, values in zip(names, x.T, strict=True):
        require_moderate(values, f"Column '{name}'")
    return Table(x, y, names, target)


def check_columns(table: Table) -> None:
    """Refuse a constant column, one that is there twice, and one that others add up to."""
    if len(table.x) < 2:
        return
    for name, values in zip(table.columns, table.x.T, strict=True):
        if np.ptp(values) == 0:
            raise InputError(f"Column '{name}' is constant ({values[0]:g}); remove it, an intercept is added anyway.")
    if table.x.shape[0] <= table.x.shape[1]:
        return
    from scipy.linalg import qr, solve_triangular

    centred = table.x - table.x.mean(0)
    triangle, order = qr(centred / centred.std(0), mode="r", pivoting=True, check_finite=False)
    size = np.abs(np.diag(triangle))
    rank = int((size > 1e-10 * size[0]).sum())
    if rank == len(order):
        return
    shares = solve_triangular(triangle[:rank, :rank], triangle[:rank, rank])
    others = [table.columns[order[i]] for i in np.flatnonzero(np.abs(shares) > 1e-6)]
    column = f"Column '{table.columns[order[rank]]}'"
    if len(others) == 1:
        raise InputError(f"{column} says the same as '{others[0]}', up to scale; remove one of them.")
    raise InputError(f"{column} is a combination of {listed(others, 5)}; remove it.")


def _read_csv(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"'{path}' is not a CSV file in UTF-8 ({error}).") from None
    if len(rows) < 2:
        raise InputError(f"'{path}' needs a line of column names and at least one line of data.")
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header):
        raise InputError(f"'{path}' names a column twice; give every column a name of its own.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(
                f"Line {number} of '{path}' has {len(row)} fields; the first line names {len(header)} columns."
            )
    return {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(header)}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    parquet = import_parquet()
    try:
        names = parquet.read_schema(path).names
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise InputError(f"'{path}' has two columns named '{repeated}'; rename one of them.")
        table = parquet.read_table(path)
    except InputError:
        raise
    except Exception as error:
        raise FileFormatError(f"'{path}' is not a Parquet file ({first_line(error)}).") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


DAMAGED = (OSError, ValueError, TypeError, LookupError, NotImplementedError, OverflowError)
"""What pyarrow says of a file in which anything may be wrong."""


def import_parquet() -> Any:
    """pyarrow's Parquet module, which comes with the extra ``parquet``."""
    with installed_by("parquet", "Parquet files, unlike CSV, need pyarrow"):
        import pyarrow.parquet as parquet
    return parquet


def parquet_file(path: Path) -> Any:
    """A file whose rows are still to be read."""
    try:
        return import_parquet().ParquetFile(path)
    except DAMAGED as error:
        raise FileFormatError(f"'{path}' is not a Parquet file ({first_line(error)}).") from None


def parquet_batches(path: Path, rows: int, groups: Sequence[int], names: Sequence[str]) -> Iterator[Any]:
    """Arrow batches of some row groups, of so many rows each."""
    file = parquet_file(path)
    try:
        yield from file.iter_batches(rows, row_groups=list(groups), columns=list(names), use_threads=False)
    except DAMAGED as error:
        raise FileFormatError(f"'{path}' is a damaged Parquet file ({first_line(error)}).") from None


def _numbers(name: str, values: Sequence[Any]) -> NDArray[np.float64]:
    _no_missing(name, values)
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"Column '{name}' holds text ('{value}' in row {row + 1}); encode it as numbers or leave it out."
            ) from None
    require_moderate(numbers, f"Column '{name}'")
    return numbers


def _no_missing(name: str, values: Sequence[Any]) -> None:
    missing = [row for row, value in enumerate(values, start=1) if _is_missing(value)]
    if missing:
        count = f"{len(missing)} missing value{'s' * (len(missing) > 1)}"
        raise InputError(f"Column '{name}' has {count}, the first in row {missing[0]}; fill or remove them.")


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return isinstance(value, str) and value.lower() in MISSING


def _target_values(name: str, values: Sequence[Any]) -> Array:
    _no_missing(name, values)
    try:
        numbers = np.array([float(value) for value in values])
    except (TypeError, ValueError):
        return np.array([str(value) for value in values])
    require_moderate(numbers, f"The target '{name}'")
    return numbers


def require_column(name: str, path: Path, columns: Iterable[str]) -> None:
    if name not in columns:
        raise InputError(f"There is no column '{name}' in '{path}'; its columns are {listed(list(columns))}.")


# --- from a table to a model --------------------------------------------------------------------


def _suggest(table: Table) -> str:
    if table.y is None:
        return "gaussian-mean"
    kinds = np.unique(table.y)
    if len(kinds) <= 2:
        return "logistic"
    if table.y.dtype.kind == "U":
        return "softmax"
    whole = bool((table.y == np.round(table.y)).all())
    return "softmax" if whole and len(kinds) <= 20 else "linear"


def _prepare(table: Table, model: str, prior_scale: float, seed: int, name: str) -> PosteriorData:
    check_columns(table)
    order = np.random.default_rng(derive_seed(seed, "held out")).permutation(len(table.x))
    cut = max(1, round(HELD_OUT_SHARE * len(order)))
    train, test = order[cut:], order[:cut]
    if len(train) < 2:
        raise InputError(f"'{name}' has {len(order)} rows; at least 5 are needed to hold some out.")
    y, classes = _encode(table, model)
    scale = np.where(table.x[train].std(0) > 0, table.x[train].std(0), 1.0)
    shift = np.zeros_like(scale) if model == "gaussian-mean" else table.x[train].mean(0)
    x, columns = (table.x - shift) / scale, table.columns
    units = dict(zip(columns, zip(shift.tolist(), scale.tolist(), strict=True), strict=True))
    if model not in ("gaussian-mean", "ordinal"):
        x, columns = np.concatenate([x, np.ones((len(x), 1))], 1), (*columns, "intercept")
    if model in GROUPED:
        x, columns = np.concatenate([x, _encode_groups(table, model)], 1), (*columns, "group")
    if model in STANDARDISED:
        units[table.target] = float(y[train].mean()), float(y[train].std() or 1.0)
        y = (y - units[table.target][0]) / units[table.target][1]
    if model == "weibull":
        units[table.target] = 0.0, float(np.exp(np.log(y[:, 0]).mean()))
        y[:, 0] /= units[table.target][1]
    whole = Rows(torch.from_numpy(x), torch.from_numpy(y))
    rows = Rows(torch.from_numpy(x[train]), torch.from_numpy(y[train]), columns=columns)
    data_dependent = model in ("linear", "gaussian-mean")
    built = build_model(model, rows if data_dependent else whole, prior_scale)
    held_out = torch.from_numpy(x[test]), torch.from_numpy(y[test])
    return PosteriorData(built, rows, held_out, name, model, classes, units)


def _encode(table: Table, model: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    if model == "gaussian-mean":
        return np.zeros(len(table.x)), ()
    if table.y is None:
        raise InputError(f"The model '{model}' needs a target column; name it with --target.")
    if model in ("logistic", "softmax", "random-intercepts-logistic"):
        return _encode_classes(table, model)
    if table.y.dtype.kind == "U":
        raise InputError(f"The target '{table.target}' holds text ('{table.y[0]}'); the model '{model}' needs numbers.")
    y = np.asarray(table.y, dtype=np.float64)
    if model == "ordinal":
        return _encode_classes(table, model)
    if model == "weibull":
        return _encode_survival(table, y), ()
    if model in COUNTS_FOR and (bool((y < 0).any()) or bool((y != np.round(y)).any())):
        raise InputError(f"The target '{table.target}' must hold counts (0, 1, 2, ...) for {COUNTS_FOR[model]}.")
    if model in STANDARDISED and len(y) > 1 and bool((y == y[0]).all()):
        raise InputError(constant_target(str(table.target)))
    return y, ()


def constant_target(name: str) -> str:
    """What is said of it, to models of noise."""
    return f"The target '{name}' is constant, so that there is nothing to model."


def _encode_survival(table: Table, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times, and whether the event was seen; without a column of events, always."""
    event = np.ones(len(times)) if table.event is None else table.event
    if not (times > 0).all() or not np.isin(event, (0, 1)).all():
        raise InputError("Survival times must be positive, and events 1 (seen) or 0 (censored).")
    return np.stack([times, event], 1)


def _encode_groups(table: Table, model: str) -> NDArray[np.float64]:
    if table.group is None:
        raise InputError(f"The model '{model}' needs a column of groups; name it with --group.")
    return np.unique(table.group, return_inverse=True)[1].astype(np.float64)[:, None]


def _encode_classes(table: Table, model: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    assert table.y is not None
    kinds, codes = np.unique(table.y, return_inverse=True)
    if len(kinds) == 1:
        raise InputError(
            f"The target '{table.target}' has one class only ({class_name(kinds[0])}); a model needs at least two."
        )
    if "logistic" in model and len(kinds) > 2:
        raise InputError(
            f"The target '{table.target}' has {len(kinds)} different values; logistic regression needs two, "
            "softmax takes more."
        )
    if len(kinds) > max(2, len(table.y) // 2):
        raise InputError(f"The target '{table.target}' has {len(kinds)} different values; use the model 'linear'.")
    return codes.astype(np.float64), tuple(class_name(kind) for kind in kinds)


def class_name(kind: Any) -> str:
    """A value of the target as text."""
    return f"{kind:g}" if isinstance(kind, float) else str(kind)
