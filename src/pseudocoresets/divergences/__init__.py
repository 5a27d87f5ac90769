"""Construction methods by name: one gradient estimator each."""

from __future__ import annotations

from collections.abc import Callable

from pseudocoresets.divergences.contrastive import ContrastiveDivergence
from pseudocoresets.divergences.contrastive_wasserstein import ContrastiveWasserstein
from pseudocoresets.divergences.forward_kl import ForwardKL
from pseudocoresets.divergences.forward_kl_hmc import ForwardKLByHMC
from pseudocoresets.divergences.forward_kl_laplace import ForwardKLByLaplace
from pseudocoresets.divergences.method import Extra, Loss, Method, ParameterSource, Points, Problem, RealData
from pseudocoresets.divergences.psvi import PseudocoresetVI
from pseudocoresets.divergences.reverse_kl import ReverseKL
from pseudocoresets.divergences.through_chain import ThroughChain
from pseudocoresets.divergences.wasserstein import Wasserstein
from pseudocoresets.registry import Registry

__all__ = [
    "METHODS",
    "ContrastiveDivergence",
    "ContrastiveWasserstein",
    "Extra",
    "ForwardKL",
    "ForwardKLByHMC",
    "ForwardKLByLaplace",
    "Loss",
    "Method",
    "ParameterSource",
    "Points",
    "Problem",
    "PseudocoresetVI",
    "RealData",
    "ReverseKL",
    "ThroughChain",
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
        "bptt": ThroughChain,
    },
)
"""Every construction method by name."""
