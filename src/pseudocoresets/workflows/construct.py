"""Carrying out a plan's constructions, one stage after another, so that a killed process can go on."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pseudocoresets._io.documents import json_text
from pseudocoresets._io.files import only_writer, require_writable, write_text
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.loop import (
    Construction,
    Watch,
    network_for,
    run_construction,
)
from pseudocoresets.construction.privacy import NO_PRIVATE_SELECTION, are_secret
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Budget
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.networks import build_network
from pseudocoresets.sources.experts import Experts, load_experts, require_experts_for
from pseudocoresets.workflows.outputs import require_same_request
from pseudocoresets.workflows.place import Workplace
from pseudocoresets.workflows.plan import Plan

ANOTHER_RELEASE = (
    "To make a private one again is to read the data again, and who has seen both knows what both epsilons allow; name "
    "another place with --out, or replace it with --force."
)


class WorkFiles(NamedTuple):
    """What a construction keeps beside its result: where it goes on after a kill, and the last sound points."""

    checkpoint: Path
    rescue: Path

    @classmethod
    def within(cls, folder: Path) -> WorkFiles:
        return cls(folder / "construction.checkpoint", folder / "last-good.safetensors")

    @classmethod
    def beside(cls, out: Path) -> WorkFiles:
        return cls(_beside(out, ".checkpoint"), _beside(out, ".last-good.safetensors"))

    def checkpoint_before(self, number: int) -> Path:
        """The checkpoint of the ``number``-th construction before, counted from 1."""
        return self.checkpoint.with_suffix(f".before-{number}.checkpoint")


def construct_file(
    plan: Plan,
    out: Path,
    place: Workplace,
    *,
    experts: Path | None = None,
    network: str | None = None,
    initial: Path | None = None,
    data_dir: str | Path = "data",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    force: bool = False,
    privacy: Budget | None = None,
    made_from: Coreset | None = None,
) -> Construction:
    """The plan's coreset as the file ``out``, its log beside it; ``network``, if named, is what experts must have.

    A coreset of another plan is replaced only by ``force``. With ``privacy`` the method spends that budget on reading
    the data; with ``made_from`` the images of another coreset stand for the data, which are not read.
    """
    require_writable(out, initial)
    if out.exists() and not force:
        if privacy is not None:
            raise InputError(f"'{out}' holds a finished result. {ANOTHER_RELEASE}")
        _require_no_other_coreset(out, plan)
    start = None if initial is None else Coreset.load(initial, data_dir=data_dir)
    if start is not None or made_from is not None or privacy is not None:
        plan = replace(plan, before=())
    if privacy is not None:
        _require_private_form(plan)
    if experts is None and plan.needs_experts():
        raise InputError(
            f"{_who_needs(plan)} needs experts; train some with 'bpc experts' and name their folder with --experts."
        )
    trained = None if experts is None else load_experts(experts)
    data = load_dataset(plan.dataset, data_dir) if made_from is None else made_from.as_data()
    if are_secret(data, trained, privacy):
        if plan.method in SELECTIONS:
            raise InputError(NO_PRIVATE_SELECTION)
        data, plan = data.publicly_normalised(), replace(plan, before=())
    if trained is not None:
        wanted = None if network is None else build_network(network, data.shape, len(data.classes))
        require_experts_for(trained, data, wanted)
    with only_writer(out), threads_for(data.shape):
        made = construct_plan(
            plan,
            data,
            trained,
            WorkFiles.beside(out),
            place,
            initial=start,
            checkpoint_seconds=checkpoint_seconds,
            privacy=privacy,
        )
        if plan.method not in SELECTIONS:
            write_log(_beside(out, ".log.jsonl"), made.history)
        made.coreset.save(out, large_whitening=False)
        made.discard_checkpoint()
    return made


def _require_private_form(plan: Plan) -> None:
    """Before experts are asked for, which would not help."""
    if plan.method in SELECTIONS:
        raise InputError(NO_PRIVATE_SELECTION)
    plan.stages[-1].gradient_method().private(1.0)


def _require_no_other_coreset(out: Path, plan: Plan) -> None:
    found = Coreset.load(out)
    settings, options = (found.configuration.get(name) or {} for name in ("settings", "method"))
    recorded = {"dataset": found.source, "method": found.method, "ipc": settings.get("ipc", found.images_per_class)}
    wanted = {"dataset": plan.dataset, "method": plan.method, "ipc": plan.construction.ipc}
    if settings:
        wanted |= {"settings": asdict(plan.construction)}
    if options and plan.method == found.method:
        wanted |= {"options": plan.stages[-1].gradient_method().options()}
    known = plan.defaults()
    defaults = {"settings": known["construction"], "options": known["method_options"]}
    require_same_request(out, recorded | {"settings": settings, "options": options}, wanted, defaults)


def construct_plan(
    plan: Plan,
    data: Dataset,
    experts: Experts | None,
    files: WorkFiles,
    place: Workplace,
    initial: Coreset | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watch: Watch | None = None,
    privacy: Budget | None = None,
) -> Construction:
    """The plan's construction, after the stages before it unless it starts from ``initial``.

    A selection of real images is one that learns nothing. The checkpoint of a stage, even when it is done, is what a
    later process goes on from; checkpoints stay until the caller, having saved the coreset, discards them.
    """
    if plan.method in SELECTIONS:
        network = network_for(experts, plan.network, data)
        chosen = real_coreset(data, plan.construction, network.spec, plan.method, experts=experts, device=place.device)
        return Construction(chosen, chosen, [])
    run = partial(
        run_construction,
        data,
        experts,
        network=plan.network,
        checkpoint_seconds=checkpoint_seconds,
        rescue=files.rescue,
        device=place.device,
        backend=place.backend,
        progress=place.progress,
        privacy=privacy,
    )
    before, start = None, initial
    for number, stage in enumerate(plan.before if initial is None else (), 1):
        checkpoint = files.checkpoint_before(number)
        made = run(stage.method, stage.gradient_method(), stage.construction, checkpoint=checkpoint, initial=start)
        before, start = replace(made, before=before), made.coreset
    method = plan.stages[-1].gradient_method()
    made = run(plan.method, method, plan.construction, checkpoint=files.checkpoint, initial=start, watch=watch)
    return replace(made, before=before)


def write_log(path: str | Path, history: list[dict[str, float]]) -> None:
    """One JSON document a line, one line an iteration."""
    write_text(path, "".join(json_text(row) + "\n" for row in history))


def _who_needs(plan: Plan) -> str:
    drawing = plan.drawing_from_experts()
    if drawing in SELECTIONS:
        return f"The selection '{drawing}'"
    which = "" if drawing == plan.method else f", which the preset puts before '{plan.method}',"
    return f"The method '{drawing}'{which}"


def _beside(out: Path, ending: str) -> Path:
    """The file that belongs to ``out``: c.checkpoint for c.safetensors."""
    return out.with_name(out.name.removesuffix(".safetensors") + ending)
