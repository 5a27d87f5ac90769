"""What happens where CUDA, cuDNN or Triton do not let themselves be captured: the plain path goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

logger = logging.getLogger(__name__)


def captured(build: Callable[[], T]) -> T | None:
    """What ``build`` captures; None, with one line of warning, where something other than memory is in its way."""
    try:
        return build()
    except Exception as error:  # the plain path computes the same
        first = _first(error)
        if isinstance(first, torch.OutOfMemoryError):
            raise first from None
        logger.warning("The fast path could not be captured (%s); the plain path is used.", str(first).split("\n")[0])
        return None


def _first(error: BaseException) -> BaseException:
    """What went wrong first: the end of a capture that was broken off is an error of its own."""
    return error if error.__context__ is None else _first(error.__context__)
