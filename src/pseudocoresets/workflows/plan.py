"""From what a user says, and a preset for the rest, to a plan: everything that decides the outcome of a run."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pseudocoresets import presets
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import parse_value
from pseudocoresets.core.settings import build_settings
from pseudocoresets.core.text import shortened
from pseudocoresets.data import FOLDER_PREFIX, find_entry, full_name
from pseudocoresets.dp import Budget
from pseudocoresets.evaluation.calibration import require_unseen_by_starts
from pseudocoresets.evaluation.report import CONTROL_DRAWS
from pseudocoresets.inference.settings import PROTOCOLS, SamplingSettings
from pseudocoresets.methods import METHODS, GradientMethod, build_gradient_method, method_options_from, require_method
from pseudocoresets.methods.renamed import present_name
from pseudocoresets.methods.selection import SELECTIONS, selection_of_start
from pseudocoresets.models.networks import require_network
from pseudocoresets.presets import Before, Preset
from pseudocoresets.sources.experts import ExpertSettings

SHARED_BY_STAGES = ("ipc", "seed", "initialisation", "formation", "augment", "mixed_kinds", "weights", "prior_scale")


@dataclass(frozen=True)
class Stage:
    """One construction of a plan."""

    method: str
    method_options: Mapping[str, Any]
    construction: ConstructionSettings

    @property
    def learns(self) -> bool:
        """Whether its points are learned, and not real images that are selected."""
        return self.method not in SELECTIONS

    def gradient_method(self) -> GradientMethod:
        return build_gradient_method(self.method, self.method_options)

    def implementation(self) -> object:
        """What carries it out, whose code counts where it is the user's own."""
        return self.gradient_method() if self.learns else SELECTIONS[self.method]

    def passes(self) -> float:
        """Of each point through the network, as far as the options of the method tell."""
        options = self.gradient_method().options()
        counts = [options.get(name) for name in ("chains", "steps", "unrolls")]
        return self.construction.iterations * math.prod(count for count in counts if isinstance(count, int))


@dataclass(frozen=True)
class Plan:
    """Everything that decides the outcome of a run."""

    dataset: str
    method: str
    network: str
    protocol: str
    expert_count: int
    experts: ExpertSettings
    construction: ConstructionSettings
    sampling: SamplingSettings
    method_options: Mapping[str, Any]
    control_draws: int = CONTROL_DRAWS
    before: tuple[Stage, ...] = ()
    """Constructions before the plan's own."""
    calibration: int = 0
    """Training images that choose how sure predictions should be; none where they stay as they are."""

    def as_json(self) -> dict[str, Any]:
        """Without calibration where there is none, as before there was any: records stay those of the same plan."""
        return {name: value for name, value in asdict(self).items() if value or name != "calibration"}

    def defaults(self) -> dict[str, Any]:
        """What a record that lacks a setting means: the default of a new setting is what was done without it."""
        options = {} if self.method in SELECTIONS else build_gradient_method(self.method, {}).options()
        settings = {"experts": ExpertSettings, "construction": ConstructionSettings, "sampling": SamplingSettings}
        parts = {name: asdict(kind()) for name, kind in settings.items()}
        return {**parts, "method_options": options, "before": (), "calibration": 0}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All constructions in their order; each starts from the coreset of the one before it."""
        return (*self.before, Stage(self.method, self.method_options, self.construction))

    def needs_experts(self) -> bool:
        """Whether its protocol, its method or one before draws from experts."""
        return self.protocol == "expert" or self.drawing_from_experts() is not None

    def drawing_from_experts(self) -> str | None:
        """The first of its selections and methods that draws from experts."""
        first = self.stages[0].construction.initialisation
        if selection_of_start(first).needs_experts:
            return first
        drawing = (stage for stage in self.stages if stage.learns and stage.gradient_method().needs_source)
        return next((stage.method for stage in drawing), None)

    def with_seed(self, seed: int) -> Plan:
        """The same plan with its constructions and samples drawn anew; the experts stay."""
        return replace(
            self,
            construction=replace(self.construction, seed=seed),
            sampling=replace(self.sampling, seed=seed),
            before=tuple(replace(stage, construction=replace(stage.construction, seed=seed)) for stage in self.before),
        )


def make_plan(
    *,
    dataset: str,
    method: str | None = None,
    network: str = "convnet",
    ipc: int = 1,
    protocol: str = "cold",
    sampler: str | None = None,
    preset: str | os.PathLike[str] | Preset = "quick",
    seed: int = 0,
    expert_count: int | None = None,
    experts: Mapping[str, Any] | None = None,
    construction: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
    built_by: str | None = None,
    elsewhere: bool = False,
    calibration: int | None = None,
) -> Plan:
    """A plan whose names are known to be right before anything long begins.

    No ``method`` is the preset's, and no ``sampler`` likewise. The posterior is sampled as one of a coreset of
    ``built_by``, which is ``method`` unless another made the coreset, and ``elsewhere`` with another network than it
    was made for. No ``calibration`` is the preset's, and none for chains that start from experts.
    """
    require_dataset(dataset)
    dataset = full_name(dataset)
    require_network(network)
    if protocol not in PROTOCOLS:
        raise InputError(f"The protocol must be one of {', '.join(PROTOCOLS)}; got '{protocol}'.")
    chosen = presets.preset(preset, dataset, ipc)
    method = chosen.default_method if method is None else method
    require_method(method)
    chosen = chosen.trained_for(method)
    options = chosen.method_options(method) | method_options_from(method, method_options or {})
    if method not in SELECTIONS:
        build_gradient_method(method, options)
    elif method_options:
        raise InputError(f"The method '{method}' has no options; got '{shortened(next(iter(method_options)))}'.")
    if calibration is None:
        calibration = 0 if protocol == "expert" else chosen.calibration
    if calibration < 0:
        raise InputError(f"The number of images to calibrate on must be 0 or more; got {calibration}.")
    if calibration > 0:
        require_unseen_by_starts(protocol)
    chain = build_settings(
        SamplingSettings,
        {**chosen.sampling_by(sampler, built_by or method, protocol, elsewhere), **(sampling or {}), "seed": seed},
        "The sampling",
    )
    chain.require_for(protocol)
    initialisation = {"initialisation": method} if method in SELECTIONS else {}
    own = {**(construction or {}), "ipc": ipc, "seed": seed}
    selection_of_start(own.get("initialisation", "random"))
    return Plan(
        dataset=dataset,
        method=method,
        network=network,
        protocol=protocol,
        expert_count=chosen.expert_count if expert_count is None else expert_count,
        experts=expert_settings(chosen, {**(experts or {}), "seed": seed}),
        construction=_construction({**chosen.construction_for(method), **own, **initialisation}),
        sampling=chain,
        method_options=options,
        before=tuple(_stage(before, chosen, own) for before in chosen.before.get(method, ())),
        calibration=calibration,
    )


def expert_settings(chosen: Preset, given: Mapping[str, Any]) -> ExpertSettings:
    """How experts are trained: as ``given``, and as the preset has it for the rest."""
    return build_settings(ExpertSettings, {**chosen.experts, **given}, "The training of experts")


def budget_of(epsilon: float | None, delta: float | None) -> Budget | None:
    """The budget of differential privacy that a user asks for; none without an epsilon."""
    if epsilon is None:
        if delta is not None:
            raise InputError("A delta belongs to private results; give --epsilon too.")
        return None
    return Budget(epsilon) if delta is None else Budget(epsilon, delta)


def _construction(values: Mapping[str, Any]) -> ConstructionSettings:
    return build_settings(ConstructionSettings, values, "The construction")


def _stage(before: Before, chosen: Preset, own: Mapping[str, Any]) -> Stage:
    """What the preset puts before a method, with the settings that say what is to be made, not how it is learned."""
    require_method(before.method)
    shared = {key: value for key, value in own.items() if key in SHARED_BY_STAGES}
    options = chosen.method_options(before.method) if before.options is None else before.options
    settings = _construction({**chosen.construction_for(before.method), **before.learning, **shared})
    return Stage(before.method, options, settings)


def require_dataset(name: str) -> None:
    """A data set of the catalogue, or a folder, which is looked into when it is read."""
    if not name.startswith(FOLDER_PREFIX):
        find_entry(name)


def parse_options(items: Iterable[str]) -> dict[str, Any]:
    """``["expert_epochs=0", "kernel=sghmc"]`` as a mapping; numbers, true, false and none are recognised."""
    parsed: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise InputError(f"Options of a method are written --set NAME=VALUE; got '{item}'.")
        parsed[key] = _value(value)
    return parsed


def options_by_method(items: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of several methods: ``cd.steps=30`` is that of one, ``steps=30`` that of all which have it."""
    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for key, value in parse_options(items).items():
        method, dot, option = key.rpartition(".")
        if dot and method not in methods:
            raise InputError(f"'--set {key}' is for the method '{method}', which is not one of {', '.join(methods)}.")
        takers = [method] if dot else [name for name in methods if _takes(name, option)]
        if not takers:
            raise InputError(f"None of {', '.join(methods)} has the option '{option}'. {_known_options(methods)}")
        for name in takers:
            found[name][option] = value
    return found


def _known_options(methods: Sequence[str]) -> str:
    """The options of several methods in words."""
    known = {name: ", ".join(inspect.signature(METHODS[name]).parameters) for name in methods if name in METHODS}
    return " ".join(f"Those of {name}: {options or 'none'}." for name, options in known.items())


def _takes(method: str, option: str) -> bool:
    require_method(method)
    return method in METHODS and present_name(option) in inspect.signature(METHODS[method]).parameters


def _value(text: str) -> Any:
    plain = {"true": True, "false": False, "none": None}
    return plain[text.lower()] if text.lower() in plain else parse_value(text)
