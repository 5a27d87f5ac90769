"""The gradient of a ConvNet that is written out is the one that autograd finds."""

from __future__ import annotations

import pytest
import torch

from pseudocoresets.backends import ChainPlan, PlainBackend
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.kernels import Langevin, advance
from pseudocoresets.models.classifier import Classifier, TiledClassifier, differentiated
from pseudocoresets.models.networks import build_network, tiles

CPU = torch.device("cpu")


def by_autograd(network, theta, x, y, weights):
    theta = theta.detach().requires_grad_()
    values = (weights * Classifier(network).log_likelihood(theta, x, y)).sum(-1)
    return values.detach(), torch.autograd.grad(values.sum(), theta)[0]


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "soft labels"])
@pytest.mark.parametrize("own", [False, True], ids=["shared images", "own images"])
@pytest.mark.parametrize(
    ("name", "shape", "chains"),
    [
        ("convnet", (1, 8, 8), 1),
        ("convnet:width=5", (3, 16, 16), 3),
        ("convnet:depth=3,width=4", (1, 28, 28), 2),
        ("convnet:depth=1,width=3", (2, 8, 8), 2),
    ],
)
def test_gradient_is_that_of_autograd(name, shape, chains, own, soft, monkeypatch):
    network = build_network(name, shape, 4)
    width = len(next(network.prototype.parameters()))
    monkeypatch.setattr(tiles, "LARGEST_ACTIVATION", 4 * chains * width * shape[1] ** 2)
    generator = torch.Generator().manual_seed(1)
    leading = (chains, 6) if own else (6,)  # four at once, and then two
    x = torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(4, leading, generator=generator)
    if soft:
        y = torch.rand(*leading, 4, generator=generator, dtype=torch.float64)
    weights = torch.rand(*leading, generator=generator, dtype=torch.float64)
    theta = network.initialise(2, chains).double()
    theta += 0.1 * torch.randn(theta.shape, generator=generator, dtype=torch.float64)
    model = TiledClassifier(network)
    for _ in range(2):  # the second time in memory that holds the first one's numbers
        values, gradients = model.log_likelihood_and_gradient(theta, x, y, weights)
    expected_values, expected = by_autograd(network, theta, x, y, weights)
    torch.testing.assert_close(values, expected_values, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max()))


def test_single_precision_is_near_double():
    """Winograd's transforms amplify rounding some tenfold: 1e-5 of the gradient, where autograd reaches 1e-6."""
    network = build_network("convnet:depth=3,width=32", (3, 32, 32), 10)
    theta = network.initialise(0, 1)
    x, y = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    _, found = TiledClassifier(network).log_likelihood_and_gradient(theta, x, y, torch.ones(5))
    _, exact = by_autograd(network, theta.double(), x.double(), y, torch.ones(5).double())
    assert float((found - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.parametrize(
    ("name", "shape", "known"),
    [
        ("convnet", (1, 8, 8), True),
        ("convnet", (3, 12, 12), False),
        ("convnet:pooling=max", (1, 8, 8), False),
        ("convnet:norm=group", (1, 8, 8), False),
        ("convnet:activation=sigmoid", (1, 8, 8), False),
        ("mlp:depth=1,width=4", (1, 8, 8), False),
    ],
)
def test_other_networks_stay_with_autograd(name, shape, known):
    model = Classifier(build_network(name, shape, 3))
    assert (differentiated(model, CPU) is not model) == known
    if not known:
        with pytest.raises(TypeError, match="not written out"):
            tiles.TiledConvNet(model.network, 1, torch.Size((2, *shape)), torch.float32)


@pytest.mark.parametrize("noisy", [True, False])
def test_chain_is_that_of_autograd(noisy):
    """Five steps under fresh augmentations, from the same random numbers."""
    network = build_network("convnet:width=4", (1, 8, 8), 3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 1, 8, 8, generator=generator, dtype=torch.float64)
    points = Points(x, torch.arange(6) % 3, torch.full((6,), 10.0, dtype=torch.float64))
    energy = Energy(Classifier(network, prior_scale=0.5), 60)
    start, kernel, augmentation = network.initialise(1, 2).double(), Langevin(0.1), dsa(flippable=True)
    plan = ChainPlan(kernel, energy, points, 5, augmentation, noisy=noisy)
    found = PlainBackend().run_chain(plan, start, Randomness.for_purpose(3, "test"))[-1]
    randomness = Randomness.for_purpose(3, "test")
    quiet = Energy(energy.model, 60, 1.0 if noisy else 0.0)
    target = quiet.target(points.x, points.y, points.weights, lambda x: augmentation.draw(len(x), randomness)(x))
    expected = advance(kernel, start, target, 5, randomness.device)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
