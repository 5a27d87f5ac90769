"""Can the real images that a construction started from be recognised in its points?

A construction is deterministic: its first images follow from data, selection and seed, and can be chosen again. With
r(x, u) the correlation of the pixels of a point x and a real image u, each point's own start s is compared with all
other training images of its class; it is recognised where r(x, s) is the largest of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.core.devices import HOST
from pseudocoresets.core.errors import InputError
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.transforms import as_pixels
from pseudocoresets.methods.selection import NOISES, selection_of_start
from pseudocoresets.privacy.recipe import Recipe
from pseudocoresets.privacy.roc import Share, share
from pseudocoresets.sources.experts import Experts


@dataclass(frozen=True)
class Recovery:
    """How much of the start images is left in the points."""

    starts: Tensor
    """Positions of the start images in the training data."""
    own: Tensor
    """Correlation of each point with its start."""
    typical: Tensor
    """The mean of its correlations with the other images of the class."""
    closest: Tensor
    """The largest of these."""
    recognised: Share
    chance: float
    """The share that guessing would recognise."""

    def as_json(self) -> dict[str, Any]:
        return {
            "recognised": self.recognised.as_json(),
            "chance": self.chance,
            "mean_correlation_with_start": float(self.own.mean()),
            "mean_correlation_with_others": float(self.typical.mean()),
            "correlation_with_start": self.own.tolist(),
            "correlation_with_others_mean": self.typical.tolist(),
            "correlation_with_others_largest": self.closest.tolist(),
            "start_images": self.starts.tolist(),
        }


def start_images(
    coreset: Coreset, data: Dataset, experts: Experts | None = None, device: torch.device = HOST
) -> Tensor | str:
    """Positions of the images that the points started from, or the reason why they are not known."""
    try:
        recipe = Recipe.of(coreset)
    except InputError:
        return "The file does not say what the construction started from."
    settings = recipe.start
    if recipe.steps[0].made_from is not None:
        return "The construction started from synthetic images, so there is no real start image to recognise."
    if settings.initialisation in NOISES:
        return "The construction started from noise, so there is no start image to recognise."
    selection = selection_of_start(settings.initialisation)
    if selection.needs_experts and experts is None:
        return f"The start images were chosen by '{settings.initialisation}', which needs the experts to be repeated."
    found = selection.select(data, settings.formation**2 * settings.ipc, settings.seed, experts, device)
    if len(found) != len(coreset):
        return "The file holds another number of points than its construction started from."
    return found


def recovery(coreset: Coreset, data: Dataset, starts: Tensor) -> Recovery:
    """Each point of ``coreset`` against its start and the other training images of that image's class."""
    span = data.transform.span
    points, labels = _standardised(coreset.to_pixels()), data.train.labels[starts]
    own, typical, closest = (torch.zeros(len(points)) for _ in range(3))
    chances = torch.zeros(len(points))
    for label in labels.unique():
        chosen, members = (labels == label).nonzero().squeeze(1), (data.train.labels == label).nonzero().squeeze(1)
        correlations = points[chosen] @ _standardised(as_pixels(data.train.images[members], span)).T
        is_start = members[None] == starts[chosen, None]
        own[chosen] = correlations.where(is_start, 0.0).sum(1)
        typical[chosen] = correlations.where(~is_start, 0.0).sum(1) / max(1, len(members) - 1)
        closest[chosen] = correlations.where(~is_start, -1.0).max(1).values
        chances[chosen] = 1 / len(members)
    return Recovery(
        starts, own, typical, closest, share(int((own > closest).sum()), len(points)), float(chances.mean())
    )


def _standardised(pixels: Tensor) -> Tensor:
    """Rows of mean zero and norm one, whose products are correlations; a constant image correlates with nothing."""
    flat = pixels.detach().cpu().float().flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    return centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
