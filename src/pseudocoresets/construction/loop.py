"""The one loop: ask the method for a loss, step the points against its gradient, checkpoint."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pseudocoresets.construction.checkpoint import CheckpointKeeper
from pseudocoresets.construction.learner import Diverged, Learner
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.devices import PeakMemory, device_memory_error, resolve_device
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.settings import check_options
from pseudocoresets.coreset import Coreset, require_same_shape
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods import METHODS, Method, Problem, RealData
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, NetworkSpec, build_network
from pseudocoresets.sources.experts import Experts, require_experts_for

CHECK_INTERVAL = 10
CHECKPOINT_SECONDS = 5.0


@dataclass(frozen=True)
class Construction:
    """A finished construction: the coreset, what it started from, and what was recorded on the way."""

    coreset: Coreset
    initial: Coreset
    history: list[dict[str, float]]
    seconds_per_iteration: float = 0.0
    peak_memory: int = 0
    """Bytes: allocated on the device, or resident on the host where there is none."""
    checkpoint: Path | None = None
    """Where a later process would find this construction; it stays until ``discard_checkpoint``."""
    before: Construction | None = None
    """The construction whose coreset this one started from, if it belongs to the same job."""

    def discard_checkpoint(self) -> None:
        """Remove the checkpoint, and that of the construction before, once the coreset itself is safe."""
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)
        if self.before is not None:
            self.before.discard_checkpoint()


def construct(
    data: Dataset,
    experts: Experts | None,
    method: str | Method = "cd",
    ipc: int = 1,
    *,
    network: str | Network | None = None,
    method_options: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Coreset:
    """A pseudo-coreset of ``data`` with ``ipc`` images per class.

    ``method`` is a name (with ``method_options``) or any object with a ``loss``. ``settings`` are those of
    ``ConstructionSettings``. A method that needs no experts (``bptt``) takes None for them, and a ``network``. With
    ``checkpoint``, written every ``checkpoint_seconds``, a killed run goes on from there; ``initial`` continues from a
    saved coreset.
    """
    name = method if isinstance(method, str) else type(method).__name__
    built = build_method(method, method_options or {}) if isinstance(method, str) else method
    chosen = _settings(ipc, settings)
    made = run_construction(
        data,
        experts,
        name,
        built,
        chosen,
        network=network,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        initial=initial,
        device=device,
        progress=progress,
    )
    made.discard_checkpoint()
    return made.coreset


def run_construction(
    data: Dataset,
    experts: Experts | None,
    name: str,
    method: Method,
    settings: ConstructionSettings,
    *,
    network: str | Network | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    rescue: str | os.PathLike[str] | None = None,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> Construction:
    """The same with everything spelt out, and with the start, the history and the cost in the answer.

    The checkpoint stays until the caller, having saved the coreset, discards it. If the energy diverges, the last
    good coreset is written to ``rescue`` and takes the checkpoint's place.
    """
    if experts is not None:
        require_experts_for(experts, data.name)
    elif needs_experts(method):
        raise InputError(f"The method '{name}' needs experts; train some with 'bpc experts'.")
    used = network_for(experts, network, data)
    device = resolve_device(device)
    recorded = configuration(method, settings)
    if initial is None:
        start = real_coreset(data, settings, used.spec, name, recorded)
    else:
        start = _continued(initial, used.spec, name, settings.seed, recorded)
    require_same_shape(start, data)
    problem = _problem(data, experts, used, settings, device)
    learner = Learner(start, method, settings, device)
    fingerprint = _fingerprint(data, experts, used, name, method, settings, start)
    keeper = CheckpointKeeper(checkpoint, checkpoint_seconds, fingerprint)
    keeper.restore(learner, settings.iterations)
    first, began = learner.iteration, time.monotonic()
    with PeakMemory(device) as memory:
        try:
            _learn(learner, method, problem, settings, keeper, progress or Silent(), name)
        except Diverged:
            advice = _divergence_advice(learner, settings, name)
            raise DivergenceError(advice + _rescue(learner, start, rescue, keeper)) from None
    seconds = (time.monotonic() - began) / max(1, learner.iteration - first)
    return Construction(learner.coreset(start), start, learner.history(), seconds, memory.bytes, keeper.path)


def needs_experts(method: Method) -> bool:
    """Whether a method draws from experts; it does unless its ``needs_experts`` says otherwise."""
    return bool(getattr(method, "needs_experts", True))


def network_for(experts: Experts | None, network: str | Network | None, data: Dataset) -> Network:
    """The experts' network, or the one that is named where there are none."""
    if experts is not None:
        return experts.network
    if network is None:
        raise InputError("Without experts, say which network the coreset is for, such as network='convnet'.")
    return build_network(network, data.shape, len(data.classes)) if isinstance(network, str) else network


def real_coreset(
    data: Dataset,
    settings: ConstructionSettings,
    network: NetworkSpec | None,
    method: str,
    recorded: Mapping[str, Any] | None = None,
) -> Coreset:
    """Real images chosen by ``settings.initialisation``: where a construction starts, and the control."""
    index = SELECTIONS[settings.initialisation](data.train, settings.ipc, settings.seed)
    size = len(data.train)
    weights = uniform_weights(len(index), size) if settings.weights == "full" else torch.ones(len(index))
    return Coreset(
        images=data.transform(data.train.images[index]),
        labels=data.train.labels[index],
        weights=weights,
        transform=data.transform,
        classes=data.classes,
        data_size=size,
        source=data.name,
        method=method,
        seed=settings.seed,
        network=network,
        configuration=recorded or {"settings": asdict(settings)},
        flippable=data.flippable,
    )


def _continued(initial: Coreset, network: NetworkSpec, method: str, seed: int, recorded: Mapping[str, Any]) -> Coreset:
    """The points of ``initial`` as the start of another construction, which remembers how they were made."""
    origin = {"method": initial.method, "configuration": dict(initial.configuration)}
    return replace(initial, network=network, method=method, seed=seed, configuration={**recorded, "initial": origin})


def configuration(method: Method, settings: ConstructionSettings) -> dict[str, Any]:
    """What a coreset file records of how it was made."""
    options: dict[str, Any] = asdict(method) if is_dataclass(method) and not isinstance(method, type) else {}
    return {"settings": asdict(settings), "method": options}


def build_method(method: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with these options."""
    build = METHODS[method]
    check_options(build, options, f"The method '{method}'")
    return build(**options)


def _settings(ipc: int, settings: Mapping[str, Any]) -> ConstructionSettings:
    known = {entry.name for entry in fields(ConstructionSettings)}
    unknown = set(settings) - known
    if unknown:
        raise InputError(f"Unknown settings: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(known))}.")
    return ConstructionSettings(ipc=ipc, **settings)


def _problem(
    data: Dataset, experts: Experts | None, network: Network, settings: ConstructionSettings, device: torch.device
) -> Problem:
    model = Classifier(network, settings.prior_scale)

    @cache
    def real_data() -> RealData:
        return RealData(data.train.images.to(device), data.train.labels.to(device), data.transform.to(device))

    return Problem(
        energy=Energy(model, len(data.train), settings.temperature),
        experts=experts,
        real_data=real_data,
        augmentation=dsa(data.flippable, settings.mixed_kinds) if settings.augment else None,
    )


def _learn(
    learner: Learner,
    method: Method,
    problem: Problem,
    settings: ConstructionSettings,
    keeper: CheckpointKeeper,
    progress: Progress,
    name: str,
) -> None:
    """Iterate to the end, checkpointing; an interrupted run keeps the last state that was found sound."""
    randomness = Randomness.for_purpose(settings.seed, "construct", device=learner.device)
    with task(progress, f"coreset by {name}", settings.iterations):
        progress.advance(learner.iteration)
        try:
            while learner.iteration < settings.iterations:
                randomness.reseed(settings.seed, "construct", learner.iteration)
                learner.step(method, problem, randomness)
                progress.advance()
                if learner.iteration % CHECK_INTERVAL == 0 or learner.iteration == settings.iterations:
                    learner.check()
                    keeper.save_if_due(learner)
        except KeyboardInterrupt:
            learner.return_to_sound()
            keeper.save(learner)
            raise
        except torch.OutOfMemoryError as error:
            learner.return_to_sound()
            keeper.save(learner)
            advice = "lower --ipc, the chains or the steps of the method; the same command goes on from its checkpoint"
            raise device_memory_error(f"an iteration of '{name}'", advice, error) from None
        keeper.save(learner)


def _rescue(learner: Learner, start: Coreset, path: str | os.PathLike[str] | None, keeper: CheckpointKeeper) -> str:
    """Go back to the last state that was found sound, and keep it in a file if there is a place for one."""
    learner.return_to_sound()
    if path is None:
        return ""
    learner.coreset(start).save(path)
    keeper.discard()
    return f" The last good coreset, of iteration {learner.iteration}, is in '{path}'."


def _divergence_advice(learner: Learner, settings: ConstructionSettings, name: str) -> str:
    return (
        f"The energy diverged by iteration {learner.iteration} of '{name}'; lower the learning rate of the images "
        f"(now {settings.learning_rate:g}) or the step size of the chain."
    )


def _fingerprint(
    data: Dataset,
    experts: Experts | None,
    network: Network,
    name: str,
    method: Method,
    settings: ConstructionSettings,
    start: Coreset,
) -> str:
    """What must agree for a checkpoint to be continued; the number of iterations may grow."""
    chosen = {key: value for key, value in asdict(settings).items() if key != "iterations"}
    return json.dumps(
        {
            "dataset": data.name,
            "size": len(data.train),
            "experts": None if experts is None else asdict(experts.settings) | {"count": len(experts)},
            "network": network.spec.as_json(),
            "method": [name, configuration(method, settings)["method"]],
            "settings": chosen,
            "start": float(start.images.double().sum()),
        },
        sort_keys=True,
    )
