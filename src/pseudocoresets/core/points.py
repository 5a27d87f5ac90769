"""Data sets of points: the full data, in memory or read in streams, and the weighted few that stand for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.text import listed


@runtime_checkable
class FullData(Protocol):
    """All the data, as batches of (x, y) that are read anew at each pass."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The points at these positions."""
        ...

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """``size`` points drawn with replacement."""
        ...


LARGEST_VALUE = 1e30
"""Squares of larger ones, and their sums and products, leave the range of numbers."""

BatchFunction: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""Of a batch of points and targets; what is wanted is its sum over all batches."""


@runtime_checkable
class LargeData(FullData, Protocol):
    """Data that are too many for memory and are read in parts, at several places at once if there are any."""

    @property
    def fingerprint(self) -> str:
        """Of their content."""
        ...

    @property
    def some(self) -> Rows:
        """A uniform subsample that is in memory."""
        ...

    def summed(self, function: BatchFunction) -> tuple[tuple[Tensor, ...], float]:
        """sum f(x, y) over all batches, and the seconds of all who computed it."""
        ...


def sum_over(data: FullData, function: BatchFunction) -> tuple[Tensor, ...]:
    """sum f(x, y) over all batches, each result by itself; one pass."""
    if isinstance(data, LargeData):
        return data.summed(function)[0]
    batches = iter(data.batches())
    total = function(*next(batches))
    for batch in batches:
        total = tuple(first + second for first, second in zip(total, function(*batch), strict=True))
    return total


def content_of(data: FullData) -> Iterable[object]:
    """What data are known by: all their rows, or the hash of those that were read in parts."""
    return [data.fingerprint] if isinstance(data, LargeData) else data.batches()


@runtime_checkable
class NamedColumns(Protocol):
    """A pandas frame."""

    columns: Any


@runtime_checkable
class NamedArrowColumns(Protocol):
    """An Arrow table."""

    column_names: Any


def column_names(table: Any) -> tuple[str, ...]:
    """The names of a table's columns, in order."""
    if isinstance(table, NamedArrowColumns):
        return tuple(str(name) for name in table.column_names)
    if isinstance(table, NamedColumns):
        return tuple(str(name) for name in table.columns)
    if isinstance(table, Mapping):
        return tuple(str(name) for name in table)
    raise InputError(f"A table is a pandas frame, an Arrow table or a mapping of columns; got {type(table).__name__}.")


@dataclass(frozen=True)
class Rows:
    """Data that fit in memory: x (n, features) and y (n,), or (n, classes) for class probabilities.

    Tensors, NumPy arrays, pandas frames and Arrow tables of any number type are taken and become tensors of double
    precision; a column y (n, 1) becomes (n,).
    """

    x: Tensor
    y: Tensor
    batch_size: int = 65536
    columns: tuple[str, ...] = ()
    """The names of the features, where they have some."""

    @classmethod
    def from_table(cls, table: Any, target: str | Sequence[str], intercept: bool = True) -> Rows:
        """Rows of a pandas frame, an Arrow table or a mapping of columns; ``target`` names one column, or more.

        ``intercept`` adds a column of ones, the last.
        """
        names, targets = column_names(table), [target] if isinstance(target, str) else list(target)
        missing = [name for name in targets if name not in names]
        if missing:
            raise InputError(f"There is no column '{missing[0]}'; the columns are {listed(names)}.")
        features = [name for name in names if name not in targets]
        columns = [_numbers(table[name], f"Column '{name}'") for name in features]
        columns += [torch.ones_like(_numbers(table[targets[0]], f"Column '{targets[0]}'"))] * intercept
        if not columns:
            raise InputError("The table has no column beside the target; a model needs at least one feature.")
        y = torch.stack([_numbers(table[name], f"Column '{name}'") for name in targets], 1)
        return cls(torch.stack(columns, 1), y, columns=(*features, *["intercept"] * intercept))

    def __post_init__(self) -> None:
        if not self.columns and isinstance(self.x, NamedColumns | NamedArrowColumns):
            object.__setattr__(self, "columns", column_names(self.x))
        x, y = _numbers(self.x, "x"), _numbers(self.y, "y")
        y = y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y
        if x.ndim != 2 or not x.shape[1] or not 1 <= y.ndim <= 2:
            raise InputError(
                f"Rows need points x (n, features) and targets y (n,); got {tuple(x.shape)} and {tuple(y.shape)}."
            )
        if len(x) != len(y) or not len(x):
            raise InputError(f"Data need as many targets as points, at least one; got {len(x)} and {len(y)}.")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)

    def __len__(self) -> int:
        return len(self.x)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.x.index_select(0, indices), self.y.index_select(0, indices)

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """``size`` rows drawn with replacement, or all of them once where that is no more."""
        return (self.x, self.y) if size >= len(self) else self.rows(random_positions(len(self), size, randomness))


AnyRows: TypeAlias = FullData | tuple[Any, Any] | Any
"""Full data, or a pair (x, y) of tensors or arrays, or x alone where the model looks at no targets."""


def as_rows(data: AnyRows) -> FullData:
    """Rows of a table from whatever holds them."""
    if isinstance(data, FullData):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return Rows(*data)
    x = _numbers(data, "x")
    return Rows(x, torch.zeros(len(x)))


def random_positions(data_size: int, size: int, randomness: Randomness) -> Tensor:
    """``size`` positions in the data, drawn with replacement."""
    device = randomness.device.device
    return torch.randint(data_size, (size,), generator=randomness.device, device=device)


def _numbers(values: Any, name: str) -> Tensor:
    """Numbers in double precision, without a copy where they are that already."""
    if np.iscomplexobj(values) or (isinstance(values, Tensor) and values.is_complex()):
        raise InputError(f"{name} must hold real numbers; got complex ones.")
    try:
        held = values if isinstance(values, Tensor) else np.require(values, np.float64, ["W"])
        numbers = torch.as_tensor(held, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a tensor or an array of numbers ({error}).") from None
    require_moderate(numbers.detach().cpu().numpy(), name)
    return numbers


def require_moderate(values: NDArray[Any], name: str) -> None:
    """Refuse what is not finite, or too large to be squared."""
    largest = float(np.abs(values).max(initial=0.0))
    if not math.isfinite(largest):
        raise InputError(f"{name} holds a value that is not finite; remove that row.")
    if largest > LARGEST_VALUE:
        raise InputError(f"{name} holds a value of size {largest:g}; use units in which none is above {LARGEST_VALUE}.")


@dataclass(frozen=True)
class Points:
    """Weighted data: points x, targets y and weights w; real, with their positions in the full data, or synthetic."""

    x: Tensor
    y: Tensor
    weights: Tensor
    hyperparameters: Mapping[str, Tensor] = field(default_factory=dict)
    """What a method learns beside the points, such as a step size."""
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """What a method's last loss asked to be handed on, such as the places of chains; empty at the first."""
    indices: Tensor | None = None
    """Positions in the full data, of real points."""

    def __len__(self) -> int:
        return len(self.x)

    def detached(self) -> Points:
        """The same points apart from any graph."""
        return replace(
            self,
            x=self.x.detach(),
            y=self.y.detach(),
            weights=self.weights.detach(),
            hyperparameters={name: value.detach() for name, value in self.hyperparameters.items()},
        )


def unit_weights(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=x.dtype)
