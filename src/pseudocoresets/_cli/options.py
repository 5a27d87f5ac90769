"""Options that mean the same in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pseudocoresets.core.errors import InputError

DatasetName = Annotated[str, typer.Option("--dataset", help="Data set: a name ('bpc data list') or folder:PATH.")]
DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder that holds the data sets, or gets them.")]
NetworkName = Annotated[
    str, typer.Option("--network", help="Network and its options, such as convnet or convnet:depth=3,width=128.")
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", help="Construction method, or 'random' for real images. Default: the preset's."),
]
ImagesPerClass = Annotated[int, typer.Option("--ipc", help="Images per class.")]
ExpertsDir = Annotated[Path | None, typer.Option("--experts", help="Folder of expert trajectories.")]
ExpertCount = Annotated[int | None, typer.Option("--expert-count", help="Number of experts.")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Epochs of an expert.")]
SamplerName = Annotated[str | None, typer.Option("--sampler", help="Sampler of the posterior; default: the preset's.")]
Protocol = Annotated[str, typer.Option("--protocol", help="cold, point or expert.")]
Chains = Annotated[int | None, typer.Option("--chains", help="Independent posterior chains.")]
SamplingSteps = Annotated[int | None, typer.Option("--sampling-steps", help="Steps of each posterior chain.")]
SamplingStepSize = Annotated[
    float | None, typer.Option("--sampling-step-size", help="Step size of each posterior chain.")
]
ScheduleName = Annotated[
    str | None,
    typer.Option("--schedule", help="Of the sampler's step size: constant, polynomial, cosine or cyclical."),
]
Samples = Annotated[int | None, typer.Option("--samples", help="Samples kept of each posterior chain.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature", help="Posterior temperature in construction and sampling; 1 is Bayes, less is colder."
    ),
]
PriorScale = Annotated[float | None, typer.Option("--prior-scale", help="Standard deviation of the Gaussian prior.")]
Iterations = Annotated[int | None, typer.Option("--iterations", help="Iterations of the construction.")]
LearningRate = Annotated[float | None, typer.Option("--learning-rate", help="Learning rate of the images.")]
Momentum = Annotated[float | None, typer.Option("--momentum", help="Momentum of SGD on the images.")]
Optimiser = Annotated[str | None, typer.Option("--optimiser", help="Of the images: sgd or adam.")]
Averaging = Annotated[
    float | None,
    typer.Option("--averaging", help="Return an average of the iterates that forgets at this rate, e.g. 0.99."),
]
Annealing = Annotated[
    float | None,
    typer.Option("--annealing", help="Last part of the iterations, in which learning rates fall to zero, e.g. 0.5."),
]
MethodOptions = Annotated[
    list[str] | None, typer.Option("--set", help="An option of the method, such as --set expert_epochs=0; repeatable.")
]
CheckpointSeconds = Annotated[
    float, typer.Option("--checkpoint-seconds", help="Time between two checkpoints, from which a killed run goes on.")
]
LearnLabels = Annotated[bool, typer.Option("--learn-labels", help="Learn soft labels too.")]
LearnWeights = Annotated[
    bool | None,
    typer.Option("--learn-weights/--keep-weights", help="Learn the points' weights; default: only psvi does."),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="full: weights sum to the size of the full data; unit: each point counts once."),
]
MixedKinds = Annotated[
    bool | None,
    typer.Option(
        "--mixed-kinds/--one-kind",
        help="Each image draws its own kind of augmentation, or all of a step the same; in construction and sampling.",
    ),
]
ConstructionTemperature = Annotated[
    float | None,
    typer.Option("--construction-temperature", help="Temperature in the construction, if not that of --temperature."),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
PresetName = Annotated[str, typer.Option("--preset", help="quick or paper: where settings not given here come from.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def parse_settings(items: list[str] | None) -> dict[str, Any]:
    """``["expert_epochs=0", "sigma=0.01"]`` as a mapping, numbers and booleans recognised."""
    parsed: dict[str, Any] = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise InputError(f"Options of a method are written --set NAME=VALUE; got '{item}'.")
        parsed[key] = _value(value)
    return parsed


def posterior(
    temperature: float | None,
    construction_temperature: float | None,
    prior_scale: float | None,
    weights: str | None,
    mixed_kinds: bool | None,
) -> dict[str, Any]:
    """What the user said of the posterior, as settings of the construction; sampling has its own."""
    own = temperature if construction_temperature is None else construction_temperature
    return given(temperature=own, prior_scale=prior_scale, weights=weights, mixed_kinds=mixed_kinds)


def sampling(
    chains: int | None,
    steps: int | None,
    step_size: float | None,
    schedule: str | None,
    samples: int | None,
    temperature: float | None,
    prior_scale: float | None,
    mixed_kinds: bool | None,
) -> dict[str, Any]:
    """What the user said of the sampler."""
    return given(
        chains=chains,
        steps=steps,
        step_size=step_size,
        schedule=schedule,
        samples=samples,
        temperature=temperature,
        prior_scale=prior_scale,
        mixed_kinds=mixed_kinds,
    )


def given(**settings: Any) -> dict[str, Any]:
    """The settings that the user gave; the others stay with the preset."""
    return {name: value for name, value in settings.items() if value is not None}


def _value(text: str) -> Any:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
