"""The audit of a coreset: how near, who was in it, what it started from; always beside two naive ways to share data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocoresets import presets
from pseudocoresets._io.pictures import Panel
from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.core.devices import resolve_device, threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import Progress, Silent, by_default, task
from pseudocoresets.core.settings import build_settings
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.transforms import as_pixels
from pseudocoresets.dp import Budget
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.models.networks import AnyNetwork, Network, as_network, from_spec
from pseudocoresets.presets import Preset
from pseudocoresets.privacy.membership import attack_each_shadow, attack_file, loss_threshold, sureness
from pseudocoresets.privacy.neighbours import Embedding, Nearness, nearness
from pseudocoresets.privacy.origin import training_data
from pseudocoresets.privacy.questions import Answers, Questions
from pseudocoresets.privacy.recipe import OwnWay, Recipe, Tools, Way
from pseudocoresets.privacy.recovery import Recovery, recovery, start_images
from pseudocoresets.privacy.report import CORESET, RANDOM, Attacked, AuditReport
from pseudocoresets.privacy.shadows import Shadows, require_shadows
from pseudocoresets.privacy.subject import Subject, Training
from pseudocoresets.sources.experts import Experts, ExpertSettings, require_experts_for

IMAGES = 1000
PROTOCOLS = ("cold", "point")
POINTS_SHOWN, CLASSES_SHOWN = 5, 20
"""Points per class, and classes, in the picture."""
PARTS_BEFORE_SHADOWS = 2
FEATURES_AT_ONCE = 500


def audit(
    coreset: Coreset,
    data: Dataset,
    *,
    shadows: int | None = None,
    images: int = IMAGES,
    experts: Experts | None = None,
    epochs: int | None = None,
    network: AnyNetwork | None = None,
    make: Callable[[Dataset], Coreset] | None = None,
    protocol: str = "cold",
    preset: str | os.PathLike[str] | Preset = "quick",
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    backend: Backend | None = None,
    progress: Progress | None = None,
    **sampling: Any,
) -> AuditReport:
    """What a coreset of images gives away of the data that it was made from.

    Args:
        coreset: Images, with the record of how they were made.
        data: The data that they were made from; its test images are those that were not used.
        shadows: How many coresets to make in the same way from halves of the data, for the attack LiRA; an even number
            of at least six. Without it, only the attack by a threshold on the loss is made.
        images: How many training images, and how many test images, are questioned at most.
        experts: Those that the coreset was made with. The first one stands for training on all data. Shadows of a
            method that draws from experts get as many of their own, trained in the same way.
        epochs: Of the training on all data where there are no ``experts``; the preset's unless given.
        network: Another network than the one that the coreset was made with.
        make: The way from data to such a coreset, by which shadows are made; that of the coreset's own record unless
            given.
        protocol: How the posterior is sampled: cold or point.
        preset: Where settings of the sampler, and of the training on all data without ``experts``, come from.
        folder: Where each shadow's answers are kept, so that a process that was killed goes on.
        seed: Of which images are questioned, of the halves and of the sampling.
        backend: How to compute; chosen for the device where none is given.
        sampling: Settings of ``SamplingSettings``.
    """
    began = time.monotonic()
    _require_sensible(coreset, protocol, images)
    coreset = coreset if coreset.is_whole else coreset.restored(data)
    data = training_data(coreset, data)
    used = _network_for(coreset, network, data)
    if experts is not None:
        require_experts_for(experts, data, used)
    way = None if shadows is None else _way_of_shadows(shadows, coreset, data, experts, make)
    device = resolve_device(device)
    backend = backend or choose_backend(device)
    training = _training(coreset, experts, epochs, preset)
    samples = sample_posterior(
        coreset,
        start=protocol,
        preset=preset,
        network=used,
        device=device,
        backend=backend,
        progress=Silent(),
        seed=seed,
        **sampling,
    )
    subject = Subject(coreset, samples, training, Tools(used, device, backend))
    transform = coreset.require_images() if coreset.guarantee is None else data.transform
    questions = Questions.of(data, transform, images, seed)
    parts, apart = PARTS_BEFORE_SHADOWS + (shadows or 0), _one_image_a_point(coreset)
    with threads_for(data.shape), task(progress or by_default(), "auditing the coreset", parts) as shown:
        trained = experts if experts is not None and experts.guarantee is None else subject.trained(data)
        shown.advance(note="neighbours")
        both = {CORESET: apart, RANDOM: subject.control(data)}
        near = _neighbours(both, data, questions.held_out, trained, device)
        starts = {name: _recovery(each, data, experts, device) for name, each in both.items()}
        shown.advance(note="membership")
        predictions = subject.predictions(both[RANDOM], trained)
        made = None if way is None else _shadows(subject, way, questions, seed, folder, shadows or 0, shown)
        rows = {name: _attacked(name, each, questions, made) for name, each in predictions.items()}
    about = _about(subject, data, len(apart), questions) | {"shadows": shadows or 0, "seed": seed}
    panels, classes = _panels(apart, data, near, starts[CORESET]), data.classes[:CLASSES_SHOWN]
    return AuditReport(about, near, rows, starts, panels, classes, time.monotonic() - began)


def _about(subject: Subject, data: Dataset, points: int, questions: Questions) -> dict[str, Any]:
    coreset, samples = subject.coreset, subject.samples
    return {
        "dataset": data.name,
        "method": coreset.method,
        "points": points,
        "network": str(subject.tools.network.spec),
        "protocol": samples.protocol,
        "sampling": samples.settings.as_json(),
        "training_images": len(data.train),
        "held_out_images": len(data.test),
        "questioned": len(questions.chosen),
        "guarantee": None if coreset.guarantee is None else str(coreset.guarantee),
    }


def _require_sensible(coreset: Coreset, protocol: str, images: int) -> None:
    if not coreset.holds_images:
        raise InputError("The audit is for coresets of images; this one holds rows of a table.")
    if protocol not in PROTOCOLS:
        raise InputError(
            f"An audit samples the posterior by the protocol {' or '.join(PROTOCOLS)}, which see nothing but the "
            f"coreset; got '{protocol}'."
        )
    if images < 10:
        raise InputError(f"At least ten images of each kind must be questioned; got {images}.")


def _network_for(coreset: Coreset, network: AnyNetwork | None, data: Dataset) -> Network:
    if network is None and coreset.network is not None:
        return from_spec(coreset.network)
    return as_network("convnet" if network is None else network, data.shape, len(data.classes))


def _training(
    coreset: Coreset, experts: Experts | None, epochs: int | None, preset: str | os.PathLike[str] | Preset
) -> Training:
    """As the experts were trained, else as the preset has it."""
    if experts is not None:
        promised = experts.guarantee
        budget = None if promised is None else Budget(promised.epsilon, promised.delta)
        return Training(experts.settings, len(experts), budget)
    own = presets.preset(preset, coreset.source, max(1, round(coreset.images_per_class)))
    given = own.experts if epochs is None else {**own.experts, "epochs": epochs}
    return Training(build_settings(ExpertSettings, given, "The training of experts"), own.expert_count)


def _way_of_shadows(
    shadows: int,
    coreset: Coreset,
    data: Dataset,
    experts: Experts | None,
    make: Callable[[Dataset], Coreset] | None,
) -> Way:
    """How shadows are made, once it is sure that they can be."""
    require_shadows(shadows, data)
    if make is not None:
        return OwnWay(make)
    recipe = Recipe.of(coreset)
    if recipe.needs_experts and experts is None:
        raise InputError(
            f"A coreset by '{coreset.method}' draws from experts, and so does each shadow: give those that it was made "
            "with (--experts), so that the shadows' own are trained in the same way."
        )
    if coreset.guarantee is not None and not (recipe.needs_experts or recipe.is_private):
        raise InputError(
            "The file does not say how this private coreset was made from the data; audit it without shadows, or in "
            "Python with make=..., a function from data to such a coreset."
        )
    return recipe


def _one_image_a_point(coreset: Coreset) -> Coreset:
    """The same where stored images hold one image each."""
    points = coreset.points
    return replace(coreset, x=points.x, y=points.y, weights=points.weights, formation=1)


def _recovery(coreset: Coreset, data: Dataset, experts: Experts | None, device: torch.device) -> Recovery | str:
    starts = start_images(coreset, data, experts, device)
    return starts if isinstance(starts, str) else recovery(coreset, data, starts)


def _neighbours(
    coresets: Mapping[str, Coreset], data: Dataset, ranked: Tensor, experts: Experts, device: torch.device
) -> dict[str, dict[str, Nearness]]:
    """In pixels, and in the features of the first expert."""
    network, theta = experts.network, experts.snapshot(0, -1).to(device)
    transform = next(iter(coresets.values())).require_images().to(device)

    def pixels(images: Tensor) -> Tensor:
        return as_pixels(images.to(device), transform.span).flatten(1)

    def features(images: Tensor) -> Tensor:
        parts = (network.features(theta, transform(part.to(device))) for part in images.split(FEATURES_AT_ONCE))
        return torch.cat(list(parts))

    spaces: dict[str, tuple[Embedding, list[Tensor]]] = {
        "pixels": (pixels, [each.to_pixels().to(device).flatten(1) for each in coresets.values()]),
        "features": (features, [network.features(theta, each.x.to(device)) for each in coresets.values()]),
    }
    with torch.no_grad():
        return {
            space: dict(
                zip(coresets, nearness(points, data.train.images, data.test.images, ranked, embed), strict=True)
            )
            for space, (embed, points) in spaces.items()
        }


def _shadows(
    subject: Subject,
    way: Way,
    questions: Questions,
    seed: int,
    folder: str | os.PathLike[str] | None,
    count: int,
    shown: Progress,
) -> list[tuple[Answers, Tensor]]:
    """The answers of every shadow, and which of the questioned images it was made with."""
    shadows = Shadows(
        questions.pool,
        partial(subject.shadow, way, questions),
        seed,
        subject.identities(way, questions),
        None if folder is None else Path(folder),
    )
    found = []
    for number in range(count):
        answers, inside = shadows.answers(number)
        found.append((answers, inside[questions.chosen]))
        shown.advance(note=f"shadow {number + 1} of {count}")
    return found


def _attacked(
    name: str, predictions: PosteriorSamples, questions: Questions, shadows: list[tuple[Answers, Tensor]] | None
) -> Attacked:
    """Every attack on one way from data to predictions."""
    probabilities, labels, members = questions.probabilities(predictions), questions.asked.labels, questions.members
    right = probabilities.argmax(1).cpu() == labels
    sure = sureness(probabilities, labels)
    found = Attacked(name, float(right[~members].double().mean()), loss_threshold(sure, members))
    if shadows is None:
        return found
    theirs, inside = torch.stack([answers[name] for answers, _ in shadows]), torch.stack([part for _, part in shadows])
    return replace(
        found, lira=attack_file(sure, members, theirs, inside), lira_of_way=attack_each_shadow(theirs, inside)
    )


def _panels(
    coreset: Coreset, data: Dataset, near: Mapping[str, Mapping[str, Nearness]], starts: Recovery | str
) -> tuple[Panel, ...]:
    """The first points of each class, their nearest training images, and the images that they started from."""
    labels, span = coreset.hard_labels, coreset.require_images().span
    classes = range(min(CLASSES_SHOWN, len(coreset.classes)))
    chosen = torch.cat([(labels == label).nonzero().flatten()[:POINTS_SHOWN] for label in classes])
    found = {f"nearest in {space}": both[CORESET].points.indices for space, both in near.items()}
    if isinstance(starts, Recovery):
        found["started from"] = starts.starts
    real = [
        Panel(title, as_pixels(data.train.images[positions[chosen]], span), labels[chosen])
        for title, positions in found.items()
    ]
    return (Panel("coreset", coreset.to_pixels()[chosen], labels[chosen]), *real)
