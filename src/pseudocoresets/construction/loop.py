"""The one loop: ask the method for a loss, step the points against its gradient, checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS, CheckpointKeeper
from pseudocoresets.construction.learner import Diverged, Learner
from pseudocoresets.construction.privacy import private_terms
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import ImageTask, Task
from pseudocoresets.core.devices import PeakMemory, resolve_device, threads_for, within_memory
from pseudocoresets.core.errors import DeviceMemoryError, DivergenceError, InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import AnyAugmentation
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Budget
from pseudocoresets.methods import GradientMethod, Problem
from pseudocoresets.models.networks import AnyNetwork, Network, as_network
from pseudocoresets.sources.experts import Experts, require_experts_for

CHECK_INTERVAL = 10
WATCHED_PARTS = 5
"""A construction that is watched is shown at the end of each part but the last."""
Watch: TypeAlias = Callable[[int, Coreset], None]
"""Is shown an iteration and the coreset as it then is."""


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


def run_construction(
    data: Dataset,
    experts: Experts | None,
    name: str,
    method: GradientMethod,
    settings: ConstructionSettings,
    *,
    network: AnyNetwork | None = None,
    augmentation: AnyAugmentation | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    rescue: str | os.PathLike[str] | None = None,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    privacy: Budget | None = None,
) -> Construction:
    """The same with everything spelt out, and with the start, the history and the cost in the answer.

    The checkpoint stays until the caller, having saved the coreset, discards it. If the energy diverges, the last
    good coreset is written to ``rescue`` and takes the checkpoint's place.
    """
    about, method = image_task(data, experts, network, name, method, augmentation, privacy)
    return learn(
        about,
        name,
        method,
        settings,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        rescue=rescue,
        initial=initial,
        device=device,
        backend=backend,
        progress=progress,
        watch=watch,
    )


def image_task(
    data: Dataset,
    experts: Experts | None,
    network: AnyNetwork | None,
    name: str,
    method: GradientMethod,
    augmentation: AnyAugmentation | None = None,
    privacy: Budget | None = None,
) -> tuple[ImageTask, GradientMethod]:
    """The task of learning images, once it is sure that the method gets the experts it needs, and the right ones.

    With the task comes the method in the form that it takes: a private one where there is a budget.
    """
    if experts is not None:
        require_experts_for(experts, data)
    elif method.needs_source:
        raise InputError(f"The method '{name}' needs experts; train some with 'bpc experts'.")
    terms, method = private_terms(data, experts, method, privacy, augmentation)
    return ImageTask(data, network_for(experts, network, data), experts, augmentation, terms), method


def learn(
    about: Task,
    name: str,
    method: GradientMethod,
    settings: ConstructionSettings,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    rescue: str | os.PathLike[str] | None = None,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Construction:
    """Learn the points of a task by a method; ``watch`` is shown the coreset a few times on the way."""
    device = resolve_device(device)
    recorded = configuration(method, settings)
    start = (
        about.start(settings, name, recorded, device)
        if initial is None
        else about.continued(initial, settings, name, recorded)
    )
    problem = about.problem(settings, device, backend or choose_backend(device))
    learner = Learner(about.parameterisation(start, method, settings), method, settings, device)
    identity = "" if checkpoint is None else run_identity(about, name, method, settings, start)
    keeper = CheckpointKeeper(checkpoint, checkpoint_seconds, identity)
    keeper.restore(learner, settings, method.state_shapes(problem))
    first, began = learner.iteration, time.monotonic()
    with PeakMemory(device) as memory, threads_for(start.x.shape[1:]):
        try:
            show = None if watch is None else lambda: watch(learner.iteration, learned_coreset(learner, start))
            _iterate(learner, method, problem, settings, keeper, progress or Silent(), name, show)
        except Diverged:
            advice = _divergence_advice(learner, settings, name)
            raise DivergenceError(advice + _rescue(learner, start, rescue, keeper)) from None
    seconds = (time.monotonic() - began) / max(1, learner.iteration - first)
    made = learned_coreset(learner, start)
    return Construction(made, start, learner.history(), seconds, memory.bytes, keeper.path)


def learned_coreset(learner: Learner, start: Coreset) -> Coreset:
    """What was learned, with the provenance of where it started."""
    points = learner.learned_points()
    recorded = dict(start.configuration)
    if points.hyperparameters:
        recorded["learned"] = {name: value.tolist() for name, value in points.hyperparameters.items()}
    return replace(
        start, x=points.x.cpu(), y=points.y.cpu(), weights=points.weights.cpu(), indices=None, configuration=recorded
    )


def run_identity(about: Task, name: str, method: GradientMethod, settings: ConstructionSettings, start: Coreset) -> str:
    """What must agree for a checkpoint to be continued; the number of iterations may grow."""
    chosen = {key: value for key, value in asdict(settings).items() if key != "iterations"}
    return fingerprint(about.identity(), name, method, chosen, start.x, start.y, start.weights)


def network_for(experts: Experts | None, network: AnyNetwork | None, data: Dataset) -> Network:
    """The experts' network, or the one that is given where there are none."""
    if experts is not None:
        return experts.network
    if network is None:
        raise InputError("Without experts, say which network the coreset is for, such as network='convnet'.")
    return as_network(network, data.shape, len(data.classes))


def configuration(method: GradientMethod, settings: ConstructionSettings) -> dict[str, Any]:
    """What a coreset file records of how it was made."""
    return {"settings": asdict(settings), "method": method.options()}


def watched_iterations(iterations: int) -> list[int]:
    """When a construction is shown to who watches it, in order; the start and the end are known anyway."""
    marks = {part * iterations // WATCHED_PARTS for part in range(1, WATCHED_PARTS)}
    return sorted(mark for mark in marks if 0 < mark < iterations)


def _iterate(
    learner: Learner,
    method: GradientMethod,
    problem: Problem,
    settings: ConstructionSettings,
    keeper: CheckpointKeeper,
    progress: Progress,
    name: str,
    show: Callable[[], None] | None,
) -> None:
    """Iterate to the end, checkpointing; an interrupted run keeps the last state that was found sound."""
    randomness = Randomness.for_purpose(settings.seed, "construct", device=learner.device)
    watched = watched_iterations(settings.iterations)
    advice = "lower --ipc, the chains or the steps of the method; the same command goes on from its checkpoint"
    with task(progress, f"learning the coreset by {name}", settings.iterations):
        progress.advance(learner.iteration)
        try:
            with within_memory(f"an iteration of '{name}'", advice):
                while learner.iteration < settings.iterations:
                    randomness.reseed(settings.seed, "construct", learner.iteration)
                    learner.step(method, problem, randomness)
                    progress.advance()
                    if learner.iteration % CHECK_INTERVAL == 0 or learner.iteration == settings.iterations:
                        learner.check()
                        keeper.save_if_due(learner, settings)
                    if show is not None and learner.iteration in watched:
                        show()
        except (KeyboardInterrupt, DeviceMemoryError):
            keeper.save(learner, settings)
            raise
        keeper.save(learner, settings)


def _rescue(learner: Learner, start: Coreset, path: str | os.PathLike[str] | None, keeper: CheckpointKeeper) -> str:
    """Go back to the last state that was found sound, and keep it in a file if there is a place for one."""
    learner.restore(learner.sound)
    if path is None:
        return ""
    learned_coreset(learner, start).save(path, large_whitening=False)
    keeper.discard()
    return f" The last good coreset, of iteration {learner.iteration}, is in '{path}'."


def _divergence_advice(learner: Learner, settings: ConstructionSettings, name: str) -> str:
    return (
        f"The energy diverged by iteration {learner.iteration} of '{name}'; lower the learning rate of the images "
        f"(now {settings.learning_rate:g}) or the step size of the chain."
    )
