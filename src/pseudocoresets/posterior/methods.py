"""Every construction for these models, by name."""

from __future__ import annotations

from pseudocoresets.posterior.problem import Method
from pseudocoresets.posterior.pseudo import (
    ContrastiveDivergence,
    ForwardKL,
    PseudoSparseVI,
    ReverseKL,
    Wasserstein,
)
from pseudocoresets.posterior.selection import CoresetMCMC, FrankWolfe, Giga, QuasiNewton, SparseVI, Uniform
from pseudocoresets.registry import Registry

METHODS: Registry[Method] = Registry(
    "method",
    {
        "cd": ContrastiveDivergence(),
        "fkl": ForwardKL(),
        "rkl": ReverseKL(),
        "psvi": PseudoSparseVI(),
        "wasserstein": Wasserstein(),
        "uniform": Uniform(),
        "frank-wolfe": FrankWolfe(),
        "giga": Giga(),
        "sparse-vi": SparseVI(),
        "quasi-newton": QuasiNewton(),
        "coreset-mcmc": CoresetMCMC(),
    },
)
