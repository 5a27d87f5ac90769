"""The front door: a coreset of images or of rows, by any method."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from pseudocoresets import presets
from pseudocoresets.backends import Backend
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.loop import Construction, image_task, learn, network_for
from pseudocoresets.construction.privacy import NO_PRIVATE_SELECTION, are_secret, private_settings
from pseudocoresets.construction.rows import RowTask
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import InputError, RenamedWarning
from pseudocoresets.core.points import AnyRows, as_rows
from pseudocoresets.core.progress import Progress, by_default
from pseudocoresets.core.settings import build_settings
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import AnyAugmentation
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Budget
from pseudocoresets.methods import GradientMethod, Method, Solver, build_gradient_method, require_method
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.functions import as_smooth
from pseudocoresets.models.named import build_model
from pseudocoresets.models.networks import AnyNetwork, as_network
from pseudocoresets.presets import NO_DATASET, Preset
from pseudocoresets.sources.experts import Experts, require_experts_for

WHOSE = "The construction"


def construct(
    data: Dataset | AnyRows,
    source: PosteriorSource | None = None,
    method: str | Method = "cd",
    ipc: int = 1,
    *,
    model: Model | str | None = None,
    size: int = 20,
    preset: str | os.PathLike[str] | Preset = "quick",
    network: AnyNetwork | None = None,
    augmentation: AnyAugmentation | None = None,
    method_options: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    initial: Coreset | None = None,
    check: bool = True,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    privacy: Budget | None = None,
    **settings: Any,
) -> Coreset:
    """A pseudo-coreset of ``data``: ``ipc`` images per class, or ``size`` rows for a ``model`` that is no network.

    Args:
        data: The full data.
        source: Samples of the full posterior: experts for a network (a method that needs none, such as ``bptt``, takes
            a ``network`` instead); for a model, draws of the Gaussian nearest to the posterior where none is given.
        method: A name, with ``method_options``, or a method.
        ipc: Images per class.
        model: The model of rows, with ``size`` rows to find: log_likelihood(theta, x, y) per datum, log_prior(theta)
            and size, its number of parameters; or the name of one (:func:`pseudocoresets.models.build_model`).
        preset: Where options and settings that are not given come from, as in the command.
        network: Which network the coreset is for; with experts it may be left out, and must be theirs.
        augmentation: Of images, in place of differentiable Siamese augmentation.
        checkpoint: Where a killed run goes on, written every ``checkpoint_seconds``.
        initial: A coreset to go on from.
        check: Whether rows are measured before they are returned, so that a method that does worse than a uniform
            subsample or a Hilbert coreset of the same size gives way to it; ``configuration["checked"]`` says what was
            measured and what was returned.
        backend: How to compute; chosen for the device where none is given.
        progress: Who is told how far it is; ``Silent()`` for nobody.
        privacy: A budget of differential privacy that the method spends on its own noisy reading of the data, which
            ``dm`` can. From private experts and from data with a guarantee, methods need none.
        settings: Those of ``ConstructionSettings``.
    """
    if "experts" in settings:
        warnings.warn(
            "construct takes experts as source=...; experts=... goes with the next version.", RenamedWarning, 2
        )
        source = settings.pop("experts")
    learned = partial(
        learn,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        initial=initial,
        progress=progress or by_default(),
    )
    if not isinstance(data, Dataset):
        if privacy is not None:
            raise InputError("Rows have no private construction; give images, or leave out the budget.")
        if model is None:
            raise InputError("Rows need a model: give it as model=..., such as LogisticRegression(features).")
        full = as_rows(data)
        smooth = build_model(model, full) if isinstance(model, str) else as_smooth(model)
        rows = RowTask(full, smooth, size, source)
        built, chosen = rows.chosen(method, preset, method_options or {}, settings)
        if isinstance(built, Solver):
            return rows.solved(built, chosen, check)
        learn_rows = partial(learned, rows, built.called, built, chosen, device="cpu")
        return rows.guarded(learn_rows, built, chosen) if check else _kept(learn_rows())
    if model is not None:
        raise InputError("Images are learned for a network; a model takes rows, such as Rows(x, y).")
    if source is not None and not isinstance(source, Experts):
        raise InputError("Images are learned from experts; train some with train_experts.")
    if source is not None and network is not None:
        require_experts_for(source, data, as_network(network, data.shape, len(data.classes)))
    secret = are_secret(data, source, privacy)
    own = presets.preset(preset, NO_DATASET if secret else data.name, ipc)
    if isinstance(method, str) and method in SELECTIONS:
        if secret:
            raise InputError(NO_PRIVATE_SELECTION)
        spec = None if source is None and network is None else network_for(source, network, data).spec
        chosen = build_settings(ConstructionSettings, {"ipc": ipc, **settings, "initialisation": method}, WHOSE)
        return real_coreset(data, chosen, spec, method, experts=source, device=resolve_device(device))
    if isinstance(method, str):
        require_method(method)
        known = within_reach(own.method_options(method), source)
        method = build_gradient_method(method, {**known, **(method_options or {})})
    if not isinstance(method, GradientMethod):
        raise InputError("Images are learned by gradient methods; a solver finds rows for a model.")
    name, known = method.called, own.construction_for(method.name)
    known |= private_settings(privacy) if secret else {}
    chosen = build_settings(ConstructionSettings, {**known, "ipc": ipc, **settings}, WHOSE)
    about, method = image_task(data, source, network, name, method, augmentation, privacy)
    return _kept(learned(about, name, method, chosen, device=device, backend=backend))


def _kept(made: Construction) -> Coreset:
    made.discard_checkpoint()
    return made.coreset


def within_reach(options: Mapping[str, Any], experts: Experts | None) -> dict[str, Any]:
    """Options of a preset for experts that may be shorter than those it was made for."""
    if experts is None or "expert_epochs" not in options:
        return dict(options)
    return {**options, "expert_epochs": min(options["expert_epochs"], experts.epochs)}
