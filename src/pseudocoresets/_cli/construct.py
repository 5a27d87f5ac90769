"""``bpc construct``: one coreset by one method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json
from pseudocoresets._io.files import require_writable
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.core.devices import fit_threads
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import for_stream
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import load_dataset
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.networks import build_network
from pseudocoresets.sources.experts import load_experts, require_experts_for
from pseudocoresets.workflows.plan import make_plan
from pseudocoresets.workflows.run import Plan, WorkFiles, construct_plan, write_log


def construct(
    out: Annotated[Path, typer.Option("--out", help="Coreset file to write.")],
    experts: Annotated[
        Path | None, typer.Option("--experts", help="Folder of expert trajectories; bptt and random need none.")
    ] = None,
    dataset: o.DatasetName = "digits",
    method: o.MethodName = None,
    ipc: o.ImagesPerClass = 1,
    network: Annotated[
        str | None, typer.Option("--network", help="Network; default: that of the experts, or convnet without any.")
    ] = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    iterations: o.Iterations = None,
    learning_rate: o.LearningRate = None,
    momentum: o.Momentum = None,
    optimiser: o.Optimiser = None,
    averaging: o.Averaging = None,
    annealing: o.Annealing = None,
    method_options: o.MethodOptions = None,
    learn_labels: o.LearnLabels = False,
    learn_weights: o.LearnWeights = None,
    weights: o.Weights = None,
    temperature: o.Temperature = None,
    prior_scale: o.PriorScale = None,
    mixed_kinds: o.MixedKinds = None,
    initial: Annotated[Path | None, typer.Option("--initial", help="Coreset file to continue from.")] = None,
    checkpoint_seconds: o.CheckpointSeconds = CHECKPOINT_SECONDS,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """One coreset by one method; killed and started again, it goes on from its last checkpoint.

    Example: bpc construct --dataset digits --ipc 1 --experts experts/digits --out c.safetensors
    """
    plan = make_plan(
        dataset=dataset,
        method=method,
        network=network or "convnet",
        ipc=ipc,
        protocol="cold",
        sampler=None,
        preset=preset,
        seed=seed,
        construction=o.given(
            iterations=iterations,
            learning_rate=learning_rate,
            momentum=momentum,
            optimiser=optimiser,
            averaging=averaging,
            annealing=annealing,
            learn_labels=learn_labels or None,
            learn_weights=learn_weights,
            **o.posterior(temperature, None, prior_scale, weights, mixed_kinds),
        ),
        method_options=o.parse_settings(method_options),
    )
    require_writable(out)
    start = None if initial is None else Coreset.load(initial, data_dir=data_dir)
    if start is not None:
        plan = replace(plan, before=())
    if experts is None and plan.needs_experts():
        raise InputError(
            f"{_who_needs(plan)} needs experts; train some with 'bpc experts' and name their folder with --experts."
        )
    trained = None if experts is None else load_experts(experts)
    data = load_dataset(dataset, data_dir)
    fit_threads(data.shape)
    if trained is not None:
        wanted = None if network is None else build_network(network, data.shape, len(data.classes))
        require_experts_for(trained, data, wanted)
    made = construct_plan(
        plan,
        data,
        trained,
        WorkFiles(_beside(out, ".checkpoint"), _beside(out, ".last-good.safetensors")),
        device,
        for_stream(),
        initial=start,
        checkpoint_seconds=checkpoint_seconds,
    )
    if plan.method not in SELECTIONS:
        write_log(_beside(out, ".log.jsonl"), made.history)
    made.coreset.save(out)
    made.discard_checkpoint()
    if json:
        last = made.history[-1] if made.history else None
        print_json({"coreset": str(out), "points": len(made.coreset), "last": last})
    else:
        typer.echo(f"{len(made.coreset)} points for {made.coreset.data_size:,} in {out}")


def _who_needs(plan: Plan) -> str:
    if not plan.before:
        return f"The method '{plan.method}'"
    return f"The method '{plan.before[0].method}', which the preset puts before '{plan.method}',"


def _beside(out: Path, ending: str) -> Path:
    """The file that belongs to ``out``: c.checkpoint for c.safetensors."""
    return out.with_name(out.name.removesuffix(".safetensors") + ending)
