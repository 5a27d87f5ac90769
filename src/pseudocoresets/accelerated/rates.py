"""How a step of a captured chain goes."""

from __future__ import annotations

import math
from typing import NamedTuple


class Rates(NamedTuple):
    """One step: v <- momentum v + grad U(theta) + noise N(0, I);  theta <- theta - step_size v."""

    step_size: float
    noise: float = 0.0
    momentum: float = 0.0


def sampling_rates(
    step_size: float, temperature: float, momentum: float = 0.0, last_step_size: float | None = None
) -> Rates:
    """A step of SGHMC, whose velocity is -eta v, or, without momentum, of Langevin.

    noise = sqrt(2 (1 - mu) T / eta). A step size that differs from the last leaves the velocity as it was: mu v is
    taken times last / eta.
    """
    noise = math.sqrt(2 * (1 - momentum) * temperature / step_size)
    last = step_size if last_step_size is None else last_step_size
    return Rates(step_size, noise, momentum * last / step_size)
