"""Gradients per example layer by layer are those of each example alone, and so is what clipping makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pseudocoresets as pc
from pseudocoresets.backends import PlainBackend
from pseudocoresets.dp import ExampleVectors, LayerwiseGradients, clipped_sum, is_layerwise, per_example_gradients
from pseudocoresets.dp.mechanism import ROUNDING
from pseudocoresets.dp.vectors import Outer, Stacked
from pseudocoresets.models.networks import Network
from pseudocoresets.models.networks.stack import Stack

SHAPE = (2, 16, 16)
KNOWN = (
    "convnet:depth=2,width=4",
    "convnet:depth=2,width=4,norm=group,pooling=max,activation=leaky-relu",
    "convnet:depth=2,width=4,norm=none,activation=sigmoid",
    "convnet:depth=2,width=4,norm=layer,pooling=none",
    "alexnet",
    "lenet",
    "mlp:depth=2,width=8",
)
FLOAT64_ROUNDING = 1e-12
"""Relative, of sums of some thousand terms that partly cancel."""


def strided() -> Stack:
    """Kernels, strides and paddings that differ in both directions."""
    first = nn.Conv2d(2, 3, kernel_size=(3, 2), stride=(2, 3), padding=(2, 1))
    layers = [first, nn.GroupNorm(3, 3), nn.Tanh(), nn.Conv2d(3, 4, kernel_size=(1, 3)), nn.GELU()]
    return Stack(layers, nn.Sequential(nn.Linear(9 * 4 * 4, 6), nn.Softplus(), nn.Linear(6, 10)))


def networks() -> list[Network]:
    named = [pc.build_network(name, SHAPE, 10) for name in KNOWN]
    return [*named, Network.from_module(strided, SHAPE, 10)]


def batch(count: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype), torch.arange(count) % 10


def one_by_one(vectors: ExampleVectors, count: int) -> Tensor:
    return torch.stack([vectors.weighted(row) for row in torch.eye(count, dtype=torch.float64)])


@pytest.mark.parametrize("network", networks(), ids=lambda network: str(network.spec))
def test_gradients_are_those_of_vmap_and_norms_those_of_the_gradients(network: Network) -> None:
    (x, y), theta = batch(4), network.initialise(3).double()
    wanted = per_example_gradients(network, theta, x, y)
    vectors = LayerwiseGradients(network)(theta, x, y)
    found = one_by_one(vectors, 4)
    assert torch.allclose(found, wanted, rtol=0, atol=FLOAT64_ROUNDING * float(wanted.abs().max()))
    assert torch.allclose(vectors.squares(), wanted.square().sum(1), rtol=FLOAT64_ROUNDING)


def test_gradients_are_those_of_opacus() -> None:
    grad_sample = pytest.importorskip("opacus.grad_sample")
    network = pc.build_network("convnet:width=4", SHAPE, 10)
    (x, y), theta = batch(6, torch.float32), network.initialise(3)
    theirs = grad_sample.GradSampleModule(network.module(theta).train(), loss_reduction="sum")
    F.cross_entropy(theirs(x), y, reduction="sum").backward()
    wanted = torch.cat([parameter.grad_sample.flatten(1) for parameter in theirs.parameters()], 1)
    assert torch.allclose(one_by_one(LayerwiseGradients(network)(theta, x, y), 6).float(), wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rounding_of_gradients_makes_an_addend_longer_than_the_norm(dtype: torch.dtype) -> None:
    """Each one alone, in whatever precision it was found: at most the norm, and just that where it was longer."""
    network = pc.build_network(KNOWN[0], SHAPE, 10)
    x, y = batch(8, dtype)
    vectors = LayerwiseGradients(network)(network.initialise(3), x, y)
    rounded = one_by_one(vectors, 8)
    norms = rounded.norm(dim=1)
    assert torch.allclose(vectors.squares().sqrt(), norms, rtol=FLOAT64_ROUNDING)
    norm = float(norms.median())
    for i in range(8):
        added = clipped_sum(vectors, norm, torch.arange(8) == i)
        assert float(added.norm()) == pytest.approx(min(norm * (1 - ROUNDING), float(norms[i])), rel=FLOAT64_ROUNDING)
        assert float(added.norm()) <= norm
        assert float(F.cosine_similarity(added, rounded[i], dim=0)) == pytest.approx(1.0, abs=FLOAT64_ROUNDING)


@pytest.mark.parametrize("network", networks()[:2], ids=lambda network: str(network.spec))
def test_what_is_not_admitted_adds_nothing_whatever_it_is(network: Network) -> None:
    (x, y), theta, backend = batch(6, torch.float32), network.initialise(3), PlainBackend()
    admitted = torch.tensor([True, False, True, True, False, True])
    sums = []
    for filling in (0.0, 3.0, 1e30, float("inf"), float("nan")):
        filled = torch.where(admitted[:, None, None, None], x, filling)
        sums.append(backend.clipped_gradients(network, theta, filled, y, 1.0, admitted))
    assert all(torch.equal(each, sums[0]) for each in sums)
    assert bool(sums[0].any()) and sums[0].dtype == torch.float64
    nobody = backend.clipped_gradients(network, theta, x, y, 1.0, torch.zeros(6, dtype=torch.bool))
    assert torch.equal(nobody, torch.zeros_like(nobody))


def test_an_examples_gradient_does_not_depend_on_the_others() -> None:
    """Not even in its last digit, in a batch of the same size."""
    network = pc.build_network(KNOWN[0], SHAPE, 10)
    found = []
    for seed in (1, 2):
        x, y = batch(6, torch.float32, seed)
        x[2] = batch(1, torch.float32, seed=9)[0]
        vectors = LayerwiseGradients(network)(network.initialise(3), x, y)
        found.append(vectors.weighted((torch.arange(6) == 2).double()))
    assert torch.equal(*found) and bool(found[0].any())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_examples_whose_gradient_is_not_finite_add_nothing(bad: float) -> None:
    values = torch.tensor([[bad, 1.0, 2.0], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [1e30, 0.0, 1e30]])
    parts = [Stacked(values[:, :1]), Outer(values[:, 1:], torch.ones(4, 1))]
    total = clipped_sum(ExampleVectors(parts), 1.0)
    wanted = torch.tensor([0.6 + 0.5**0.5, 0.0, 0.8 + 0.5**0.5], dtype=torch.float64) * (1 - ROUNDING)
    assert torch.allclose(total, wanted, rtol=1e-12)


class Doubled(Stack):
    """A stack with a forward of its own."""

    def population_logits(self, parameters: object, images: Tensor) -> Tensor:
        return 2 * super().population_logits(parameters, images)  # type: ignore[arg-type]


def stack_of(*layers: nn.Module) -> nn.Module:
    return Stack([nn.Conv2d(2, 4, 3, padding=1), *layers], nn.Linear(4 * 16 * 16, 10))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(512, 10)),
        lambda: stack_of(nn.ReLU(inplace=True)),
        lambda: stack_of(nn.Conv2d(4, 4, 3, padding=1, groups=2)),
        lambda: stack_of(nn.Conv2d(4, 4, 3, padding=2, dilation=2)),
        lambda: stack_of(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
        lambda: stack_of(nn.LayerNorm(16)),
        lambda: stack_of(nn.PReLU()),
        lambda: Doubled([nn.Conv2d(2, 4, 3, padding=1)], nn.Linear(4 * 16 * 16, 10)),
    ],
)
def test_what_is_not_known_is_refused(build: object) -> None:
    network = Network.from_module(build, SHAPE, 10)  # type: ignore[arg-type]
    assert not is_layerwise(network)
    with pytest.raises(TypeError):
        LayerwiseGradients(network)


def test_a_network_of_another_kind_is_clipped_by_vmap() -> None:
    network = Network.from_module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(512, 10)), SHAPE, 10)
    (x, y), theta = batch(5), network.initialise(3).double()
    gradients = per_example_gradients(network, theta, x, y)
    wanted = (gradients * (2.0 / gradients.norm(dim=1, keepdim=True)).clamp_max(1.0)).sum(0)
    assert torch.allclose(PlainBackend().clipped_gradients(network, theta, x, y, 2.0), wanted, rtol=2 * ROUNDING)
