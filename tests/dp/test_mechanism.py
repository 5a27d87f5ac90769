"""Clipping, noise and its source."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

import pseudocoresets as pc
from pseudocoresets.dp import SystemEntropy, clipped, noisy_sum, per_example_gradients

HOST = torch.device("cpu")


def test_no_vector_is_longer_than_the_norm_and_short_ones_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-6, 6, 200)[:, None]
    vectors = scale * torch.randn(200, 1000, generator=generator)
    cut, before = clipped(vectors, 1.5), vectors.double().norm(dim=1)
    after = cut.double().norm(dim=1)
    assert bool((after <= 1.5).all())
    assert torch.equal(cut[before < 1.5], vectors[before < 1.5])
    assert torch.allclose(after[before > 1.5], torch.tensor(1.5, dtype=torch.float64), rtol=1e-5)
    assert torch.allclose(F.cosine_similarity(cut.double(), vectors.double()), torch.ones(200, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_adds_nothing(bad: float) -> None:
    vectors = torch.tensor([[bad, 1.0], [3.0, 4.0], [0.0, 0.0], [1e30, 1e30]])
    cut = clipped(vectors, 1.0)
    assert torch.equal(cut[0], torch.zeros(2)) and torch.equal(cut[2], torch.zeros(2))
    assert torch.allclose(cut[1], torch.tensor([0.6, 0.8])) and torch.allclose(cut[3].norm(), torch.tensor(1.0))


@pytest.mark.parametrize("name", ["mlp:depth=1,width=8", "convnet:width=4"])
def test_gradients_per_example_are_those_of_each_alone(name: str) -> None:
    network = pc.build_network(name, (1, 8, 8), 10)
    theta, generator = network.initialise(3), torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 1, 8, 8, generator=generator), torch.arange(5)
    ours = per_example_gradients(network, theta, x, y)
    for i in range(5):
        leaf = theta.clone().requires_grad_()
        (alone,) = torch.autograd.grad(F.cross_entropy(network.logits(leaf, x[i : i + 1]), y[i : i + 1]), leaf)
        assert torch.allclose(ours[i], alone, atol=1e-6)


def test_gradients_per_example_are_those_of_opacus() -> None:
    grad_sample = pytest.importorskip("opacus.grad_sample")
    network = pc.build_network("convnet:width=4", (1, 8, 8), 10)
    theta, generator = network.initialise(3), torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 1, 8, 8, generator=generator), torch.arange(6)
    theirs = grad_sample.GradSampleModule(network.module(theta).train(), loss_reduction="sum")
    F.cross_entropy(theirs(x), y, reduction="sum").backward()
    gradients = torch.cat([parameter.grad_sample.flatten(1) for parameter in theirs.parameters()], 1)
    assert torch.allclose(per_example_gradients(network, theta, x, y), gradients, atol=1e-6)


def test_noise_is_normal_of_the_stated_deviation() -> None:
    generator = np.random.default_rng(0)
    entropy = SystemEntropy(lambda count: generator.bytes(count))
    drawn = noisy_sum(torch.full((50_001,), 7.0), 2.0, 1.5, entropy).double().numpy()
    assert stats.kstest((drawn - 7) / 3, "norm").pvalue > 0.01
    uniform = entropy.uniform(50_000, HOST).numpy()
    assert stats.kstest(uniform, "uniform").pvalue > 0.01
    assert uniform.min() > 0 and uniform.max() < 1


def test_extreme_bytes_give_finite_noise() -> None:
    for byte in (b"\x00", b"\xff"):
        noise = SystemEntropy(lambda count, byte=byte: byte * count).normal((4,), HOST)
        assert bool(torch.isfinite(noise).all())


def test_the_operating_system_is_asked_and_never_repeats_itself() -> None:
    one, other = (SystemEntropy().normal((100,), HOST) for _ in range(2))
    torch.manual_seed(0)
    again = SystemEntropy().normal((100,), HOST)
    assert not torch.equal(one, other)
    torch.manual_seed(0)
    assert not torch.equal(SystemEntropy().normal((100,), HOST), again)
