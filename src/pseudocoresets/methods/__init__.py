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
from pseudocoresets.methods.gaussian_reverse_kl import GaussianPSVI, GaussianReverseKL
from pseudocoresets.methods.laplace_wasserstein import LaplaceWasserstein
from pseudocoresets.methods.method import Hyperparameter, Loss, Method, Problem, RealData
from pseudocoresets.methods.moment_matching import MomentMatching
from pseudocoresets.methods.psvi import PseudocoresetVI
from pseudocoresets.methods.reverse_kl import ReverseKL
from pseudocoresets.methods.rows import row_problem
from pseudocoresets.methods.selection.coreset_mcmc import CoresetMCMC
from pseudocoresets.methods.selection.hilbert import FrankWolfe, Giga
from pseudocoresets.methods.selection.sparse_vi import SparseVI
from pseudocoresets.methods.selection.uniform import Uniform
from pseudocoresets.methods.selection.weights import QuasiNewton
from pseudocoresets.methods.solver import Solver
from pseudocoresets.methods.starts import starting_points
from pseudocoresets.methods.wasserstein import Wasserstein

SOLVERS: tuple[type[Solver], ...] = (
    MomentMatching,
    GaussianReverseKL,
    GaussianPSVI,
    LaplaceWasserstein,
    Uniform,
    FrankWolfe,
    Giga,
    SparseVI,
    QuasiNewton,
    CoresetMCMC,
)
"""Those that find their points directly, for models whose curvature is known."""

__all__ = [
    "BPTT",
    "METHODS",
    "SOLVERS",
    "ContrastiveDivergence",
    "ContrastiveWasserstein",
    "CoresetMCMC",
    "ForwardKL",
    "ForwardKLByHMC",
    "ForwardKLByLaplace",
    "FrankWolfe",
    "GaussianPSVI",
    "GaussianReverseKL",
    "Giga",
    "Hyperparameter",
    "LaplaceWasserstein",
    "Loss",
    "Method",
    "MomentMatching",
    "Points",
    "Problem",
    "PseudocoresetVI",
    "QuasiNewton",
    "RealData",
    "ReverseKL",
    "Solver",
    "SparseVI",
    "Uniform",
    "Wasserstein",
    "row_problem",
    "starting_points",
]

METHODS: Registry[Callable[..., Method | Solver]] = Registry(
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
    }
    | {solver.name: solver for solver in SOLVERS},
    group="pseudocoresets.methods",
)
"""Every construction method by name: those that estimate a gradient for the construction loop, and solvers."""
