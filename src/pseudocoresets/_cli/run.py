"""``bpc run``: the whole job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import metric_cells, metric_columns, print_json, print_table
from pseudocoresets._report import write_report
from pseudocoresets.core.progress import for_stream
from pseudocoresets.workflows.plan import make_plan
from pseudocoresets.workflows.run import Outcome, Plan, run_plan


def run(
    dataset: o.DatasetName = "digits",
    method: o.MethodName = None,
    ipc: o.ImagesPerClass = 1,
    network: o.NetworkName = "convnet",
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/DATASET-METHOD-ipcN.")] = None,
    experts: o.ExpertsDir = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    protocol: o.Protocol = "cold",
    sampler: o.SamplerName = None,
    expert_count: o.ExpertCount = None,
    epochs: o.Epochs = None,
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
    chains: o.Chains = None,
    sampling_steps: o.SamplingSteps = None,
    sampling_step_size: o.SamplingStepSize = None,
    schedule: o.ScheduleName = None,
    samples: o.Samples = None,
    temperature: o.Temperature = None,
    construction_temperature: o.ConstructionTemperature = None,
    prior_scale: o.PriorScale = None,
    mixed_kinds: o.MixedKinds = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """The whole job: experts, coreset, control, posterior, report.

    Example: bpc run --dataset digits --ipc 1 --out runs/demo
    """
    plan = make_plan(
        dataset=dataset,
        method=method,
        network=network,
        ipc=ipc,
        protocol=protocol,
        sampler=sampler,
        preset=preset,
        seed=seed,
        expert_count=expert_count,
        experts=o.given(epochs=epochs),
        construction=o.given(
            iterations=iterations,
            learning_rate=learning_rate,
            momentum=momentum,
            optimiser=optimiser,
            averaging=averaging,
            annealing=annealing,
            learn_labels=learn_labels or None,
            learn_weights=learn_weights,
            **o.posterior(temperature, construction_temperature, prior_scale, weights, mixed_kinds),
        ),
        sampling=o.sampling(
            chains, sampling_steps, sampling_step_size, schedule, samples, temperature, prior_scale, mixed_kinds
        ),
        method_options=o.parse_settings(method_options),
    )
    folder = out or Path("runs") / f"{dataset.replace(':', '-').replace('/', '-')}-{plan.method}-ipc{ipc}"
    outcome = run_plan(plan, folder, data_dir=data_dir, experts_dir=experts, device=device, progress=for_stream())
    page = write_report(outcome.folder)
    if json:
        print_json(outcome.metrics)
    else:
        _print_outcome(plan, outcome)
        typer.echo(f"Report: {page}")


def _print_outcome(plan: Plan, outcome: Outcome) -> None:
    metrics = outcome.metrics
    sampling = plan.sampling
    caption = (
        f"{plan.protocol} protocol, {sampling.sampler}, {sampling.chains} chains, "
        f"temperature {sampling.temperature:g}; "
        f"control: {plan.control_draws} draws of real images. {metrics['seconds']:.0f} s in all."
    )
    print_table(
        f"{plan.dataset}, {plan.construction.ipc} image(s) per class",
        ["", *metric_columns()],
        [
            ["random real images (control)", *metric_cells(metrics["control"])],
            [f"{plan.method} coreset", *metric_cells(metrics)],
        ],
        caption,
    )
