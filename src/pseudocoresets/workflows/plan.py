"""From what was typed, and a preset for the rest, to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry
from pseudocoresets.data import FOLDER_PREFIX, find_entry
from pseudocoresets.inference.sampling import PROTOCOLS
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.methods import METHODS, build_gradient_method
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.networks import NETWORKS, parse_name
from pseudocoresets.sources.experts import ExpertSettings
from pseudocoresets.workflows.presets import Before, Preset, preset_for
from pseudocoresets.workflows.run import Plan, Stage

SHARED_BY_STAGES = ("ipc", "seed", "initialisation", "augment", "mixed_kinds", "weights", "prior_scale")


def make_plan(
    *,
    dataset: str,
    method: str | None,
    network: str,
    ipc: int,
    protocol: str,
    sampler: str | None,
    preset: str,
    seed: int,
    expert_count: int | None = None,
    experts: Mapping[str, Any] | None = None,
    construction: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan whose names are known to be right before anything long begins.

    No ``method`` is the preset's, and no ``sampler`` likewise.
    """
    known_dataset(dataset)
    NETWORKS[parse_name(network, "network")[0]]
    if protocol not in PROTOCOLS:
        raise InputError(f"The protocol must be one of {', '.join(PROTOCOLS)}; got '{protocol}'.")
    chosen = preset_for(preset, dataset, ipc)
    method = chosen.default_method if method is None else method
    known_method(method)
    options = chosen.method_options(method) | dict(method_options or {})
    if method not in SELECTIONS:
        build_gradient_method(method, options)
    initialisation = {"initialisation": method} if method in SELECTIONS else {}
    own = {**(construction or {}), "ipc": ipc, "seed": seed}
    return Plan(
        dataset=dataset,
        method=method,
        network=network,
        protocol=protocol,
        expert_count=chosen.expert_count if expert_count is None else expert_count,
        experts=ExpertSettings(**{**chosen.experts, **(experts or {}), "seed": seed}),
        construction=ConstructionSettings(**{**chosen.construction_for(method), **initialisation, **own}),
        sampling=SamplingSettings(**{**chosen.sampling_by(sampler), **(sampling or {}), "seed": seed}),
        method_options=options,
        before=tuple(_stage(before, chosen, own) for before in chosen.before.get(method, ())),
    )


def _stage(before: Before, preset: Preset, own: Mapping[str, Any]) -> Stage:
    """What the preset puts before a method, with the settings that say what is to be made, not how it is learned."""
    shared = {key: value for key, value in own.items() if key in SHARED_BY_STAGES}
    learning = {**preset.construction_for(before.method), "iterations": before.iterations}
    if before.learning_rate is not None:
        learning["learning_rate"] = before.learning_rate
    options = preset.method_options(before.method) if before.options is None else before.options
    return Stage(before.method, options, ConstructionSettings(**{**learning, **shared}))


def known_dataset(name: str) -> None:
    """A data set of the catalogue, or a folder, which is looked into when it is read."""
    if not name.startswith(FOLDER_PREFIX):
        find_entry(name)


def known_method(name: str) -> None:
    """A method is a divergence or a selection of real images; anything else is an error that suggests the nearest."""
    Registry("method", dict.fromkeys((*METHODS, *SELECTIONS)))[name]
