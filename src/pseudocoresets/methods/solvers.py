"""Every construction for these models, by name."""

from __future__ import annotations

from pseudocoresets.core.registry import Registry
from pseudocoresets.methods.moment_matching import (
    ContrastiveDivergence,
    ForwardKL,
    PseudoSparseVI,
    ReverseKL,
    Wasserstein,
)
from pseudocoresets.methods.posterior_problem import Method
from pseudocoresets.methods.selection.hilbert import CoresetMCMC, FrankWolfe, Giga, QuasiNewton, SparseVI, Uniform

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
