"""Judging posterior samples on data that they have not seen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from pseudocoresets._io import display
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.devices import HOST
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.evaluation.calibration import (
    CALIBRATION_IMAGES,
    Calibrated,
    calibrated,
    calibration_split,
    fitted_exponents,
    pooled_calibrated,
)
from pseudocoresets.evaluation.function_space import Agreement, Predictions, agreement, mean_agreement
from pseudocoresets.evaluation.metrics import METRICS, Reliability, pooled_reliability, reliability
from pseudocoresets.evaluation.scores import Summary, mean_ensemble, pooled_summary, scores
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.kernels.diagnostics import Diagnostics, function_space_diagnostics
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.networks import NetworkSpec

CONTROL_DRAWS = 5
CERTAIN_SHOWN = 12


@dataclass(frozen=True)
class Certainty:
    """A test datum and how sure the average over all chains is of its class."""

    index: int
    label: int
    predicted: int
    confidence: float


@dataclass(frozen=True, repr=False)
class EvaluationReport:
    """Each metric over runs (one chain each, averaged over its samples), and of the average over all chains."""

    accuracy: Summary
    nll: Summary
    ece: Summary
    brier: Summary
    ensemble: Mapping[str, float]
    reliability: Reliability
    protocol: str
    posterior: Mapping[str, Any]
    diagnostics: Diagnostics | None = None
    """Whether the chains agree, in function space; None for a protocol without chains."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """How many test data of each class (first index) the average over all chains takes for each class (second)."""
    most_certain: tuple[Certainty, ...] = ()
    least_certain: tuple[Certainty, ...] = ()
    control: EvaluationReport | None = None
    """The same for random real images, where it was asked for."""
    predictions: Predictions | None = None
    """The average over all chains; not of several evaluations taken together."""
    agreement: Agreement | None = None
    """With a reference, where one was given."""
    calibrated: Calibrated | None = None
    """The same once the average over all chains, and each chain, is calibrated, where that was asked for."""

    def __repr__(self) -> str:
        numbers = ", ".join(
            f"{metric.title} {metric.spread(getattr(self, name).mean, getattr(self, name).std)}"
            for name, metric in METRICS.items()
        )
        return f"EvaluationReport({numbers}, start '{self.protocol}')"

    def _repr_html_(self) -> str:
        """In a notebook: each metric, beside the control where there is one."""
        sides = [("coreset", self), *([] if self.control is None else [("control", self.control)])]
        rows = [
            [metric.title, *(metric.spread(getattr(each, name).mean, getattr(each, name).std) for _, each in sides)]
            for name, metric in METRICS.items()
        ]
        for name in ("nll", "ece") if self.calibrated is not None else ():
            metric, title = METRICS[name], f"{METRICS[name].title} of the average"
            rows.append([title, *(metric.value(each.ensemble[name]) for _, each in sides)])
            found = [metric.value(each.calibrated.scores.ensemble[name]) for _, each in sides if each.calibrated]
            rows.append([f"{title}, calibrated", *found])
        warning = None if self.diagnostics is None else self.diagnostics.warning
        note = Markup("") if warning is None else Markup("<p>{}</p>").format(warning)
        return display.shown("Evaluation on test data", display.table(("", *(name for name, _ in sides)), rows), note)

    @property
    def per_class(self) -> list[float]:
        """Accuracy on the data of each class, of the average over all chains; not a number where there are none."""
        return [row[label] / sum(row) if sum(row) else math.nan for label, row in enumerate(self.confusion)]

    @property
    def gain(self) -> dict[str, float]:
        """Each metric's mean less that of the control."""
        if self.control is None:
            raise InputError("This evaluation has no control to gain over; evaluate with control=True.")
        return {name: getattr(self, name).mean - getattr(self.control, name).mean for name in METRICS}

    def as_json(self) -> dict[str, Any]:
        metrics = {name: getattr(self, name).as_json() for name in METRICS}
        beside = {} if self.control is None else {"control": self.control.as_json(), "gain": self.gain}
        alike = {} if self.agreement is None else {"agreement": self.agreement.as_json()}
        sharp = {} if self.calibrated is None else {"calibrated": self.calibrated.as_json()}
        return (
            metrics
            | alike
            | sharp
            | beside
            | {
                "protocol": self.protocol,
                "ensemble": dict(self.ensemble),
                "reliability": self.reliability.as_json(),
                "posterior": dict(self.posterior),
                "diagnostics": None if self.diagnostics is None else self.diagnostics.as_json(),
                "per_class": self.per_class,
                "confusion": [list(row) for row in self.confusion],
                "most_certain": [asdict(each) for each in self.most_certain],
                "least_certain": [asdict(each) for each in self.least_certain],
            }
        )


def evaluate(
    samples: PosteriorSamples,
    split: Split,
    control: bool = False,
    control_draws: int = CONTROL_DRAWS,
    reference: Predictions | None = None,
    calibration: Split | None = None,
    calibration_images: int = CALIBRATION_IMAGES,
) -> EvaluationReport:
    """Predict ``split`` with every sample and score the averages.

    Args:
        samples: Of the posterior of a coreset of images.
        split: Data that the samples have not seen, such as ``data.test``.
        control: Whether to do the same with as many random real images from the training data of the same data set,
            so that ``report.control`` and ``report.gain`` say what the coreset adds.
        control_draws: How many draws of random images the control averages.
        reference: What the samples should predict like on the same data, such as samples of the full data's posterior
            do; ``report.agreement`` says how alike they are.
        calibration: Images that choose how sure the average over all chains, and each chain, should be, such as
            ``data.train``; never those that are judged. ``report.calibrated`` has the scores then. The control gets
            its own calibration on the same terms.
        calibration_images: How many of them, drawn at random.
    """
    exponents = None
    if calibration is not None:
        exponents = fitted_exponents(samples, calibration_split(samples, calibration, split, calibration_images))
    probabilities, settings = samples.predict(split.images), samples.settings.as_json()
    own = Predictions.from_probabilities(probabilities, split, settings)
    alike = None if reference is None else agreement(own, reference, split)
    report = replace(
        score(probabilities, split.labels, samples.protocol, settings),
        predictions=own,
        agreement=alike,
        calibrated=None if exponents is None else calibrated(probabilities, split.labels, exponents),
    )
    if not control:
        return report
    if samples.coreset is None or samples.again is None or split.dataset is None:
        raise InputError(
            "A control needs samples that know their coreset and data that know their training images: use "
            "sample_posterior, and a split of a Dataset such as data.test."
        )
    coreset, like = samples.coreset, control_settings(samples.coreset)
    draws = [control_coreset(like, split.dataset, coreset.network, draw) for draw in range(control_draws)]
    judged = [
        evaluate(
            samples.again(each),
            split,
            reference=reference,
            calibration=calibration,
            calibration_images=calibration_images,
        )
        for each in draws
    ]
    return replace(report, control=pooled(judged))


def method_title(method: str, labels_learned: bool, formation: int = 1) -> str:
    """A method as tables name it: learned labels, and several images in one, are never left unsaid."""
    marks = ["labels learned"] * labels_learned + [f"{formation**2} images in one"] * (formation > 1)
    return f"{method} ({', '.join(marks)})" if marks else method


def control_settings(coreset: Coreset) -> ConstructionSettings:
    """As many images per class as ``coreset`` has, and its weights."""
    return ConstructionSettings(
        ipc=max(1, round(coreset.images_per_class)),
        seed=coreset.seed,
        weights=coreset.configuration.get("settings", {}).get("weights", "full"),
    )


def control_coreset(settings: ConstructionSettings, data: Dataset, network: NetworkSpec | None, draw: int) -> Coreset:
    """One draw of random real images: as many per class as ``settings`` ask for, and weighted as they say."""
    seed = derive_seed(settings.seed, "control", draw)
    own = replace(settings, seed=seed, initialisation="random", formation=1)
    chosen = SELECTIONS["random"].select(data, own.ipc, own.seed, None, HOST)
    return replace(real_coreset(data, own, network, "random"), indices=chosen)


def pooled(reports: Sequence[EvaluationReport]) -> EvaluationReport:
    """Several evaluations of the same kind as one: all runs together, averages of what belongs to each alone."""
    first = reports[0]
    accuracy, nll, ece, brier = (pooled_summary([getattr(report, name) for report in reports]) for name in METRICS)
    return EvaluationReport(
        accuracy,
        nll,
        ece,
        brier,
        ensemble=mean_ensemble([report.ensemble for report in reports]),
        reliability=pooled_reliability([report.reliability for report in reports]),
        protocol=first.protocol,
        posterior=first.posterior,
        diagnostics=_pooled_diagnostics([report.diagnostics for report in reports]),
        confusion=tuple(
            tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*(each.confusion for each in reports), strict=True)
        ),
        agreement=mean_agreement([each.agreement for each in reports if each.agreement is not None]),
        calibrated=pooled_calibrated([each.calibrated for each in reports if each.calibrated is not None]),
    )


def _pooled_diagnostics(parts: Sequence[Diagnostics | None]) -> Diagnostics | None:
    """The worst of several evaluations where one bad chain counts, their averages where the typical one does."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return replace(
        found[0],
        r_hat_max=max(part.r_hat_max for part in found),
        r_hat_median=statistics.fmean(part.r_hat_median for part in found),
        ess_min=min(part.ess_min for part in found),
        ess_median=statistics.fmean(part.ess_median for part in found),
        share_above=statistics.fmean(part.share_above for part in found),
        quantities=sum(part.quantities for part in found),
        warning=next((part.warning for part in found if part.warning is not None), None),
    )


def score(probabilities: Tensor, labels: Tensor, protocol: str, posterior: Mapping[str, Any]) -> EvaluationReport:
    """Score probabilities (chains, samples, n, classes): each chain on its own, and all together."""
    labels, found = labels.to(probabilities.device), scores(probabilities, labels)
    together = probabilities.flatten(0, 1).mean(0)
    accuracy, nll, ece, brier = (found.chains[name] for name in METRICS)
    return EvaluationReport(
        accuracy,
        nll,
        ece,
        brier,
        ensemble=found.ensemble,
        reliability=reliability(together, labels),
        protocol=protocol,
        posterior=posterior,
        diagnostics=None if protocol == "point" else function_space_diagnostics(probabilities.cpu()),
        confusion=confusion(together, labels),
        most_certain=_certain(together, labels, largest=True),
        least_certain=_certain(together, labels, largest=False),
    )


def confusion(probabilities: Tensor, labels: Tensor) -> tuple[tuple[int, ...], ...]:
    """Counts of data by class and by most probable class."""
    classes = probabilities.shape[-1]
    pairs = torch.bincount(labels * classes + probabilities.argmax(-1), minlength=classes**2)
    return tuple(tuple(row) for row in pairs.view(classes, classes).tolist())


def _certain(probabilities: Tensor, labels: Tensor, largest: bool) -> tuple[Certainty, ...]:
    """The data of the largest, or smallest, confidence."""
    confidence, predicted = probabilities.max(-1)
    chosen = confidence.topk(min(CERTAIN_SHOWN, len(labels)), largest=largest).indices.tolist()
    return tuple(Certainty(i, int(labels[i]), int(predicted[i]), float(confidence[i])) for i in chosen)
