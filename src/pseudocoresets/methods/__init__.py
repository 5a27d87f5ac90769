"""Construction methods by name: one gradient estimator each."""

from __future__ import annotations

from collections.abc import Callable

from pseudocoresets.core.points import Points
from pseudocoresets.core.registry import Registry
from pseudocoresets.methods.bptt import BPTT
from pseudocoresets.methods.contrastive import ContrastiveDivergence
from pseudocoresets.methods.contrastive_wasserstein import ContrastiveWasserstein
from pseudocoresets.methods.forward_kl import ForwardKL
from pseudocoresets.methods.forward_kl_hmc import ForwardKLByHMC
from pseudocoresets.methods.forward_kl_laplace import ForwardKLByLaplace
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss
from pseudocoresets.methods.problem import Problem, RealData
from pseudocoresets.methods.psvi import PseudocoresetVI
from pseudocoresets.methods.renamed import method_options_from
from pseudocoresets.methods.reverse_kl import ReverseKL
from pseudocoresets.methods.wasserstein import Wasserstein

__all__ = [
    "BPTT",
    "METHODS",
    "ContrastiveDivergence",
    "ContrastiveWasserstein",
    "ForwardKL",
    "ForwardKLByHMC",
    "ForwardKLByLaplace",
    "GradientMethod",
    "Hyperparameter",
    "Loss",
    "Method",
    "Points",
    "Problem",
    "PseudocoresetVI",
    "RealData",
    "ReverseKL",
    "Wasserstein",
    "method_options_from",
]

Method = GradientMethod

_METHODS: tuple[type[GradientMethod], ...] = (
    ContrastiveDivergence,
    ForwardKL,
    ReverseKL,
    Wasserstein,
    ForwardKLByHMC,
    ForwardKLByLaplace,
    PseudocoresetVI,
    ContrastiveWasserstein,
    BPTT,
)
METHODS: Registry[Callable[..., GradientMethod]] = Registry(
    "method", {method.name: method for method in _METHODS}, group="pseudocoresets.methods"
)
"""Every construction method by name."""
