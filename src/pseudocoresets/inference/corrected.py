"""Samples of a coreset's posterior with weights from the full data: expectations that are right in the limit.

theta_s are draws of the coreset's posterior pi_u and l, l_u the log-likelihoods of all the data and of the coreset. The
prior cancels in the ratio of the posteriors, r_s = exp(l(theta_s) - l_u(theta_s)) up to a constant, and

    E_pi[f] = sum_s w_s f(theta_s),   w_s = r_s / sum_t r_t, Pareto-smoothed (``kernels.pareto``).

The shape k of the ratios' tail says whether the coreset's posterior is good enough a proposal for that, which needs no
reference: below 0.7 it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pseudocoresets.core.energy import Model
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.targets import full_log_likelihoods, log_likelihoods
from pseudocoresets.kernels.pareto import LARGEST_K, SmoothedWeights, effective_draws, pareto_smoothed


@dataclass(frozen=True)
class CorrectedSamples:
    """Weighted draws of the full posterior."""

    draws: Tensor
    """(draws, size)"""
    smoothed: SmoothedWeights

    @property
    def weights(self) -> Tensor:
        """(draws,), sum to one."""
        return self.smoothed.log_weights.exp()

    @property
    def k(self) -> float:
        """The shape of the tail of the importance ratios."""
        return self.smoothed.k

    @property
    def trusted(self) -> bool:
        """Whether k is below 0.7."""
        return self.k <= LARGEST_K

    @property
    def ess(self) -> float:
        """How many independent draws of the full posterior are worth as much, were these independent."""
        return effective_draws(self.smoothed)

    @property
    def gaussian(self) -> Gaussian:
        """Mean and covariance of the full posterior."""
        return Gaussian.fit(self.draws, self.weights)

    @property
    def exact(self) -> bool:
        return False

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """sum_s w_s f(theta_s) for a function of draws (draws, size) that gives (draws, ...)."""
        values = function(self.draws)
        return torch.tensordot(self.weights, values.to(self.weights.dtype), 1)


def corrected(draws: Tensor, model: Model, points: Points, data: FullData) -> CorrectedSamples:
    """Draws of the posterior of ``points`` as draws of that of ``data``; one pass over them."""
    with torch.no_grad():
        ratios = full_log_likelihoods(model, draws, data) - log_likelihoods(model, draws, points)
    return CorrectedSamples(draws, pareto_smoothed(ratios))
