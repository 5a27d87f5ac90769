"""What an audit found: figures, a picture, and findings in words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from pseudocoresets._io import display
from pseudocoresets._io.pictures import Panel, image_grid, save_picture
from pseudocoresets.privacy.neighbours import Nearness
from pseudocoresets.privacy.recovery import Recovery
from pseudocoresets.privacy.roc import Roc, Share

CORESET, RANDOM, ALL_DATA = "this coreset", "random real images", "training on all data"
"""What is attacked: the coreset, and beside it the two ways to share data that hide nothing."""
SIGNIFICANT = 0.01
"""The probability of calling points near that are not, in each test."""
NO_PROOF = (
    "What these attacks do not find, others may: an audit can show that a file gives data away, and never that it does "
    "not. Only differential privacy is a guarantee."
)


NOT_COVERED = (
    "The audit itself read the private data, and the guarantee does not cover what it found: keep its figures and "
    "pictures to yourself."
)


@dataclass(frozen=True)
class Attacked:
    """How well attacks on one set of predictions tell members of the training data from others."""

    name: str
    accuracy: float
    """On the held-out images that were questioned."""
    threshold: Roc
    lira: Roc | None = None
    """On these predictions."""
    lira_of_way: Roc | None = None
    """On each shadow in turn: what this way from data to predictions gives away."""

    @property
    def decisive(self) -> list[Roc]:
        """The attacks that findings rest on: LiRA where it was made.

        A threshold alone also finds that the questioned members happen to be easier, or of other classes, than the
        questioned others; LiRA compares each image with itself.
        """
        return [self.threshold] if self.lira is None or self.lira_of_way is None else [self.lira, self.lira_of_way]

    @property
    def strongest(self) -> Roc:
        """That of the decisive attacks whose AUC is most surely large."""
        return max(self.decisive, key=lambda each: each.auc.low)

    def attacks(self) -> dict[str, Roc]:
        """Those that were made, by name."""
        named = {"loss threshold": self.threshold, "LiRA": self.lira, "LiRA, each shadow": self.lira_of_way}
        return {name: each for name, each in named.items() if each is not None}

    def as_json(self) -> dict[str, Any]:
        attacks = [{"attack": name, **each.as_json()} for name, each in self.attacks().items()]
        return {"of": self.name, "accuracy": self.accuracy, "attacks": attacks}


@dataclass(frozen=True, repr=False)
class AuditReport:
    """What an audit found."""

    about: Mapping[str, Any]
    """What was audited, and how."""
    neighbours: Mapping[str, Mapping[str, Nearness]]
    """By space, of the coreset and of as many random real images."""
    membership: Mapping[str, Attacked]
    """By what was attacked."""
    recovery: Mapping[str, Recovery | str]
    """Of the start images, of the coreset and of random real images; a text says why they are not known."""
    panels: tuple[Panel, ...] = ()
    classes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        return f"AuditReport({' '.join(self.findings())})"

    def _repr_html_(self) -> str:
        """In a notebook: the findings, the picture and the attacks."""
        lines = display.facts([("", each) for each in self.findings()])
        shown = display.picture(self.picture(), "points beside their nearest training images")
        return display.shown("Privacy audit", lines, shown, display.table(ATTACK_COLUMNS, attack_rows(self.as_json())))

    def findings(self) -> list[str]:
        """One sentence each, what gives most away first."""
        guarantee = self.about.get("guarantee")
        closing = [NO_PROOF] if guarantee is None else [str(guarantee), NOT_COVERED]
        return [*_starts(self), *_neighbours(self), *_members(self), *closing]

    def picture(self) -> Image.Image:
        """Points beside their nearest training images, in pixels and in features, and beside their starts."""
        return image_grid(self.panels, self.classes)

    def show(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as PNG."""
        save_picture(path, self.picture())

    def as_json(self) -> dict[str, Any]:
        near = [
            {"of": name, "space": space, **each.as_json()}
            for space, both in self.neighbours.items()
            for name, each in both.items()
        ]
        starts = [
            {"of": name, **({"unknown": each} if isinstance(each, str) else each.as_json())}
            for name, each in self.recovery.items()
        ]
        return {
            **self.about,
            "findings": self.findings(),
            "neighbours": near,
            "membership": [each.as_json() for each in self.membership.values()],
            "recovery": starts,
            "seconds": self.seconds,
        }


ATTACK_COLUMNS = ("predictions of", "accuracy %", "attack", "AUC", "TPR % at 0.1 % FPR", "TPR % at 1 % FPR")
POINT_COLUMNS = ("points of", "measured by", "points", "beside", "rank test p", "traced to training %", "by chance %")


def attack_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Below ``ATTACK_COLUMNS``, one row for each attack of an audit as JSON."""
    return [
        [
            str(row["of"]),
            f"{100 * row['accuracy']:.1f}",
            str(attack["attack"]),
            _interval(attack["auc"]),
            *(_interval(each, 100, 2) for each in attack["tpr_at"]),
        ]
        for row in document["membership"]
        for attack in row["attacks"]
    ]


def point_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Below ``POINT_COLUMNS``: distances beside those of held-out images, and correlations beside those of others."""
    near = [
        [
            str(row["of"]),
            f"distance in {row['space']}",
            *(f"{row[name]:.3g}" for name in ("median_distance", "median_distance_held_out", "rank_test_p")),
            _interval(row["nearest_is_training"], 100, 1),
            f"{100 * row['nearest_is_training_expected']:.1f}",
        ]
        for row in document["neighbours"]
    ]
    starts = [
        [
            str(row["of"]),
            "correlation with its start",
            *(f"{row[name]:.2f}" for name in ("mean_correlation_with_start", "mean_correlation_with_others")),
            "",
            _interval(row["recognised"], 100, 1),
            f"{100 * row['chance']:.2g}",
        ]
        for row in document["recovery"]
        if "unknown" not in row
    ]
    return near + starts


def _starts(report: AuditReport) -> Iterator[str]:
    found = report.recovery[CORESET]
    if isinstance(found, str):
        yield found
        return
    count, known = len(found.own), round(found.recognised.value * len(found.own))
    sentence = (
        f"{known} of {count} points can be traced to the real image that they started from: of all training images of "
        f"the class it is the one that they correlate with most (mean correlation {float(found.own.mean()):.2f}, with "
        f"others {float(found.typical.mean()):.2f}; guessing would trace {100 * found.chance:.2g} %)."
    )
    leaks = found.recognised.low > found.chance
    yield sentence + (" Publishing the file publishes something of these images." if leaks else "")


def _neighbours(report: AuditReport) -> Iterator[str]:
    for space, both in report.neighbours.items():
        own = both[CORESET]
        near, often = own.p_value < SIGNIFICANT, own.share_p_value < SIGNIFICANT
        yield (
            f"In {space}, the points are {'nearer' if near else 'no nearer'} to training images than held-out images "
            f"are (p = {own.p_value:.2g}), and their nearest real image is one of the training data "
            f"{'more' if often else 'no more'} often than by chance: {100 * own.from_training.value:.0f} % of them, "
            f"{100 * own.expected:.0f} % by chance (p = {own.share_p_value:.2g})."
        )


def _members(report: AuditReport) -> Iterator[str]:
    own, whole = report.membership[CORESET], report.membership[ALL_DATA]
    best = own.strongest
    told = "tell" if any(each.beats_a_coin for each in own.decisive) else "do not tell"
    found = _interval(best.at(0.01).as_json(), 100, 1)
    yield (
        f"The coreset's predictions {told} who was in the training data: the strongest attack has an AUC of "
        f"{_number(best.auc)}, where 0.5 is a coin and a network trained on all data gives "
        f"{_number(whole.strongest.auc)}; at 1 % false positives it finds {found} % of the members."
    )
    if own.lira is None:
        yield "Only the attack by a threshold on the loss was made; --shadows 16 makes the stronger one, LiRA."


def _number(each: Share) -> str:
    return _interval(each.as_json())


def _interval(each: Mapping[str, float], factor: float = 1, digits: int = 3) -> str:
    value, low, high = (f"{factor * each[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
