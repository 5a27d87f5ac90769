"""The one mechanism: a sum of clipped vectors, one per example, with Gaussian noise.

    sum_i v_i min(1, c / |v_i|) + N(0, (z c)^2 I)

z is the noise multiplier, c the norm that each example's vector is clipped to before anything is added up. Sums and
noise are in double precision: in single precision an example would also change how the sum of the others is rounded,
which no clipping bounds. How v_i itself was rounded does not matter, as long as it was computed from example i alone
and |v_i| is the norm of the very numbers that are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from pseudocoresets.dp.secure import Entropy
from pseudocoresets.dp.vectors import ExampleVectors

if TYPE_CHECKING:
    from pseudocoresets.models.networks import Network

ROUNDING = 1e-6
"""A norm in single precision may be so much too small, relatively, for vectors as long as a network's parameters."""


def clipped(vectors: Tensor, norm: float) -> Tensor:
    """Vectors (examples, size), each scaled to a norm of at most ``norm``; those that are not finite become zero."""
    finite = torch.isfinite(vectors).all(1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=torch.float64)
    return (vectors * _factors(norms, norm)).to(vectors.dtype)


def clipped_sum(vectors: ExampleVectors, norm: float | Tensor, admitted: Tensor | None = None) -> Tensor:
    """sum_i v_i min(1, norm / |v_i|) in float64, over examples that are ``admitted`` and whose vector is finite."""
    squares = vectors.squares()
    counts = torch.isfinite(squares) if admitted is None else torch.isfinite(squares) & admitted
    return vectors.weighted(torch.where(counts, _factors(squares.sqrt(), norm), 0.0))


def _factors(norms: Tensor, norm: float | Tensor) -> Tensor:
    """min(1, norm / |v_i|) of vectors with these norms, less what rounding may add."""
    return ((1 - ROUNDING) * norm / norms.clamp_min(1e-300)).clamp_max(1.0)


def noisy_sum(total: Tensor, norm: float, noise_multiplier: float, entropy: Entropy) -> Tensor:
    """A sum of vectors clipped to ``norm``, in float64, with its noise; as float32."""
    return (total.double() + noise_multiplier * norm * entropy.normal(total.shape, total.device)).float()


def per_example_gradients(network: Network, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """grad_theta of -log p(y_i | x_i, theta) for each example: (examples, size)."""

    def loss(parameters: Tensor, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(network.logits(parameters, image[None]), label[None])

    network.prepare(x.device)
    gradients: Tensor = vmap(grad(loss), in_dims=(None, 0, 0))(theta, x, y)
    return gradients
