"""What stands beside one figure of the paper: a coreset, and one way to judge it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pseudocoresets._io.schema import FLAG, NAME, SEED, Constant, Nullable, Number, Object
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.settings import Range
from pseudocoresets.evaluation.report import method_title
from pseudocoresets.methods import METHODS, GradientMethod, build_method
from pseudocoresets.methods.selection import SELECTIONS

CONVNET = "convnet:depth=3,width=128"
NETWORK_OF = {"tiny-imagenet": "convnet:depth=4,width=128"}
"""Where the main experiment's network is another one."""
ROLES = {
    "coreset": "the coreset",
    "control": "random real images, as many, sampled in the same way",
    "starts": "no coreset: chains of zero steps from the same starts",
}


@dataclass(frozen=True)
class Variant:
    """One way of ours to make a coreset."""

    method: str
    title: str
    preset: str = "paper"
    chooses_rate: bool = False
    """Whether the images' learning rate is chosen on held-out data among the paper's."""
    whiten: bool | None = None
    """Whether inputs are whitened; None is as the data set has it."""

    @property
    def available(self) -> bool:
        return self.method in METHODS or self.method in SELECTIONS


def _title(name: str) -> str:
    method = build_method(name) if name in METHODS else None
    return method_title(name, isinstance(method, GradientMethod) and method.learns_labels)


VARIANTS: Mapping[str, Variant] = {
    "published": Variant("cd", "cd as published", "published", chooses_rate=True),
    "best": Variant("bptt", "bptt, our best", "best"),
    **{name: Variant(name, _title(name)) for name in ("fkl", "rkl", "wasserstein", "fkl-hmc", "fkl-kfl", "kip", "mtt")},
    **{
        name: Variant(name, _title(name), whiten=False)
        for name in ("herding", "k-center", "forgetting", "dd", "ld", "gm", "dsa", "dm", "cafe", "cafe-dsa")
    },
}
"""Rivals see images as their publications show them: whitened for kip and mtt, else only normalised."""


@dataclass(frozen=True)
class Made:
    """A coreset: of what, by which variant, and what is different from the variant's own settings."""

    dataset: str
    ipc: int
    variant: str
    network: str = CONVNET
    options: tuple[tuple[str, float], ...] = ()
    """Of the method."""
    augment: bool = True
    seed: int = 0

    @property
    def slug(self) -> str:
        changes = [f"{name}{value:g}" for name, value in self.options] + ([] if self.augment else ["plain"])
        network = [] if self.network == network_for(self.dataset) else [self.network]
        return slug(self.dataset, f"ipc{self.ipc}", self.variant, *network, *changes, f"seed{self.seed}")


@dataclass(frozen=True)
class ReproductionCell:
    """One coreset (or its control, or the chains' starts alone) judged in one way."""

    made: Made
    protocol: str = "cold"
    role: str = "coreset"
    sampler: str | None = None
    """None is that of the variant's preset."""
    network: str | None = None
    """Another network than the one that the coreset was made for."""
    test: str = "clean"
    """``clean``, ``shift``, ``attack``, ``cost`` or ``pictures``."""

    @property
    def slug(self) -> str:
        if self.test in ("cost", "pictures"):
            return self.test
        return slug(*filter(None, (self.protocol, self.sampler, self.network, self.test, self.role)))

    def __str__(self) -> str:
        return f"{self.made.slug} {self.slug}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"made": asdict(self.made) | {"options": dict(self.made.options)}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReproductionCell:
        try:
            made = document["made"]
            options = tuple((str(name), value) for name, value in made["options"].items())
            return cls(**{**document, "made": Made(**{**made, "options": options})})
        except (KeyError, TypeError, AttributeError):
            raise FileFormatError("A record does not say which cell it is of; make it again.") from None

    def seeded(self, seeds: int) -> Iterator[ReproductionCell]:
        """The same with each of the first seeds."""
        for seed in range(seeds):
            yield replace(self, made=replace(self.made, seed=seed))

    def as_role(self, role: str) -> ReproductionCell:
        return replace(self, role=role)


CELL_KIND = Object(
    {
        "made": Object(
            {
                "dataset": NAME,
                "ipc": Number(Range(1, 1e9), whole=True),
                "variant": Constant(tuple(VARIANTS)),
                "options": Object(others=Number()),
            },
            {"network": NAME, "augment": FLAG, "seed": SEED},
            closed=True,
        )
    },
    {
        "protocol": NAME,
        "role": Constant(tuple(ROLES)),
        "sampler": Nullable(NAME),
        "network": Nullable(NAME),
        "test": Constant(("clean", "shift", "attack", "cost", "pictures")),
    },
    closed=True,
)
"""What a file says of its cell."""


def network_for(dataset: str) -> str:
    """The network of the main experiment on a data set."""
    return NETWORK_OF.get(dataset, CONVNET)


def slug(*words: str) -> str:
    """Words as a name for files and anchors."""
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words)
