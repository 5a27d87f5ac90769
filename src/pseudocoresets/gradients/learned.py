"""The tensors of weighted points that are learned, and losses whose gradients in them are found piecewise."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.state import STEP_SIZE

HYPERPARAMETER = "hyperparameter."
LEARNED_STEP_SIZE = HYPERPARAMETER + STEP_SIZE
"""The name of the step size among the learned tensors."""


def learned_tensors(points: Points) -> dict[str, Tensor]:
    """The tensors of the points that a gradient is wanted for, by name: x, y, weights, ``hyperparameter.NAME``."""
    named = {"x": points.x, "y": points.y, "weights": points.weights} | {
        HYPERPARAMETER + name: value for name, value in points.hyperparameters.items()
    }
    return {name: tensor for name, tensor in named.items() if tensor.requires_grad}


def detached_leaves(points: Points) -> Points:
    """The same points apart from any graph, asking for a gradient where the originals do."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    return Points(
        leaf(points.x),
        leaf(points.y),
        leaf(points.weights),
        {name: leaf(value) for name, value in points.hyperparameters.items()},
    )


def with_gradient(value: Tensor, inputs: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    """A scalar of this value whose gradient in each of ``inputs`` is the given one."""
    total = value.detach()
    for name, tensor in inputs.items():
        total = total + ((tensor - tensor.detach()) * gradients[name]).sum()
    return total
