"""What the predictions say class by class: accuracy, confusions, and the test images of most and least certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pseudocoresets._io.pictures import data_uri, to_images
from pseudocoresets._report.run_folder import Run
from pseudocoresets._report.wording import is_number

MATRIX_CLASSES = 20
"""Up to so many classes the whole table of confusions is shown; beyond, the most frequent ones."""
MOST_CONFUSIONS = 10


def counts_of(run: Run) -> list[list[int]]:
    """The confusion counts of a run; empty where they were not recorded or do not fit its classes."""
    recorded, classes = run.metrics.get("confusion"), len(run.coreset.classes)
    if not isinstance(recorded, list) or len(recorded) != classes:
        return []
    rows = [row for row in recorded if isinstance(row, list) and len(row) == classes]
    whole = len(rows) == classes and all(is_number(count) and count >= 0 for row in rows for count in row)
    return [[int(count) for count in row] for row in rows] if whole else []


def per_class(run: Run) -> list[tuple[str, float]]:
    """Accuracy of each class that has test data, worst first."""
    rows = enumerate(counts_of(run))
    shares = [(run.coreset.classes[label], row[label] / sum(row)) for label, row in rows if sum(row)]
    return sorted(shares, key=lambda pair: pair[1])


def confusions(run: Run) -> list[tuple[str, str, int]]:
    """Pairs of a class and what it is most often taken for, most frequent first."""
    names = run.coreset.classes
    wrong = [
        (names[label], names[taken], count)
        for label, row in enumerate(counts_of(run))
        for taken, count in enumerate(row)
        if label != taken and count
    ]
    return sorted(wrong, key=lambda entry: -entry[2])[:MOST_CONFUSIONS]


def class_section(run: Run) -> dict[str, Any] | None:
    """What the template shows of the classes."""
    counts = counts_of(run)
    if not counts:
        return None
    shares = per_class(run)
    matrix = None
    if len(counts) <= MATRIX_CLASSES:
        matrix = [
            {"name": name, "cells": [{"count": count, "share": count / max(1, sum(row))} for count in row]}
            for name, row in zip(run.coreset.classes, counts, strict=True)
        ]
    accuracies = [{"name": name, "share": share, "text": f"{100 * share:.1f} %"} for name, share in shares]
    return {"accuracies": accuracies, "matrix": matrix, "confusions": confusions(run), "names": run.coreset.classes}


def certain_section(run: Run) -> list[dict[str, Any]]:
    """The test images that the predictions are surest and least sure of."""
    sides = (("most", "Surest"), ("least", "Least sure"))
    parts = [{"title": title, "images": _tiles(run, name)} for name, title in sides]
    return [part for part in parts if part["images"]]


def _tiles(run: Run, side: str) -> list[dict[str, Any]]:
    known, pixels = run.metrics.get(f"{side}_certain"), run.examples.get(side)
    if pixels is None or not isinstance(known, list) or len(known) != len(pixels):
        return []
    described = [_described(entry, run.coreset.classes) for entry in known]
    pairs = zip(to_images(pixels.float() / 255), described, strict=True)
    return [{"source": data_uri(image), **words} for image, words in pairs if words is not None]


def _described(entry: Any, classes: Sequence[str]) -> dict[str, Any] | None:
    if not isinstance(entry, Mapping) or not is_number(entry.get("confidence")):
        return None
    label, taken = entry.get("label"), entry.get("predicted")
    if not (isinstance(label, int) and isinstance(taken, int)) or not {label, taken} <= set(range(len(classes))):
        return None
    truth, guess, sure = classes[label], classes[taken], f"{100 * entry['confidence']:.0f} %"
    return {
        "right": label == taken,
        "caption": f"{guess}, {sure}",
        "title": f"{truth}, taken for {guess} ({sure} sure)",
    }
