"""The findings of a run in words, which stand before every number."""

from __future__ import annotations

from collections.abc import Iterator

from pseudocoresets._report.classes import confusions, per_class
from pseudocoresets._report.results import average, section
from pseudocoresets._report.run_folder import Run
from pseudocoresets._report.wording import count_of, duration, is_number

WELL_CALIBRATED = 0.05


def findings(run: Run) -> list[str]:
    """One sentence each, the most important first."""
    return [*_gain(run), *_calibration(run), *_classes(run), *_chains(run), *_cost(run)]


def _gain(run: Run) -> Iterator[str]:
    own, control = average(run.metrics, "accuracy"), average(section(run.metrics, "control"), "accuracy")
    if own is None or control is None:
        return
    points = round(100 * (own - control), 1)
    if points == 0:
        yield "The coreset is as accurate as random real images: nothing was gained by learning it."
    elif points > 0:
        yield f"Learning the images was worth {points:.1f} points of accuracy over random real ones."
    else:
        yield f"Random real images are better by {-points:.1f} points of accuracy: this coreset should not be used."


def _calibration(run: Run) -> Iterator[str]:
    error, bins = average(run.metrics, "ece"), section(run.metrics, "reliability")
    lists = [bins.get(name) for name in ("confidence", "accuracy", "count")]
    if error is None or not all(isinstance(each, list) for each in lists):
        return
    known = [row for row in zip(*lists, strict=False) if all(map(is_number, row))]
    total = sum(count for *_, count in known)
    if not total > 0:
        return
    lean = sum(count * (confidence - accuracy) for confidence, accuracy, count in known) / total
    how = "about as sure as" if error < WELL_CALIBRATED else "surer than" if lean > 0 else "less sure than"
    yield f"Predictions are {how} they are right (calibration error {error:.3f})."
    sharp = section(run.metrics, "calibrated")
    before, after = (section(block, "ensemble").get("ece") for block in (run.metrics, sharp))
    if is_number(before) and is_number(after):
        yield f"Calibrated on training images, the error of the chains' average goes from {before:.3f} to {after:.3f}."


def _classes(run: Run) -> Iterator[str]:
    shares = per_class(run)
    if len(shares) > 1:
        (worst, least), (best, most) = shares[0], shares[-1]
        yield f"Best known is the class {best} ({100 * most:.1f} %), least {worst} ({100 * least:.1f} %)."
    for truth, taken, count in confusions(run)[:1]:
        yield f"The most frequent mistake: {truth} taken for {taken}, {count_of(count, 'time')}."


def _chains(run: Run) -> Iterator[str]:
    own = section(run.metrics, "diagnostics")
    if own.get("warning"):
        yield "The chains disagree: read their average as an ensemble, not as one posterior."


def _cost(run: Run) -> Iterator[str]:
    seconds = run.metrics.get("seconds")
    if is_number(seconds):
        yield f"The whole job took {duration(seconds)}."
