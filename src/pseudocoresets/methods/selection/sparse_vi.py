"""Sparse variational inference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points
from pseudocoresets.methods.moment_matching import ForwardKLLoss
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.weights import WeightSearch, coreset_gaussian, forward_kl_weights
from pseudocoresets.methods.solver import Solver, check_size, nearest_gaussian, smooth_model


@dataclass(frozen=True)
class SparseVI(Solver):
    """Greedy sparse variational inference (Campbell & Beronov 2019).

    Add the point whose log-likelihood correlates best with the residual under the coreset's posterior pi_w,

        i = argmax_i Cov_w[f_i, f - f_w] / sqrt(Var_w[f_i]),

    then lower KL(pi_w || pi) over the weights (:class:`WeightSearch`): ``rounds`` steps after each point, ``polish`` at
    the end. A step goes towards the weights of least |f - f_w|^2 under pi_w, as far as lowers the divergence. While the
    points cannot carry the full posterior, that optimum is far too narrow; ``forward`` goes on from there to the
    minimum of KL(pi || pi_w) over weights below each of ``caps`` times n / m (:func:`forward_kl_weights`), of which the
    one nearest to the full posterior by Gaussian fits is kept.
    """

    rounds: int = 2
    polish: int = 30
    forward: bool = True
    caps: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, math.inf)

    name: ClassVar[str] = "sparse-vi"

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        check_size(problem.energy.data_size, size)
        search = WeightSearch(problem, seed)
        for _ in range(size):
            search.add(search.most_correlated())
            search.refine(self.rounds)
        search.refine(self.polish)
        if not self.forward:
            return search.coreset()
        chosen, model, full = search.coreset(drop=False), smooth_model(problem), nearest_gaussian(problem)
        loss = ForwardKLLoss(model, full)
        candidates = [forward_kl_weights(problem, chosen, loss, 100, cap) for cap in self.caps]
        return min(candidates, key=lambda each: float(kl_divergence(full, coreset_gaussian(model, each, None))))
