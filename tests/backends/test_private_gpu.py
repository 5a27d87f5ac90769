"""Clipped sums of gradients per example on a GPU; run by ``make test-gpu``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudocoresets.backends import PlainBackend
from pseudocoresets.data import load_dataset
from pseudocoresets.dp import Budget, LayerwiseGradients, clipped_sum
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import train_experts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

FusedBackend: Any = pytest.importorskip("pseudocoresets.backends.fused", exc_type=ImportError).FusedBackend

from pseudocoresets.backends.fused import private as fused_private  # noqa: E402
from pseudocoresets.backends.fused.target import whole_products  # noqa: E402

SHAPE = (3, 32, 32)
COUNT = 48
WIDE = "convnet:depth=3,width=128"
CONVNETS = (
    WIDE,
    "convnet:norm=group,activation=leaky-relu",
    "convnet:norm=none,activation=sigmoid",
    "convnet:norm=layer,pooling=none,depth=2,width=16",
)
PRODUCT_ROUNDING = 1e-5
"""Relative, of float32 in a convolution by Winograd's tiles, whose sums make some hundred times more of 6e-8."""


def batch(shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(COUNT, *shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    return x, torch.arange(COUNT, device="cuda") % 10


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def exact(network: Network, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """The clipped sum in float64, half of the examples being clipped, and the norm."""
    gradients = LayerwiseGradients(network)(theta.double(), x.double(), y)
    norm = float(gradients.squares().sqrt().median())
    return clipped_sum(gradients, norm), norm


def rounding_bound(network: Network, theta: Tensor, x: Tensor, y: Tensor, wanted: Tensor, norm: float) -> float:
    """How far rounding may move the sum: three times what it does to parameters changed by as much, and itself.

    Units of ReLU and max pooling switch: for the networks here 0.002 to 0.005 on a CPU, and 1e-5 for a smooth one.
    """
    generator = torch.Generator("cuda").manual_seed(1)
    away = []
    for _ in range(3):
        noise = torch.randn(theta.shape, generator=generator, device="cuda", dtype=torch.float64)
        moved = LayerwiseGradients(network)(theta.double() * (1 + PRODUCT_ROUNDING * noise), x.double(), y)
        away.append(relative(clipped_sum(moved, norm), wanted))
    return 3 * max(away) + PRODUCT_ROUNDING


@pytest.mark.parametrize("shape", [SHAPE, (1, 28, 28)])
@pytest.mark.parametrize("name", [*CONVNETS, "convnet:pooling=max", "lenet", "mlp"])
def test_clipped_sums_agree(name: str, shape: tuple[int, int, int]) -> None:
    network, (x, y) = build_network(name, shape, 10), batch(shape)
    theta, backend = network.initialise(0).cuda(), FusedBackend("cuda", torch.float32)
    wanted, norm = exact(network, theta, x, y)
    with whole_products():
        found = backend.clipped_gradients(network, theta, x, y, norm)
    assert all(captured is not None for captured in backend._clipped_sums.values())
    bound = rounding_bound(network, theta, x, y, wanted, norm)
    assert relative(found, wanted) < bound < 0.05


@pytest.mark.parametrize("name", CONVNETS)
def test_convnets_are_in_bfloat16(name: str) -> None:
    """At most twice as far from float64 as autograd's gradients in bfloat16 are."""
    network, (x, y) = build_network(name, SHAPE, 10), batch()
    theta, backend = network.initialise(0).cuda(), FusedBackend("cuda")
    wanted, norm = exact(network, theta, x, y)
    rounded = clipped_sum(LayerwiseGradients(network)(theta, x.bfloat16(), y), norm)
    found = backend.clipped_gradients(network, theta, x, y, norm)
    assert relative(found, wanted) < 2 * relative(rounded, wanted) < 0.3


@pytest.mark.parametrize("name", [WIDE, "convnet:norm=group,pooling=max"])
def test_what_is_not_admitted_adds_nothing_whatever_it_is(name: str) -> None:
    network, (x, y) = build_network(name, SHAPE, 10), batch()
    theta, backend = network.initialise(0).cuda(), FusedBackend("cuda")
    admitted = torch.arange(COUNT, device="cuda") % 5 != 2
    sums = []
    for filling in (0.0, 1e30, float("inf"), float("nan")):
        filled = torch.where(admitted[:, None, None, None], x, filling)
        sums.append(backend.clipped_gradients(network, theta, filled, y, 1.0, admitted))
    assert all(torch.equal(each, sums[0]) for each in sums) and bool(sums[0].any())
    nobody = backend.clipped_gradients(network, theta, x, y, 1.0, torch.zeros_like(admitted))
    assert torch.equal(nobody, torch.zeros_like(nobody))
    spoilt = x.clone()
    spoilt[0] = torch.inf
    without = backend.clipped_gradients(network, theta, x, y, 1.0, torch.arange(COUNT, device="cuda") != 0)
    assert torch.equal(backend.clipped_gradients(network, theta, spoilt, y, 1.0), without)


@pytest.mark.parametrize("norm", [1e-3, 1.0])
def test_one_example_adds_at_most_the_norm_and_is_the_same_in_all_company(norm: float) -> None:
    """To the last digit, at each of several places among others."""
    network, theta = build_network(WIDE, SHAPE, 10), build_network(WIDE, SHAPE, 10).initialise(0).cuda()
    backend, own = FusedBackend("cuda"), batch(seed=99)[0][0]
    found = []
    for seed, place in enumerate((0, 1, 17, COUNT - 1)):
        x, y = batch(seed=seed)
        x[place], y[place] = own, 3
        alone = torch.arange(COUNT, device="cuda") == place
        found.append(backend.clipped_gradients(network, theta, x, y, norm, alone))
    assert 0 < float(found[0].norm()) <= norm
    assert all(torch.equal(each, found[0]) for each in found)


def test_the_sum_is_that_of_its_examples() -> None:
    """A replayed graph sees other parameters, images, labels and norms."""
    network, backend = build_network(WIDE, SHAPE, 10), FusedBackend("cuda")
    for seed in (0, 1):
        (x, y), theta = batch(seed=seed), network.initialise(seed).cuda()
        y = (y + seed) % 10
        each = [
            backend.clipped_gradients(network, theta, x, y, 0.5 + seed, torch.arange(COUNT, device="cuda") == i)
            for i in range(COUNT)
        ]
        total = backend.clipped_gradients(network, theta, x, y, 0.5 + seed)
        torch.testing.assert_close(total, torch.stack(each).sum(0), rtol=1e-12, atol=1e-14)
    assert len(backend._clipped_sums) == 1


def test_where_nothing_can_be_captured_the_plain_path_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(fused_private, "captured", fails)
    network, (x, y) = build_network("convnet:width=16", SHAPE, 10), batch()
    theta, backend = network.initialise(0).cuda(), FusedBackend("cuda")
    found = [backend.clipped_gradients(network, theta, x, y, 1.0) for _ in range(2)]
    assert relative(found[1], PlainBackend().clipped_gradients(network, theta, x, y, 1.0)) < 10 * PRODUCT_ROUNDING
    assert len([record for record in caplog.records if "not today" in record.message]) == 1


def test_other_networks_are_clipped_by_vmap() -> None:
    network = Network.from_module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), SHAPE, 10)
    (x, y), theta = batch(), network.initialise(0).cuda()
    backend = FusedBackend("cuda")
    plain = PlainBackend().clipped_gradients(network, theta, x, y, 1.0)
    assert torch.equal(backend.clipped_gradients(network, theta, x, y, 1.0), plain)
    assert not backend._clipped_sums


def test_private_experts_learn_in_graphs() -> None:
    pytest.importorskip("dp_accounting")
    data, backend = load_dataset("digits").publicly_normalised(), FusedBackend("cuda")
    settings = {"epochs": 12, "batch_size": 400, "learning_rate": 1.0, "augment": True}
    experts = train_experts(data, "convnet", 1, privacy=Budget(50.0, 1e-4), device="cuda", backend=backend, **settings)
    (captured,) = backend._clipped_sums.values()
    assert captured is not None
    images, labels = data.transform(data.test.images), data.test.labels
    scores = experts.network.logits(experts.snapshot(0, -1).cpu(), images)
    assert float((scores.argmax(1) == labels).float().mean()) > 0.5
