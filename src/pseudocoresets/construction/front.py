"""The front door: a coreset of images or of rows, by any method."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from pseudocoresets.backends import Backend
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.loop import network_for, run_construction
from pseudocoresets.construction.rows import construct_rows
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import FullData
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods import GradientMethod, Method, build_gradient_method
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.networks import AnyNetwork
from pseudocoresets.sources.experts import Experts


def construct(
    data: Dataset | FullData,
    source: PosteriorSource | None = None,
    method: str | Method = "cd",
    ipc: int = 1,
    *,
    model: SmoothModel | None = None,
    size: int = 20,
    network: AnyNetwork | None = None,
    method_options: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Coreset:
    """A pseudo-coreset of ``data``: ``ipc`` images per class, or ``size`` rows for a ``model`` that is no network.

    Args:
        data: The full data.
        source: Samples of the full posterior: experts for a network (a method that needs none, such as ``bptt``, takes
            a ``network`` instead); for a model, draws of the Gaussian nearest to the posterior where none is given.
        method: A name, with ``method_options``, or a method.
        ipc: Images per class.
        model: The model of rows, with ``size`` rows to find.
        network: Which network the coreset is for, where no experts say it.
        checkpoint: Where a killed run goes on, written every ``checkpoint_seconds``.
        initial: A coreset to go on from.
        backend: How to compute; chosen for the device where none is given.
        settings: Those of ``ConstructionSettings``; for rows, others than those given here are ``ROW_SETTINGS``.
    """
    if not isinstance(data, Dataset):
        if model is None:
            raise InputError("Rows need a model: give it as model=..., such as LogisticRegression(features).")
        return construct_rows(
            data,
            model,
            method,
            size,
            source=source,
            method_options=method_options,
            checkpoint=checkpoint,
            checkpoint_seconds=checkpoint_seconds,
            initial=initial,
            progress=progress,
            **settings,
        )
    if model is not None:
        raise InputError("Images are learned for a network; a model takes rows, such as Rows(x, y).")
    if source is not None and not isinstance(source, Experts):
        raise InputError("Images are learned from experts; train some with train_experts.")
    chosen = construction_settings(ipc=ipc, **settings)
    if isinstance(method, str) and method in SELECTIONS:
        spec = None if source is None and network is None else network_for(source, network, data).spec
        return real_coreset(data, chosen, spec, method)
    built = build_gradient_method(method, method_options) if isinstance(method, str) else method
    if not isinstance(built, GradientMethod):
        raise InputError("Images are learned by gradient methods; a solver finds rows for a model.")
    made = run_construction(
        data,
        source,
        built.name or type(built).__name__,
        built,
        chosen,
        network=network,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        initial=initial,
        device=device,
        backend=backend,
        progress=progress,
    )
    made.discard_checkpoint()
    return made.coreset


def construction_settings(**settings: Any) -> ConstructionSettings:
    """Settings by name, with an error that lists the known ones."""
    known = {entry.name for entry in fields(ConstructionSettings)}
    unknown = set(settings) - known
    if unknown:
        raise InputError(f"Unknown settings: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(known))}.")
    return ConstructionSettings(**settings)
