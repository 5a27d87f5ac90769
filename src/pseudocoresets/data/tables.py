"""Data for models with a known posterior: sets shipped with scikit-learn, CSV and Parquet files, synthetic data."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.points import Rows, random_positions
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.gaussian_mean import GaussianMean
from pseudocoresets.models.glm import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression

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

MODEL_NAMES = ("gaussian-mean", "linear", "logistic", "softmax", "poisson")


MOST_COLUMNS = 1000
"""A reference posterior of more parameters takes hours."""


@dataclass(frozen=True)
class Table:
    """Numbers with a name for each column, and a target (absent for the Gaussian mean)."""

    x: NDArray[np.float64]
    y: Array | None
    columns: tuple[str, ...]
    target: str = "target"


@dataclass(frozen=True)
class PosteriorData:
    """A model with its full and its held-out data, and what is known about them."""

    model: SmoothModel
    rows: Rows
    held_out: tuple[Tensor, Tensor]
    name: str
    model_name: str
    classes: tuple[str, ...] = ()


def load_posterior_data(
    source: str = "breast-cancer",
    model: str = "auto",
    target: str | None = None,
    points: int = 10000,
    dimension: int = 10,
    prior_scale: float = 1.0,
    seed: int = 0,
) -> PosteriorData:
    """Data and a model: an embedded set, a CSV or Parquet file, or ``"synthetic"`` (of ``points`` and ``dimension``).

    Features are standardised on the training part and an intercept is added (not for the Gaussian mean); a fifth of the
    data is held out.
    """
    if model != "auto" and model not in MODEL_NAMES:
        raise InputError(f"There is no model named '{model}'. Known: auto, {', '.join(MODEL_NAMES)}.")
    if source == "synthetic":
        model = "logistic" if model == "auto" else model
        table = synthetic_table(model, points, dimension, seed)
    elif source in EMBEDDED:
        table = _embedded(source)
        model = EMBEDDED[source][1] if model == "auto" else model
    elif Path(source).suffix.lower() in (".csv", ".parquet"):
        table = _read_file(Path(source), target, model)
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
    eta = x @ theta
    draw: dict[str, Callable[[], Array]] = {
        "linear": lambda: eta + stream.standard_normal(points),
        "logistic": lambda: (stream.random(points) < 1 / (1 + np.exp(-3 * eta))).astype(int),
        "poisson": lambda: stream.poisson(np.exp(eta)),
        "softmax": lambda: _draw_classes(x, stream),
    }
    return Table(x, draw[model](), columns)


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


def _read_file(path: Path, target: str | None, model: str) -> Table:
    if not path.is_file():
        raise InputError(f"There is no file '{path}'.")
    columns = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    if target is None and model != "gaussian-mean":
        raise InputError(f"Name the target column of '{path}' with --target; its columns are {_listed(columns)}.")
    if target is not None and target not in columns:
        raise InputError(_no_column(target, path, columns))
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"'{path}' has no rows; a posterior needs some data.")
    if len(columns) > MOST_COLUMNS:
        raise InputError(f"'{path}' has {len(columns):,} columns; leave all but {MOST_COLUMNS:,} out.")
    features = {name: _numbers(name, values) for name, values in columns.items() if name != target}
    if not features:
        raise InputError(f"'{path}' has no column beside the target '{target}'; a model needs at least one feature.")
    for name, values in features.items():
        if np.ptp(values) == 0:
            raise InputError(f"Column '{name}' is constant ({values[0]:g}); remove it, an intercept is added anyway.")
    y = None if target is None else _target_values(target, columns[target])
    return Table(np.stack(list(features.values()), 1), y, tuple(features), target or "target")


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
        raise FileFormatError(f"'{path}' is not a Parquet file ({error}).") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def import_parquet() -> Any:
    """pyarrow's Parquet module, which comes with the extra ``parquet``."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(
            "Reading Parquet files needs pyarrow: pip install 'pseudocoresets[parquet]', or use a CSV file."
        ) from None
    return parquet


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
    if not np.isfinite(numbers).all():
        raise InputError(f"Column '{name}' holds a value that is not finite; remove that row.")
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
    if not np.isfinite(numbers).all():
        raise InputError(f"The target '{name}' holds a value that is not finite; remove that row.")
    return numbers


def _no_column(name: str, path: Path, columns: Iterable[str]) -> str:
    return f"There is no column '{name}' in '{path}'; its columns are {_listed(columns)}."


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in columns)


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
    order = np.random.default_rng(derive_seed(seed, "held out")).permutation(len(table.x))
    cut = max(1, round(HELD_OUT_SHARE * len(order)))
    train, test = order[cut:], order[:cut]
    if len(train) < 2:
        raise InputError(f"'{name}' has {len(order)} rows; at least 5 are needed to hold some out.")
    y, classes = _encode(table, model)
    scale = np.where(table.x[train].std(0) > 0, table.x[train].std(0), 1.0)
    centred = (table.x - table.x[train].mean(0)) / scale
    with_intercept = np.concatenate([centred, np.ones((len(centred), 1))], 1)
    x = table.x / scale if model == "gaussian-mean" else with_intercept
    if model == "linear":
        y = (y - y[train].mean()) / (y[train].std() or 1.0)
    built = _build_model(model, x[train], y[train], prior_scale, len(classes))
    rows = Rows(torch.from_numpy(x[train]), torch.from_numpy(y[train]))
    held_out = torch.from_numpy(x[test]), torch.from_numpy(y[test])
    return PosteriorData(built, rows, held_out, name, model, classes)


def _encode(table: Table, model: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    if model == "gaussian-mean":
        return np.zeros(len(table.x)), ()
    if table.y is None:
        raise InputError(f"The model '{model}' needs a target column; name it with --target.")
    if model in ("logistic", "softmax"):
        return _encode_classes(table, model)
    if table.y.dtype.kind == "U":
        raise InputError(f"The target '{table.target}' holds text ('{table.y[0]}'); the model '{model}' needs numbers.")
    y = np.asarray(table.y, dtype=np.float64)
    if model == "poisson" and (bool((y < 0).any()) or bool((y != np.round(y)).any())):
        raise InputError(f"The target '{table.target}' must hold counts (0, 1, 2, ...) for Poisson regression.")
    return y, ()


def _encode_classes(table: Table, model: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    assert table.y is not None
    kinds, codes = np.unique(table.y, return_inverse=True)
    if len(kinds) == 1:
        raise InputError(
            f"The target '{table.target}' has one class only ({_name(kinds[0])}); a model needs at least two."
        )
    if model == "logistic" and len(kinds) > 2:
        raise InputError(
            f"The target '{table.target}' has {len(kinds)} different values; logistic regression needs two, "
            "softmax takes more."
        )
    if len(kinds) > max(2, len(table.y) // 2):
        raise InputError(f"The target '{table.target}' has {len(kinds)} different values; use the model 'linear'.")
    return codes.astype(np.float64), tuple(_name(kind) for kind in kinds)


def _name(kind: Any) -> str:
    return f"{kind:g}" if isinstance(kind, float) else str(kind)


def _build_model(model: str, x: Array, y: Array, prior_scale: float, classes: int) -> SmoothModel:
    features = x.shape[1]
    if model == "gaussian-mean":
        covariance = np.cov(x.T).reshape(features, features)
        if np.linalg.matrix_rank(covariance) < features:
            raise InputError("Some columns are sums of multiples of others; leave them out, or there is no inverse.")
        return GaussianMean(prior_scale, torch.from_numpy(covariance))
    if model == "linear":
        residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
        noise = math.sqrt(float(residual @ residual) / max(1, len(y) - features))
        return LinearRegression(features, prior_scale, noise_scale=max(noise, 1e-6))
    if model == "softmax":
        return SoftmaxRegression(features, classes, prior_scale)
    kinds = {"logistic": LogisticRegression, "poisson": PoissonRegression}
    return kinds[model](features, prior_scale)


# --- data too large for memory --------------------------------------------------------------------


@dataclass(frozen=True)
class ParquetData:
    """The numeric columns of a Parquet file and its target, read in streams: a batch of rows at a time."""

    path: Path
    target: str
    batch_size: int = 65536

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise InputError(f"There is no file '{self.path}'.")
        if self.target not in self._names:
            raise InputError(_no_column(self.target, self.path, self._names))

    def __len__(self) -> int:
        return int(self._file().metadata.num_rows)

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for name in self._names if name != self.target)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._file().schema_arrow.names)

    def _file(self) -> Any:
        try:
            return import_parquet().ParquetFile(self.path)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"'{self.path}' is not a Parquet file ({error}).") from None

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._file().iter_batches(self.batch_size):
            yield self._tensors(batch)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at these positions, in one pass that stops after the last of them."""
        wanted, order = indices.sort()
        found_x, found_y, begin = [], [], 0
        for x, y in self.batches():
            here = wanted[(wanted >= begin) & (wanted < begin + len(x))] - begin
            found_x.append(x[here])
            found_y.append(y[here])
            begin += len(x)
            if begin > int(wanted[-1]):
                break
        back = order.argsort()
        return torch.cat(found_x)[back], torch.cat(found_y)[back]

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        return self.rows(random_positions(len(self), size, randomness))

    def _tensors(self, batch: Any) -> tuple[Tensor, Tensor]:
        columns = {}
        for name in self._names:
            column = batch.column(name)
            if column.null_count:
                raise InputError(f"Column '{name}' of '{self.path}' has missing values; fill or remove them.")
            try:
                columns[name] = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(
                    f"Column '{name}' of '{self.path}' holds text; encode it as numbers or leave it out."
                ) from None
        x = np.stack([columns[name] for name in self.features], 1)
        return torch.from_numpy(x), torch.tensor(columns[self.target])
