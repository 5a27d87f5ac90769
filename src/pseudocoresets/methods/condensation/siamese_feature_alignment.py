"""Feature alignment with differentiable Siamese augmentation: CAFE+DSA (Wang et al. 2022).

The loss is that of ``cafe`` with features of A x in place of x, for real and synthetic images alike: A is one drawn
augmentation, with one set of parameters for all images. The networks are trained on augmented images too, each of which
draws its own parameters; how good they are is measured on real images as they are.

Defaults are those of ``cafe``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.methods.condensation.feature_alignment import FeatureAlignment


@dataclass(frozen=True)
class SiameseFeatureAlignment(FeatureAlignment):
    """The options are those of ``cafe``."""

    name: ClassVar[str] = "cafe-dsa"
    augments: ClassVar[bool] = True
