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
from pseudocoresets.methods.method import Hyperparameter, Loss, Method, ParameterSource, Problem, RealData
from pseudocoresets.methods.psvi import PseudocoresetVI
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
    "Hyperparameter",
    "Loss",
    "Method",
    "ParameterSource",
    "Points",
    "Problem",
    "PseudocoresetVI",
    "RealData",
    "ReverseKL",
    "Wasserstein",
]

METHODS: Registry[Callable[..., Method]] = Registry(
    "method",
    {
        "cd": ContrastiveDivergence,
        "fkl": ForwardKL,
        "rkl": ReverseKL,
        "wasserstein": Wasserstein,
        "fkl-hmc": ForwardKLByHMC,
        "fkl-kfl": ForwardKLByLaplace,
        "psvi": PseudocoresetVI,
        "cd-wasserstein": ContrastiveWasserstein,
        "bptt": BPTT,
    },
    group="pseudocoresets.methods",
)
"""Every construction method by name."""
