"""Would differences of first derivatives do for gradient matching? They beside the exact gradient of the images.

With v = dL/dq_c, the exact gradient of the match in the images is the derivative of grad_x E_c along v at theta. Its
difference is [grad_x E_c(theta + h v) - grad_x E_c(theta - h v)] / (2 h), h |v| = radius |theta|. For each are given
its cosine with the exact gradient and the relative change of the match after a move of the images against it, by a part
of their norm; means over the classes. A smooth network shows that the differences are right.

    python benchmarks/match_differences.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import load_dataset
from pseudocoresets.methods import RealData
from pseudocoresets.methods.condensation.gradient_matching import layer_distance
from pseudocoresets.methods.selection import random_per_class
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network

RADII = (1e-2, 0.1, 0.3)
MOVES = (0.003, 0.01, 0.03, 0.1)
IPC = 10


def table(network_name: str, start: str) -> Tensor:
    """A row for the exact gradient and for each radius: the cosine, and the change after each move."""
    data = load_dataset("digits")
    network = build_network(network_name, data.shape, len(data.classes))
    model, theta = Classifier(network), network.initialise(0).double()
    chosen = random_per_class(data.train, IPC, 0)
    images, labels = data.transform(data.train.images[chosen]).double(), data.train.labels[chosen]
    if start == "noise":
        images = torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).double()
    batch = RealData.of(data, torch.device("cpu")).class_batch(64, Randomness.for_purpose(0))
    found = []
    for c, (x, y) in enumerate(zip(batch.x.split(batch.counts), batch.y.split(batch.counts), strict=True)):
        own = images[labels == c].requires_grad_()
        target, wanted = torch.full((len(own),), c), _gradient(model, theta, x.double(), y).detach()

        def distance(seen: Tensor, target: Tensor = target, wanted: Tensor = wanted) -> Tensor:
            return layer_distance(network, _gradient(model, theta, seen, target), wanted)

        here = distance(own)
        (exact,) = torch.autograd.grad(here, own)
        q = _gradient(model, theta, own, target).detach().requires_grad_()
        (v,) = torch.autograd.grad(layer_distance(network, q, wanted), q)
        directions = [exact]
        for radius in RADII:
            h = radius * theta.norm() / v.norm()
            above, below = (-model.log_likelihood(theta + sign * h * v, own, target).mean() for sign in (1, -1))
            directions.append(torch.autograd.grad((above - below) / (2 * h), own)[0])
        rows = []
        for direction in directions:
            cosine = torch.cosine_similarity(exact.flatten(), direction.flatten(), 0)
            step = own.detach().norm() * direction / direction.norm()
            changes = [distance(own.detach() - part * step).detach() / here.detach() - 1 for part in MOVES]
            rows.append(torch.stack([cosine, *changes]))
        found.append(torch.stack(rows))
    return torch.stack(found).mean(0)


def _gradient(model: Classifier, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    place = theta.detach().requires_grad_()
    return torch.autograd.grad(-model.log_likelihood(place, x, y).mean(), place, create_graph=True)[0]


if __name__ == "__main__":
    print("network, start, gradient | cosine | relative change after moves of", *MOVES)
    for activation in ("sigmoid", "relu"):
        for start in ("noise", "real"):
            rows = table(f"convnet:depth=2,width=32,activation={activation}", start).tolist()
            for name, row in zip(("exact", *RADII), rows, strict=True):
                print(activation, start, name, "|", f"{row[0]:.2f}", "|", *(f"{value:+.3f}" for value in row[1:]))
