"""Gradient matching with differentiable Siamese augmentation: DSA (Zhao and Bilen 2021).

The loss is that of ``gm`` with f(A x; theta) in place of f(x; theta), for real and synthetic images alike: A is one
drawn augmentation, with one set of parameters for all images. The networks are trained on augmented images too, each of
which draws its own parameters.

Defaults are those of ``gm``. The authors' images start from real ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.methods.condensation.gradient_matching import GradientMatching


@dataclass(frozen=True)
class SiameseGradientMatching(GradientMatching):
    """The options are those of ``gm``."""

    name: ClassVar[str] = "dsa"
    augments: ClassVar[bool] = True
