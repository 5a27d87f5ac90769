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
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import read_json
from pseudocoresets.core.errors import InputError

__all__ = ["PRESETS", "Before", "Preset", "preset"]

PRESETS = ("quick", "paper", "best", "published")
"""``quick`` gives a useful answer in a minute or two on a laptop; the others want a GPU. ``paper``: ours, as in the
docs' tables; ``best``: what was found better since; ``published``: the paper's own method with its own settings."""
NO_DATASET = ""
"""A name for which only those rules hold that are not for chosen data sets."""
NUMBER_PER_IPC = "times_ipc"
LEVELS = dict.fromkeys(("experts", "construction", "sampling"), 1) | dict.fromkeys(
    ("by_sampler", "by_protocol", "sampling_for", "experts_for", "methods", "learning"), 2
)
"""The parts that are mappings, and how many levels of names stand above a value."""

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
    was built; under ``METHOD PROTOCOL``, such as ``gm point``, what holds for one protocol only."""
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
        self, sampler: str | None = None, method: str | None = None, protocol: str = "cold"
    ) -> dict[str, Any]:
        """How a coreset of ``method`` is sampled under ``protocol``, by ``sampler`` or by the preset's own."""
        of_method, of_both = (self.sampling_for.get(name, {}) for name in (method or "", f"{method} {protocol}"))
        own = {**of_method, **self.by_protocol.get(protocol, {}), **of_both}
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
        wrong = _what_is_wrong(rule)
        if wrong is not None:
            raise InputError(f"Rule {number} of the preset '{name}' cannot be used: {wrong}.")
        rules.append(rule)
    return rules


def _what_is_wrong(rule: Any) -> str | None:
    """The first thing in a rule that is not as it should be."""
    if not isinstance(rule, dict):
        return "it is no JSON object"
    known = {entry.name for entry in fields(Preset)} | {"when", "note"}
    if unknown := set(rule) - known:
        return f"'{min(unknown)}' is not one of {', '.join(sorted(known))}"
    for part, levels in LEVELS.items():
        if not _is_mapping(rule.get(part, {}), levels):
            return f"'{part}' must map names to {'values' if levels == 1 else 'settings, and those to values'}"
    counted = (rule, *rule.get("experts_for", {}).values())
    if any(type(each.get("expert_count", 1)) is not int for each in counted):
        return "'expert_count' must be a whole number"
    if type(rule.get("calibration", 0)) is not int:
        return "'calibration' must be a whole number"
    for part in ("default_method", "default_sampler"):
        if not isinstance(rule.get(part, ""), str):
            return f"'{part}' must be a name"
    before = rule.get("before", {})
    if not isinstance(before, dict) or not all(isinstance(given, list) for given in before.values()):
        return "'before' must map methods to lists of constructions"
    if not all(_is_stage(stage) for given in before.values() for stage in given):
        return "a construction of 'before' has a 'method' and may have 'options' and 'learning'"
    return None if _is_condition(rule.get("when", {})) else _CONDITION


_CONDITION = "'when' may have 'dataset' and 'other_than', lists of names, and 'ipc', two whole numbers or one and null"


def _is_condition(when: Any) -> bool:
    if not isinstance(when, dict) or set(when) - {"dataset", "other_than", "ipc"}:
        return False
    lists = (when.get("dataset", []), when.get("other_than", []))
    least, most = ends if isinstance(ends := when.get("ipc", [1, None]), list) and len(ends) == 2 else ("", "")
    named = all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists)
    return named and type(least) is int and (most is None or type(most) is int)


def _is_stage(stage: Any) -> bool:
    known = isinstance(stage, dict) and set(stage) <= {"method", "options", "learning"}
    if not known or not isinstance(stage.get("method"), str):
        return False
    return _is_mapping(stage.get("options") or {}, 1) and _is_mapping(stage.get("learning", {}), 1)


def _is_mapping(value: Any, levels: int) -> bool:
    if levels > 0:
        return isinstance(value, dict) and all(_is_mapping(below, levels - 1) for below in value.values())
    if isinstance(value, dict):
        return set(value) == {NUMBER_PER_IPC} and type(value[NUMBER_PER_IPC]) in (int, float)
    return not isinstance(value, list)


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
