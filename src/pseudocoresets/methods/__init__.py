"""Construction methods by name: one gradient estimator each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.settings import check_options
from pseudocoresets.methods.black_box_vi import BlackBoxVI
from pseudocoresets.methods.bptt import BPTT
from pseudocoresets.methods.condensation.dataset_distillation import DatasetDistillation
from pseudocoresets.methods.condensation.distribution_matching import DistributionMatching
from pseudocoresets.methods.condensation.feature_alignment import FeatureAlignment
from pseudocoresets.methods.condensation.gradient_matching import GradientMatching
from pseudocoresets.methods.condensation.kernel_inducing_points import KernelInducingPoints
from pseudocoresets.methods.condensation.label_distillation import LabelDistillation
from pseudocoresets.methods.condensation.siamese_feature_alignment import SiameseFeatureAlignment
from pseudocoresets.methods.condensation.siamese_gradient_matching import SiameseGradientMatching
from pseudocoresets.methods.condensation.trajectory_matching import TrajectoryMatching
from pseudocoresets.methods.contrastive import ContrastiveDivergence
from pseudocoresets.methods.contrastive_wasserstein import ContrastiveWasserstein
from pseudocoresets.methods.forward_kl import ForwardKL
from pseudocoresets.methods.forward_kl_hmc import ForwardKLByHMC
from pseudocoresets.methods.forward_kl_laplace import ForwardKLByLaplace
from pseudocoresets.methods.gaussian_reverse_kl import GaussianPSVI, GaussianReverseKL
from pseudocoresets.methods.laplace_wasserstein import LaplaceWasserstein
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss
from pseudocoresets.methods.moment_matching import MomentMatching
from pseudocoresets.methods.persistent import PersistentContrastiveDivergence
from pseudocoresets.methods.problem import Problem, RealData
from pseudocoresets.methods.psvi import PseudocoresetVI
from pseudocoresets.methods.renamed import method_options_from
from pseudocoresets.methods.reverse_kl import ReverseKL
from pseudocoresets.methods.rows import row_problem
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.methods.selection.coreset_mcmc import CoresetMCMC, TuningFreeCoresetMCMC
from pseudocoresets.methods.selection.hamiltonian_flow import SparseHamiltonianFlow
from pseudocoresets.methods.selection.hard_thresholding import HardThresholding
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
    HardThresholding,
    SparseVI,
    QuasiNewton,
    CoresetMCMC,
    TuningFreeCoresetMCMC,
    SparseHamiltonianFlow,
)
"""Those that find their points directly, for models whose curvature is known."""

__all__ = [
    "BPTT",
    "METHODS",
    "SOLVERS",
    "BlackBoxVI",
    "ContrastiveDivergence",
    "ContrastiveWasserstein",
    "CoresetMCMC",
    "DatasetDistillation",
    "DistributionMatching",
    "FeatureAlignment",
    "ForwardKL",
    "ForwardKLByHMC",
    "ForwardKLByLaplace",
    "FrankWolfe",
    "GaussianPSVI",
    "GaussianReverseKL",
    "Giga",
    "GradientMatching",
    "GradientMethod",
    "HardThresholding",
    "Hyperparameter",
    "KernelInducingPoints",
    "LabelDistillation",
    "LaplaceWasserstein",
    "Loss",
    "Method",
    "MomentMatching",
    "PersistentContrastiveDivergence",
    "Points",
    "Problem",
    "PseudocoresetVI",
    "QuasiNewton",
    "RealData",
    "ReverseKL",
    "SiameseFeatureAlignment",
    "SiameseGradientMatching",
    "Solver",
    "SparseHamiltonianFlow",
    "SparseVI",
    "TrajectoryMatching",
    "TuningFreeCoresetMCMC",
    "Uniform",
    "Wasserstein",
    "build_gradient_method",
    "build_method",
    "method_options_from",
    "require_method",
    "row_problem",
    "starting_points",
]

Method: TypeAlias = GradientMethod | Solver
"""What makes a coreset: a gradient that moves its points, or a solver that finds them."""

_METHODS: tuple[type[GradientMethod] | type[Solver], ...] = (
    ContrastiveDivergence,
    PersistentContrastiveDivergence,
    ForwardKL,
    ReverseKL,
    Wasserstein,
    ForwardKLByHMC,
    ForwardKLByLaplace,
    PseudocoresetVI,
    BlackBoxVI,
    ContrastiveWasserstein,
    BPTT,
    DistributionMatching,
    GradientMatching,
    SiameseGradientMatching,
    FeatureAlignment,
    SiameseFeatureAlignment,
    TrajectoryMatching,
    DatasetDistillation,
    LabelDistillation,
    KernelInducingPoints,
    *SOLVERS,
)
METHODS: Registry[Callable[..., Method]] = Registry(
    "method", {method.name: method for method in _METHODS}, group="pseudocoresets.methods"
)
"""Every construction method by name."""


def require_method(name: str) -> None:
    """Refuse what is neither a method nor a selection of real images, and suggest the nearest name."""
    Registry("method", dict.fromkeys((*METHODS, *SELECTIONS)))[name]


def build_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method of that name with these options; those of the last version's names come with a warning."""
    build, present = METHODS[name], method_options_from(name, options or {})
    check_options(build, present, f"The method '{name}'")
    return build(**present)


def build_gradient_method(name: str, options: Mapping[str, Any] | None = None) -> GradientMethod:
    """The same for a method that learns points by a gradient, as images are."""
    method = build_method(name, options)
    if not isinstance(method, GradientMethod):
        raise InputError(f"The method '{name}' finds rows for a model, not images; give rows and model=... for it.")
    return method
