"""Units of work and who does them: this process, others on this machine, or those of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, Protocol, TypeVar

from pseudocoresets.core.errors import WorkerLostError

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


def refuse_loss(item: object, why: str) -> NoReturn:
    """What becomes of a unit that no worker brought to its end, where all units are needed."""
    raise WorkerLostError(why)


class Mapper(Protocol):
    """Computes a function of each item somewhere.

    Results come in the order of the items, and an item is asked for when there is somebody to work on it. An exception
    of the function ends the loop. A unit whose worker is lost is given to another; if that goes on, its result is what
    ``lost`` makes of the item and a sentence.
    """

    def __call__(
        self, function: Callable[[I], R], items: Iterable[I], lost: Callable[[I, str], R] = refuse_loss
    ) -> Iterator[R]: ...


def in_this_process(
    function: Callable[[I], R], items: Iterable[I], lost: Callable[[I, str], R] = refuse_loss
) -> Iterator[R]:
    """One after another, here."""
    return map(function, items)
