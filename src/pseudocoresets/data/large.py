"""Tables larger than memory: Parquet files in parts, each of which is read by whoever works on it.

A pass over the data is a sum over parts, sum_parts sum_batches f(x, y). Its terms are computed wherever a mapper has
them computed, and kept in a folder under the content of the part and of f: a pass that was broken off goes on from
there, and one that was made before is read.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets._io.schema import (
    FLAG,
    HASH,
    NON_NEGATIVE,
    SIZE,
    ListOf,
    Mismatch,
    Nullable,
    Number,
    Object,
    OneOf,
    Text,
)
from pseudocoresets.core.devices import host_memory
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.fingerprint import DIGEST_BYTES, fingerprint
from pseudocoresets.core.mapping import Mapper, in_this_process
from pseudocoresets.core.points import BatchFunction, Rows, random_positions, require_moderate
from pseudocoresets.core.seeds import Randomness, derive_seed
from pseudocoresets.core.text import listed
from pseudocoresets.data.tables import (
    EMBEDDED,
    HELD_OUT_SHARE,
    LARGEST_WIDTH,
    STANDARDISED,
    SYNTHETIC,
    PosteriorData,
    class_name,
    constant_target,
    parquet_batches,
    parquet_file,
    require_column,
)
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.glm import LinearRegression, SoftmaxRegression
from pseudocoresets.models.named import build_model

Array: TypeAlias = NDArray[Any]
Kept: TypeAlias = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""Tensors, and what JSON holds of the rest."""
Check: TypeAlias = Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]
SUMMARY = Object(
    {
        "content": HASH,
        "rows": SIZE,
        "kinds": Nullable(OneOf((ListOf(Number(), 100), ListOf(Text(), 100)))),
        "text": FLAG,
        "whole": FLAG,
    }
)
TERMS = Object({"seconds": NON_NEGATIVE})

PART_ROWS = 1_000_000
"""The most rows of a part, if row groups are no larger."""
BATCH_ROWS = 16_384
HELD_OUT_ROWS = SOME_ROWS = 100_000
"""The most rows that are held out, and those that are kept in memory to draw from."""
BYTES_PER_VALUE = 80
"""What a value of a table takes while it is read into memory as a whole."""
MOST_CLASSES = 100
SMALLEST_EIGENVALUE = 1e-10
"""Of the features' correlations, below which one of them is a combination of others."""
CLASSES, COUNTS = ("logistic", "softmax"), ("poisson", "negative-binomial")
LARGE_MODELS = (*CLASSES, *COUNTS, "linear", "gaussian", "student-t")


def is_large(source: str) -> bool:
    """Whether data are read in parts: a folder of Parquet files, or a file that would fill half of the memory."""
    path = Path(source)
    if source in EMBEDDED or source == SYNTHETIC:
        return False
    if path.is_dir():
        return True
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    about = parquet_file(path).metadata
    return bool(about.num_rows * about.num_columns * BYTES_PER_VALUE > host_memory() / 2)


def load_large_data(
    source: str,
    model: str = "auto",
    target: str | None = None,
    prior_scale: float = 1.0,
    seed: int = 0,
    mapper: Mapper = in_this_process,
    store: Path | None = None,
) -> PosteriorData:
    """As ``load_posterior_data``: features standardised, an intercept, and a fifth, at most 100,000 rows, held out.

    Means, deviations and classes are those of all rows. ``store`` is a folder for the terms of passes.
    """
    if target is None:
        raise InputError(f"Name the target column of '{source}' with --target.")
    table = LargeTable.open(Path(source).absolute(), target, seed)
    found = list(mapper(partial(_summary, table, store), range(len(table.parts))))
    whole = _Whole.of(found)
    name = whole.suggested_model() if model == "auto" else model
    prepared = whole.preparation(table, name)
    held_out, some = (prepared.rows_of(table, found, kind) for kind in ("held_out", "some"))
    rows = LargeRows(PartReader(table, prepared, tuple(each.content for each in found)), Rows(*some), mapper, store)
    built: SmoothModel
    if name == "softmax":  # some rows may not be of all classes
        built = SoftmaxRegression(rows.some.x.shape[1], len(prepared.classes), prior_scale)
    else:
        built = build_model(name, rows.some, prior_scale)
    if isinstance(built, LinearRegression):
        built = replace(built, noise_scale=max(1e-6, whole.residual_deviation()))
    classes = tuple(map(class_name, prepared.classes))
    return PosteriorData(built, rows, held_out, Path(source).name, name, classes, prepared.units(table))


# --- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Row groups of one file, which is known by its size and the time of its last change."""

    path: Path
    groups: tuple[int, ...]
    rows: int
    stamp: tuple[int, int]


@dataclass(frozen=True)
class LargeTable:
    """Which rows there are and which of them are held out; small, so that it can be sent to whoever reads a part."""

    parts: tuple[Part, ...]
    features: tuple[str, ...]
    target: str
    seed: int = 0
    batch_rows: int = BATCH_ROWS

    @classmethod
    def open(cls, source: Path, target: str, seed: int = 0) -> LargeTable:
        """A Parquet file, or all those of a folder."""
        paths = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
        if not paths or not paths[0].is_file():
            raise InputError(
                f"'{source}' is neither a Parquet file nor a folder of such files, which are read in parts."
            )
        names: list[str] = list(parquet_file(paths[0]).schema_arrow.names)
        require_column(target, source, names)
        if len(names) < 2 or len(names) > LARGEST_WIDTH:
            raise InputError(f"'{source}' has {len(names) - 1} features; between 1 and {LARGEST_WIDTH:,} can be used.")
        parts = tuple(part for path in paths for part in _parts_of(path, set(names)))
        if sum(part.rows for part in parts) < 5:
            raise InputError(f"'{source}' has fewer than 5 rows, which are needed to hold some out.")
        return cls(parts, tuple(name for name in names if name != target), target, seed, BATCH_ROWS)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def held_out_rows(self) -> int:
        return min(HELD_OUT_ROWS, round(HELD_OUT_SHARE * self.rows))

    @cached_property
    def first_rows(self) -> Array:
        """Where each part begins among the rows that are not held out, and where the last ends."""
        kept = [part.rows - len(self.held_out(index)) for index, part in enumerate(self.parts)]
        return np.concatenate([[0], np.cumsum(kept)])

    def held_out(self, index: int) -> Array:
        """Positions in the part, ascending."""
        return self._drawn(index)[0]

    def some(self, index: int) -> Array:
        """Positions of other rows, which are kept in memory."""
        return self._drawn(index)[1]

    def _drawn(self, index: int) -> tuple[Array, Array]:
        """A share of each part in proportion to its rows, which together are as many as wanted."""
        ends = np.cumsum([0, *(part.rows for part in self.parts)])[[index, index + 1]] / self.rows
        spare = self.rows - self.held_out_rows
        counts = [int(np.diff(np.rint(ends * total))[0]) for total in (self.held_out_rows, min(SOME_ROWS, spare))]
        stream = np.random.default_rng(derive_seed(self.seed, "rows of a part", index))
        most = self.parts[index].rows
        drawn = stream.choice(most, min(most, sum(counts)), replace=False)
        return np.sort(drawn[: counts[0]]), np.sort(drawn[counts[0] :])

    def batches(self, index: int, only: Array | None = None) -> Iterator[tuple[int, Any]]:
        """Arrow batches of a part after the number of rows before them; those without any row in ``only`` are skipped.

        Of the others such rows are left.
        """
        part, begin = self.parts[index], 0
        names = [*self.features, self.target]
        for batch in parquet_batches(part.path, self.batch_rows, part.groups, names):
            end = begin + batch.num_rows
            if only is None:
                yield begin, batch
            else:
                here = only[np.searchsorted(only, begin) : np.searchsorted(only, end)] - begin
                if len(here):
                    yield begin, batch.take(here)
            begin = end
        if begin != part.rows:
            raise FileFormatError(f"'{part.path}' is a damaged Parquet file (rows are missing, or there are too many).")

    def points(self, batch: Any) -> Array:
        """The features of a batch, (rows, features)."""
        x = np.empty((batch.num_rows, len(self.features)))
        for column, name in enumerate(self.features):
            x[:, column] = _numbers(batch.column(name), name)
        return x


def _parts_of(path: Path, names: set[str]) -> Iterator[Part]:
    file, about = parquet_file(path), path.stat()
    if set(file.schema_arrow.names) != names:
        raise InputError(f"'{path}' has other columns than the first file of the folder; give all files the same.")
    stamp = about.st_size, about.st_mtime_ns
    groups: list[int] = []
    rows = 0
    for group in range(file.metadata.num_row_groups):
        more = file.metadata.row_group(group).num_rows
        if groups and rows + more > PART_ROWS:
            yield Part(path, tuple(groups), rows, stamp)
            groups, rows = [], 0
        groups.append(group)
        rows += more
    if rows:
        yield Part(path, tuple(groups), rows, stamp)


def _numbers(column: Any, name: str) -> Array:
    values = _values(column, name)
    if values.dtype.kind not in "biuf":
        raise InputError(f"Column '{name}' holds text; encode it as numbers or leave it out.")
    require_moderate(values, f"Column '{name}'")
    return values


def _values(column: Any, name: str) -> Array:
    """As numbers, or as text."""
    if column.null_count:
        raise InputError(f"Column '{name}' has missing values; fill or remove them.")
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    return values if values.dtype.kind in "biuf" else values.astype(str)


# --- what the first pass finds ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Moments:
    """Number, means and centred products sum (z - mean) (z - mean)^T of rows z = (x, y)."""

    count: int
    mean: Array
    products: Array

    @classmethod
    def of(cls, z: Array) -> _Moments:
        centred = z - z.mean(0)
        return cls(len(z), z.mean(0), centred.T @ centred)

    def __add__(self, other: _Moments) -> _Moments:
        count, gap = self.count + other.count, other.mean - self.mean
        share = other.count / count
        shift = self.count * share * np.outer(gap, gap)
        return _Moments(count, self.mean + share * gap, self.products + other.products + shift)


@dataclass(frozen=True)
class _Summary:
    """Of one part; ``held_out`` and ``some`` are rows (x, y) as they are in the file."""

    content: str
    moments: _Moments
    kinds: tuple[Any, ...] | None
    """The different values of the target, if they are few."""
    whole: bool
    """Whether targets are 0, 1, 2, ..."""
    held_out: tuple[Array, Array]
    some: tuple[Array, Array]


def _summary(table: LargeTable, store: Path | None, index: int) -> _Summary:
    known = fingerprint("summary", table.parts[index], table.features, table.target, table.seed, table.held_out(index))
    tensors, document = _kept(store, known, lambda: _summarised(table, index), partial(_check_summary, table, index))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    kinds = None if document["kinds"] is None else tuple(document["kinds"])

    def drawn(name: str) -> tuple[Array, Array]:
        y = arrays[f"{name}_y"]
        return arrays[f"{name}_x"], np.array(kinds)[y.astype(int)] if document["text"] else y

    moments = _Moments(document["rows"], arrays["mean"], arrays["products"])
    return _Summary(document["content"], moments, kinds, document["whole"], drawn("held_out"), drawn("some"))


def _summarised(table: LargeTable, index: int) -> Kept:
    """One pass: moments, kinds of targets, a hash of the content, and the rows that were drawn."""
    digests = [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in (*table.features, table.target)]
    moments = _Moments(0, np.zeros(1), np.zeros(1))
    kinds: set[Any] = set()
    text = whole = False
    positions = {"held_out": table.held_out(index), "some": table.some(index)}
    picked: dict[str, list[tuple[Array, Array]]] = {name: [] for name in positions}
    for begin, batch in table.batches(index):
        x, y = table.points(batch), _values(batch.column(table.target), table.target)
        text = y.dtype.kind == "U"
        if not text:
            require_moderate(y, f"The target '{table.target}'")
        for digest, column in zip(digests, (*x.T, y), strict=True):
            digest.update(np.ascontiguousarray(column).view(np.uint8).data)
        if len(kinds) <= MOST_CLASSES:
            kinds.update(np.unique(y).tolist())
        here = _Moments.of(np.column_stack([x, np.zeros(len(x)) if text else y]))
        whole = (begin == 0 or whole) and not text and bool(((y >= 0) & (y == np.rint(y))).all())
        moments = here if begin == 0 else moments + here
        for name, every in positions.items():
            own = every[np.searchsorted(every, begin) : np.searchsorted(every, begin + len(x))] - begin
            picked[name].append((x[own], y[own]))
    listed = None if len(kinds) > MOST_CLASSES else sorted(kinds)
    if text and listed is None:
        raise InputError(f"The target '{table.target}' holds more than {MOST_CLASSES} different texts; give numbers.")
    tensors = {"mean": torch.from_numpy(moments.mean), "products": torch.from_numpy(moments.products)}
    for name, rows in picked.items():
        y = np.concatenate([each for _, each in rows])
        codes = np.searchsorted(np.array(listed), y) if text else y
        tensors[f"{name}_x"] = torch.from_numpy(np.concatenate([each for each, _ in rows]))
        tensors[f"{name}_y"] = torch.from_numpy(codes.astype(np.float64))
    content = fingerprint([digest.hexdigest() for digest in digests])
    about = {"content": content, "rows": moments.count, "kinds": listed, "text": text, "whole": whole}
    return tensors, about


def _check_summary(table: LargeTable, index: int, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Refuse what no pass over the part can have found."""
    SUMMARY.check(document, "its metadata")
    width, kinds = len(table.features), document["kinds"]
    shapes = {"mean": (width + 1,), "products": (width + 1, width + 1)}
    for name, positions in {"held_out": table.held_out(index), "some": table.some(index)}.items():
        shapes |= {f"{name}_x": (len(positions), width), f"{name}_y": (len(positions),)}
    _check_tensors(tensors, shapes)
    codes = torch.cat([tensors["held_out_y"], tensors["some_y"]])
    if document["rows"] != table.parts[index].rows or kinds == []:
        raise Mismatch("it is of other rows")
    if document["text"] and not (kinds and bool(((codes >= 0) & (codes < len(kinds))).all())):
        raise Mismatch("it has classes without a name")


def _check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        found = tensors.get(name)
        if found is None or found.shape != shape or found.dtype != torch.float64 or not bool(found.isfinite().all()):
            raise Mismatch(f"'{name}' is not {shape} finite numbers")


def _kept(store: Path | None, identity: str, compute: Callable[[], Kept], check: Check) -> Kept:
    """What the store holds under this identity, if ``check`` passes it, or what ``compute`` finds, which is kept."""
    path = None if store is None else store / f"{identity}.safetensors"
    if path is not None and path.is_file():
        with suppress(FileFormatError):
            kept = read_tensors(path)
            check(*kept)
            return kept
    found = compute()
    if path is not None:
        write_tensors(path, *found)
    return found


@dataclass(frozen=True)
class _Whole:
    """What is known of all parts together."""

    moments: _Moments
    kinds: tuple[Any, ...] | None
    whole: bool

    @classmethod
    def of(cls, parts: Sequence[_Summary]) -> _Whole:
        moments = parts[0].moments
        for part in parts[1:]:
            moments = moments + part.moments
        few = [part.kinds for part in parts if part.kinds is not None]
        together = sorted({kind for kinds in few for kind in kinds})
        kinds = tuple(together) if len(few) == len(parts) and len(together) <= MOST_CLASSES else None
        return cls(moments, kinds, all(part.whole for part in parts))

    @property
    def _is_text(self) -> bool:
        return self.kinds is not None and isinstance(self.kinds[0], str)

    def suggested_model(self) -> str:
        if self.kinds is not None and len(self.kinds) <= 2:
            return "logistic"
        return "softmax" if self._is_text or (self.whole and self.kinds and len(self.kinds) <= 20) else "linear"

    def preparation(self, table: LargeTable, model: str) -> Preparation:
        """How rows become points and targets of the model, which they must be able to be."""
        target, kinds = table.target, self.kinds
        if model not in LARGE_MODELS:
            raise InputError(f"Data that are read in parts take the models {', '.join(LARGE_MODELS)}; got '{model}'.")
        if model in CLASSES and (kinds is None or len(kinds) < 2 or (model == "logistic" and len(kinds) > 2)):
            found = f"more than {MOST_CLASSES}" if kinds is None else len(kinds)
            wanted = "two" if model == "logistic" else f"2 to {MOST_CLASSES}"
            raise InputError(f"The target '{target}' has {found} different values; the model '{model}' needs {wanted}.")
        if model not in CLASSES and self._is_text:
            raise InputError(f"The target '{target}' holds text; the model '{model}' needs numbers.")
        if model in COUNTS and not self.whole:
            raise InputError(f"The target '{target}' must hold counts (0, 1, 2, ...) for the model '{model}'.")
        deviation = np.sqrt(self.moments.products.diagonal() / self.moments.count)
        self._check_features(table, deviation[:-1])
        standardised = model in STANDARDISED
        if standardised and not deviation[-1]:
            raise InputError(constant_target(target))
        shift, unit = (self.moments.mean[-1], deviation[-1]) if standardised else (0.0, 1.0)
        classes = kinds if model in CLASSES and kinds is not None else ()
        return Preparation(self.moments.mean[:-1], deviation[:-1], float(shift), float(unit), classes)

    def _check_features(self, table: LargeTable, deviation: Array) -> None:
        for name, value, mean in zip(table.features, deviation, self.moments.mean, strict=False):
            if not value > 1e-12 * abs(mean):
                raise InputError(f"Column '{name}' is constant ({mean:g}); remove it, an intercept is added anyway.")
        correlation = self.moments.products[:-1, :-1] / np.outer(deviation, deviation) / self.moments.count
        values, vectors = np.linalg.eigh(correlation)
        if values[0] < SMALLEST_EIGENVALUE * values[-1]:
            involved = [table.features[i] for i in np.flatnonzero(np.abs(vectors[:, 0]) > 1e-3)]
            raise InputError(f"The columns {listed(involved, 6)} are combinations of one another; remove one of them.")

    def residual_deviation(self) -> float:
        """Of the least-squares fit, in units of the target's deviation."""
        products, count = self.moments.products, self.moments.count
        explained = products[-1, :-1] @ np.linalg.solve(products[:-1, :-1], products[:-1, -1])
        share = max(0.0, 1 - explained / products[-1, -1])
        return float(np.sqrt(share * count / max(1, count - len(products))))


@dataclass(frozen=True)
class Preparation:
    """From the values of a file to points x = ((values - mean) / deviation, 1) and targets."""

    mean: Array
    deviation: Array
    shift: float
    unit: float
    classes: tuple[Any, ...]

    def points(self, values: Array) -> Tensor:
        x = np.empty((len(values), values.shape[1] + 1))
        np.subtract(values, self.mean, out=x[:, :-1])
        x[:, :-1] /= self.deviation
        x[:, -1] = 1.0
        return torch.from_numpy(x)

    def targets(self, values: Array) -> Tensor:
        """Classes by number, or numbers in their unit."""
        if self.classes:
            return torch.from_numpy(np.searchsorted(np.array(self.classes), values).astype(np.float64))
        return torch.from_numpy((values.astype(np.float64) - self.shift) / self.unit)

    def units(self, table: LargeTable) -> dict[str, tuple[float, float]]:
        """(shift, unit) of the features, and of the target where it is standardised."""
        pairs = zip(self.mean.tolist(), self.deviation.tolist(), strict=True)
        target = {} if (self.shift, self.unit) == (0.0, 1.0) else {table.target: (self.shift, self.unit)}
        return dict(zip(table.features, pairs, strict=True)) | target

    def rows_of(self, table: LargeTable, parts: Sequence[_Summary], kind: str) -> tuple[Tensor, Tensor]:
        """Rows that the first pass has drawn."""
        drawn = [part.held_out if kind == "held_out" else part.some for part in parts]
        x, y = (np.concatenate(each) for each in zip(*drawn, strict=True))
        return self.points(x), self.targets(y)


# --- the data of a posterior -----------------------------------------------------------------------


@dataclass(frozen=True)
class PartReader:
    """All that is needed to read a part as points and targets, without the rows that are held out."""

    table: LargeTable
    prepared: Preparation
    contents: tuple[str, ...]
    """A hash of each part."""

    def batches(self, index: int) -> Iterator[tuple[Tensor, Tensor]]:
        held_out = self.table.held_out(index)
        for begin, batch in self.table.batches(index):
            x, y = self._tensors(batch)
            own = held_out[np.searchsorted(held_out, begin) : np.searchsorted(held_out, begin + len(x))] - begin
            if len(own):
                left = np.ones(len(x), dtype=bool)
                left[own] = False
                x, y = x[left], y[left]
            yield x, y

    def rows(self, index: int, positions: Array) -> tuple[Tensor, Tensor]:
        """Those at ascending positions among the rows that are not held out."""
        kept = np.delete(np.arange(self.table.parts[index].rows), self.table.held_out(index))
        found = [self._tensors(batch) for _, batch in self.table.batches(index, kept[positions])]
        x, y = zip(*found, strict=True)
        return torch.cat(x), torch.cat(y)

    def identity(self, index: int) -> str:
        return fingerprint(self.contents[index], self.prepared, self.table.held_out(index))

    def _tensors(self, batch: Any) -> tuple[Tensor, Tensor]:
        values = _values(batch.column(self.table.target), self.table.target)
        return self.prepared.points(self.table.points(batch)), self.prepared.targets(values)


@dataclass(frozen=True)
class LargeRows:
    """The training part of a large table, read anew at each pass, each part by whoever ``mapper`` gives it to."""

    reader: PartReader
    some: Rows
    """A uniform subsample, from which batches are drawn."""
    mapper: Mapper = field(default=in_this_process, repr=False, compare=False)
    store: Path | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return int(self.reader.table.first_rows[-1])

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.reader.table.features, "intercept")

    @cached_property
    def fingerprint(self) -> str:
        """Of the content of all parts."""
        return fingerprint([self.reader.identity(index) for index in range(len(self.reader.contents))])

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(len(self.reader.table.parts)):
            yield from self.reader.batches(index)

    def summed(self, function: BatchFunction) -> tuple[tuple[Tensor, ...], float]:
        """Added up in the order of the parts, so that it does not matter who computed what."""
        work = partial(_part_sum, self.reader, function, self.store)
        terms = self.mapper(work, range(len(self.reader.table.parts)))
        total, seconds = next(terms)
        for more, time_of_part in terms:
            total = tuple(first + second for first, second in zip(total, more, strict=True))
            seconds += time_of_part
        return total, seconds

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at these positions, in one pass over the parts that hold them."""
        wanted, order = indices.sort()
        bounds = np.searchsorted(wanted.numpy(), self.reader.table.first_rows)
        units = [
            (index, wanted[begin:end].numpy() - self.reader.table.first_rows[index])
            for index, (begin, end) in enumerate(pairwise(bounds))
            if end > begin
        ]
        x, y = zip(*self.mapper(partial(_part_rows, self.reader, self.store), units), strict=True)
        back = order.argsort()
        return torch.cat(x)[back], torch.cat(y)[back]

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        return self.some.batch(size, randomness)


def _part_sum(
    reader: PartReader, function: BatchFunction, store: Path | None, index: int
) -> tuple[tuple[Tensor, ...], float]:
    def compute() -> Kept:
        began, total = (time.perf_counter(), time.process_time()), None
        with torch.no_grad():
            for x, y in reader.batches(index):
                more = function(x, y)
                total = more if total is None else tuple(a + b for a, b in zip(total, more, strict=True))
        terms = {str(number): term for number, term in enumerate(total or ())}
        processor = time.process_time() - began[1]
        return terms, {"seconds": time.perf_counter() - began[0], "processor_seconds": processor}

    def check(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        TERMS.check(document, "its metadata")
        if set(tensors) != {str(number) for number in range(len(tensors))}:
            raise Mismatch("its terms are not numbered")

    tensors, document = _kept(store, fingerprint("sum", reader.identity(index), function), compute, check)
    return tuple(tensors[str(number)] for number in range(len(tensors))), document["seconds"]


def _part_rows(reader: PartReader, store: Path | None, unit: tuple[int, Array]) -> tuple[Tensor, Tensor]:
    index, positions = unit

    def compute() -> Kept:
        x, y = reader.rows(index, positions)
        return {"x": x, "y": y}, {}

    def check(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        width = len(reader.table.features) + 1
        _check_tensors(tensors, {"x": (len(positions), width), "y": (len(positions),)})

    tensors, _ = _kept(store, fingerprint("rows", reader.identity(index), positions), compute, check)
    return tensors["x"], tensors["y"]


@dataclass(frozen=True)
class ParquetData:
    """The numbers of Parquet files as they are, a file or a folder of them, read in streams: a batch at a time."""

    path: Path
    target: str
    batch_size: int = 65536
    table: LargeTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = LargeTable.open(Path(self.path), self.target)
        object.__setattr__(self, "table", replace(table, batch_rows=self.batch_size))

    def __len__(self) -> int:
        return self.table.rows

    @property
    def features(self) -> tuple[str, ...]:
        return self.table.features

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(len(self.table.parts)):
            for _, batch in self.table.batches(index):
                y = _numbers(batch.column(self.target), self.target).astype(np.float64)
                yield torch.from_numpy(self.table.points(batch)), torch.from_numpy(y)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at these positions, in one pass that stops after the last of them."""
        wanted, order = indices.sort()
        found, begin = [], 0
        for x, y in self.batches():
            here = wanted[(wanted >= begin) & (wanted < begin + len(x))] - begin
            found.append((x[here], y[here]))
            begin += len(x)
            if begin > int(wanted[-1]):
                break
        back = order.argsort()
        x, y = (torch.cat(parts)[back] for parts in zip(*found, strict=True))
        return x, y

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        return self.rows(random_positions(len(self), size, randomness))
