"""What is promised: a budget, the noisy sums that spend it, and what they add up to.

A mechanism M is (epsilon, delta)-differentially private if for all data D and D' of which one is the other with one
example made void, and all sets S of outcomes,

    P(M(D) in S) <= e^epsilon P(M(D') in S) + delta.

A void example adds nothing to any sum, so that the number of examples is the same and may be known. For noisy sums this
is the relation of adding or removing an example, which accountants know. What is computed from M's outcome alone has
the same guarantee.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from decimal import ROUND_CEILING, Context
from typing import Any

from pseudocoresets._io.schema import HASH, NAME, SIZE, ListOf, Number, Object
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.settings import Range, check_ranges, setting

EPSILON = Range(0, 1000, above=True)
DELTA = Range(0, 0.5, above=True)
RATE = Range(0, 1, above=True)
RELEASE_KIND = Object(
    {
        "what": NAME,
        "noise_multiplier": Number(Range(0, 1e9, above=True)),
        "sampling_rate": Number(RATE),
        "steps": SIZE,
        "identity": HASH,
    }
)
GUARANTEE_KIND = Object(
    {
        "epsilon": Number(EPSILON),
        "delta": Number(DELTA),
        "accountant": NAME,
        "examples": SIZE,
        "releases": ListOf(RELEASE_KIND, 1000),
    }
)
"""What files record of a guarantee."""


@dataclass(frozen=True)
class Budget:
    """How much may become known of any one training example: epsilon and delta."""

    epsilon: float = setting(1.0, "Epsilon of the whole result.", within=EPSILON)
    delta: float = setting(1e-5, "Delta of the whole result.", within=DELTA)

    def __post_init__(self) -> None:
        check_ranges(self)

    def require_for(self, examples: int) -> None:
        """A delta of 1 / n would allow one of n examples to be published."""
        if self.delta * examples >= 1:
            raise InputError(
                f"With {examples:,} training examples delta must be below {1 / examples:.1g}, or one of them could be "
                f"published whole; got {self.delta:g}."
            )


def new_identity() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Release:
    """A sum over examples, published with noise ``steps`` times.

    Each example adds a vector of norm at most c, or nothing: it takes part with probability ``sampling_rate``, afresh
    each time. The noise is N(0, (noise_multiplier c)^2) in each coordinate.
    """

    what: str
    noise_multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1
    identity: str = field(default_factory=new_identity)
    """Tells whether two guarantees speak of the same release."""


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for each of ``examples`` training examples, and what it was spent on."""

    epsilon: float
    delta: float
    accountant: str
    examples: int
    releases: tuple[Release, ...]

    def __str__(self) -> str:
        """One sentence that says what is promised, to whom and about what."""
        return (
            "Whatever anyone does with this result, and whatever else they know, the probability of any consequence is "
            f"at most {_at_least(math.exp(self.epsilon), 3)} times what it would have been had any one of the "
            f"{self.examples:,} training examples (an image with its label) been left out, plus "
            f"{_at_least(self.delta, 4)} (differential privacy with epsilon = {_at_least(self.epsilon, 4)} and delta = "
            f"{_at_least(self.delta, 4)}, by {self.accountant}); their number, the names of the classes and all "
            "settings count as public."
        )

    def renewed(self) -> Guarantee:
        """The same promise for releases that are made again, with other noise."""
        return replace(self, releases=tuple(replace(each, identity=new_identity()) for each in self.releases))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "releases": [asdict(release) for release in self.releases]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Guarantee:
        names = ("epsilon", "delta", "accountant", "examples")
        releases = tuple(Release(**{key: each[key] for key in RELEASE_KIND.required}) for each in document["releases"])
        return cls(**{name: document[name] for name in names}, releases=releases)


def _at_least(value: float, digits: int) -> str:
    """The value in so many significant digits, never less than it is."""
    context = Context(prec=digits, rounding=ROUND_CEILING)
    return f"{float(context.create_decimal(repr(value))):.{digits}g}"
