"""Settings that work, by data set and images per class, as documents that a user can read, copy and pass.

A preset is a JSON list of rules. A rule may say ``when`` it holds: for some data sets (``dataset``), for all but some
(``other_than``), from so many images per class to so many (``ipc``, null for no end). The rules that hold are merged in
their order: a later one wins, and mappings are merged key by key. What a rule says is what ``Preset`` has fields for;
a number that grows with the images per class is written ``{"times_ipc": 0.5}``, and ``note`` is for the reader. A rule
that only says ``{"extends": "paper"}`` stands for all rules of that preset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import read_json
from pseudocoresets._io.schema import NAME, PLAIN, ListOf, Mismatch, Nullable, Number, Object, OneOf, Row, Text
from pseudocoresets.core.errors import InputError

__all__ = ["PRESETS", "Before", "Preset", "preset"]

PRESETS = ("quick", "paper", "best", "published")
"""``quick`` gives a useful answer in a minute or two on a laptop; the others want a GPU. ``paper``: ours, as in the
docs' tables; ``best``: what was found better since; ``published``: the paper's own method with its own settings."""
NO_DATASET = ""
"""A name for which only those rules hold that are not for chosen data sets."""
NUMBER_PER_IPC = "times_ipc"
ELSEWHERE = "elsewhere"
WHOLE = Number(whole=True)
VALUE = OneOf((PLAIN, Object({NUMBER_PER_IPC: Number()}, closed=True)))
SETTINGS = Object(others=VALUE)
BY_NAME = Object(others=SETTINGS)
BEFORE = Object({"method": NAME}, {"options": Nullable(SETTINGS), "learning": SETTINGS}, closed=True)
NAMES = ListOf(NAME, 10_000)
RULE = Object(
    optional={
        "when": Object(
            optional={"dataset": NAMES, "other_than": NAMES, "ipc": Row((WHOLE, Nullable(WHOLE)))}, closed=True
        ),
        "note": Text(),
        **dict.fromkeys(("expert_count", "calibration"), WHOLE),
        **dict.fromkeys(("default_method", "default_sampler"), NAME),
        **dict.fromkeys(("experts", "construction", "sampling"), SETTINGS),
        **dict.fromkeys(("methods", "learning", "sampling_for", "by_sampler", "by_protocol"), BY_NAME),
        "experts_for": Object(others=Object(optional={"expert_count": WHOLE}, others=VALUE)),
        "before": Object(others=ListOf(BEFORE, 100)),
    },
    closed=True,
)
"""What a rule may say."""

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Before:
    """A construction that comes before another, which starts from its coreset."""

    method: str
    options: Settings | None = None
    """Of the method; None: those that the preset has for it."""
    learning: Settings = field(default_factory=dict)
    """What it does otherwise than ``construction_for(method)`` says."""


@dataclass(frozen=True)
class Preset:
    """Settings for each part of a run, as keyword arguments of that part."""

    expert_count: int = 5
    experts: Settings = field(default_factory=dict)
    experts_for: Mapping[str, Settings] = field(default_factory=dict)
    """How experts are trained by method, and how many (``expert_count``), where it is otherwise than above."""
    construction: Settings = field(default_factory=dict)
    sampling: Settings = field(default_factory=dict)
    methods: Mapping[str, Settings] = field(default_factory=dict)
    """Options by method; a method that is not named has its own defaults."""
    learning: Mapping[str, Settings] = field(default_factory=dict)
    """Settings of the construction by method, where one learns in another way than ``construction`` says."""
    sampling_for: Mapping[str, Settings] = field(default_factory=dict)
    """Settings of the sampler by method, the sampler itself among them, so that a posterior is sampled as its coreset
    was built; under ``METHOD PROTOCOL``, such as ``gm point``, what holds for one protocol only, and under
    ``METHOD elsewhere`` what holds for other networks than the coreset's."""
    by_sampler: Mapping[str, Settings] = field(default_factory=dict)
    """What belongs to one sampler only, such as its step size."""
    by_protocol: Mapping[str, Settings] = field(default_factory=dict)
    """What belongs to one protocol only, such as how long a chain that starts from an expert is."""
    before: Mapping[str, tuple[Before, ...]] = field(default_factory=dict)
    """By method, what makes the coreset that it starts from, in its order; the others start from real images."""
    calibration: int = 0
    """Training images that choose how sure the average over all chains should be; none where it stays as it is."""
    default_method: str = "cd"
    default_sampler: str = "langevin"

    def construction_for(self, method: str) -> dict[str, Any]:
        return {**self.construction, **self.learning.get(method, {})}

    def trained_for(self, method: str) -> Preset:
        """The same with the experts that ``method`` draws from."""
        own = dict(self.experts_for.get(method, {}))
        return replace(self, expert_count=own.pop("expert_count", self.expert_count), experts={**self.experts, **own})

    def method_options(self, method: str) -> dict[str, Any]:
        return dict(self.methods.get(method, {}))

    def sampling_by(
        self,
        sampler: str | None = None,
        method: str | None = None,
        protocol: str = "cold",
        elsewhere: bool = False,
    ) -> dict[str, Any]:
        """How a coreset of ``method`` is sampled under ``protocol``, by ``sampler`` or by the preset's own.

        ``elsewhere`` is with another network than the coreset was made for.
        """
        of_method, of_both, of_others = (
            self.sampling_for.get(name, {}) for name in (method or "", f"{method} {protocol}", f"{method} {ELSEWHERE}")
        )
        own = {**of_method, **(of_others if elsewhere else {}), **self.by_protocol.get(protocol, {}), **of_both}
        name = own.get("sampler", self.default_sampler) if sampler is None else sampler
        return {**self.sampling, **self.by_sampler.get(name.partition(":")[0], {}), **own, "sampler": name}

    def as_json(self) -> dict[str, Any]:
        """A rule that holds everywhere: written to a file, it is a preset."""
        return asdict(self)


def preset(name: str | os.PathLike[str] | Preset = "quick", dataset: str = "digits", ipc: int = 1) -> Preset:
    """The settings of a preset, which is named or a JSON file, for one data set and size."""
    if isinstance(name, Preset):
        return name
    merged: dict[str, Any] = {}
    for rule in _read(name):
        if _holds(rule.get("when", {}), dataset, ipc):
            merged = _merged(merged, {key: value for key, value in rule.items() if key not in ("when", "note")})
    scaled = _at(merged, ipc)
    stages = {method: tuple(Before(**each) for each in given) for method, given in scaled.pop("before", {}).items()}
    return Preset(**scaled, before=stages)


def _read(name: str | os.PathLike[str]) -> list[dict[str, Any]]:
    if name in PRESETS:
        place = Path(str(files(__package__) / f"{name}.json"))
    elif (place := Path(name)).suffix != ".json" and not place.is_file():
        raise InputError(f"The preset must be one of {', '.join(PRESETS)}, or a JSON file; got '{name}'.")
    document = read_json(place)
    rules: list[dict[str, Any]] = []
    for number, rule in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(rule, dict) and set(rule) == {"extends"} and rule["extends"] in PRESETS:
            rules += _read(rule["extends"])
            continue
        try:
            RULE.check(rule, "it")
        except Mismatch as wrong:
            raise InputError(f"Rule {number} of the preset '{name}' cannot be used: {wrong}.") from None
        rules.append(rule)
    return rules


def _holds(when: Mapping[str, Any], dataset: str, ipc: int) -> bool:
    least, most = when.get("ipc", (ipc, None))
    named = dataset in when.get("dataset", [dataset]) and dataset not in when.get("other_than", [])
    return named and least <= ipc and (most is None or ipc <= most)


def _merged(first: Settings, second: Settings) -> dict[str, Any]:
    """Both, the second where they differ; mappings key by key."""
    both = {
        key: _merged(first[key], value) if isinstance(value, dict) and isinstance(first.get(key), dict) else value
        for key, value in second.items()
    }
    return {**first, **both}


def _at(value: Any, ipc: int) -> Any:
    """The same with every number that grows with the images per class as it is at ``ipc``."""
    if isinstance(value, list):
        return [_at(each, ipc) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {NUMBER_PER_IPC}:
        return value[NUMBER_PER_IPC] * ipc
    return {key: _at(below, ipc) for key, below in value.items()}
