"""What condensation does class by class: the synthetic images of each class, and the means of their embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.core.points import Points
from pseudocoresets.models.networks import Network
from pseudocoresets.models.networks.network import Applied

COUNTS = "counts"
"""The name, in the state, of the numbers of points per class: kept on the host, so that no iteration waits for them."""


def class_counts(points: Points, classes: int) -> Tensor:
    """How many points each class has (classes,), on the host; all of them where labels are soft."""
    known = points.state.get(COUNTS)
    if known is not None:
        return known.cpu()
    if points.y.is_floating_point():
        return torch.full((classes,), len(points))
    return points.y.bincount(minlength=classes).cpu()


def by_class(points: Points, counts: Tensor) -> Mapping[int, Points]:
    """The points of each class that has some, with weights a_jc / sum_j a_jc, where a_jc = w_j y_jc.

    Soft labels make every point one of every class.
    """
    if points.y.is_floating_point():
        members = membership(points, len(counts))
        return {
            c: Points(points.x, torch.full_like(points.y[:, 0], c, dtype=torch.int64), _shares(members[:, c]))
            for c in range(len(counts))
        }
    order, sizes = points.y.argsort(stable=True), counts.tolist()
    x, y, weights = (each[order].split(sizes) for each in (points.x, points.y, points.weights))
    return {c: Points(x[c], y[c], _shares(weights[c])) for c, size in enumerate(sizes) if size}


def membership(points: Points, classes: int) -> Tensor:
    """a_jc = w_j y_jc (points, classes)."""
    labels = points.y if points.y.is_floating_point() else F.one_hot(points.y, classes)
    return points.weights[:, None] * labels


def class_means(features: Tensor, members: Tensor) -> Tensor:
    """sum_i a_ic z_i / sum_i a_ic (classes, features); 0 for a class without members."""
    total = members.sum(0)
    return members.to(features).T @ features / torch.where(total > 0, total, 1.0)[:, None]


def class_gradients(network: Network, theta: Tensor, classes: Sequence[Points]) -> list[Tensor]:
    """q_c = grad_theta sum_j a_j CE(f(s_j; theta), y_j) of each group of points, differentiable in them.

    One tensor (groups, units, inputs) for each weight that is a matrix or more. A weight's gradient is a sum over
    images, and over places where it is one of a convolution, of products of what the layer got and the gradient in what
    it gave. One pass for all groups finds both, and the products are added up group by group.
    """
    place = theta.detach().requires_grad_()
    x, y, weights = (torch.cat(each) for each in zip(*((own.x, own.y, own.weights) for own in classes), strict=True))
    scores, layers = network.traced(place, x)
    if layers is None:
        rows = [_gradient(network, place, own) for own in classes]
        return [torch.stack(each) for each in zip(*(weight_rows(network, row) for row in rows), strict=True)]
    energy = (weights * F.cross_entropy(scores, y, reduction="none")).sum()
    gradients = torch.autograd.grad(energy, [each.output for each in layers.values()], create_graph=True)
    numbers = torch.arange(len(classes), device=x.device)
    sizes = torch.cat([numbers[c].expand(len(own.x)) for c, own in enumerate(classes)])
    members = (sizes == numbers[:, None]).to(x)
    products = (_products(applied, gradient) for applied, gradient in zip(layers.values(), gradients, strict=True))
    return [(members @ each.flatten(1)).view(-1, *each.shape[1:]) for each in products]


def weight_rows(network: Network, theta: Tensor) -> list[Tensor]:
    """The weights (..., units, inputs) of every layer that has a matrix or more, of vectors (..., size)."""
    first = theta.dim()
    return [each.flatten(first) for each in network.unflatten(theta).values() if each.dim() > first]


def _gradient(network: Network, theta: Tensor, own: Points) -> Tensor:
    energy = (own.weights * F.cross_entropy(network.logits(theta, own.x), own.y, reduction="none")).sum()
    return torch.autograd.grad(energy, theta, create_graph=True)[0]


def _products(applied: Applied, gradient: Tensor) -> Tensor:
    """The gradient of a layer's weight by each image alone, (images, units, inputs)."""
    layer, given, _ = applied
    if isinstance(layer, nn.Linear):
        return gradient[:, :, None] * given[:, None, :]
    return gradient.flatten(2) @ _windows(layer, given).mT


def _windows(layer: nn.Conv2d, given: Tensor) -> Tensor:
    """What each place of a convolution's output sees, (images, inputs, places).

    ``F.unfold`` is the same, with a launch for each image on a GPU.
    """
    assert not isinstance(layer.padding, str)
    (rows, columns), (high, wide) = layer.padding, layer.kernel_size
    seen = F.pad(given, (columns, columns, rows, rows))
    for dimension, size, stride in ((2, high, layer.stride[0]), (3, wide, layer.stride[1])):
        seen = seen.unfold(dimension, size, stride)
    return seen.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum()
