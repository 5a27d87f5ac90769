"""Kernel inducing points: the kernel against loops, wide random networks and finite differences; the regression."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from methods_problems import (
    DOUBLE,
    GaussianModel,
    PreciseClassifier,
    gaussian_points,
    gradients,
    network_points,
    network_problem,
)
from small import Invoke
from torch import Tensor, nn
from torch.nn import functional as F

import pseudocoresets as pc
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.methods import KernelInducingPoints, Points, Problem, RealData
from pseudocoresets.methods.condensation.tangent_kernels import Block, InfiniteConvNet
from pseudocoresets.models.networks import Network, build_network

TWO_BLOCKS = InfiniteConvNet((Block(), Block()))
WEIGHT, BIAS = TWO_BLOCKS.weight_variance, TWO_BLOCKS.bias_variance


def images(count: int, channels: int = 2, side: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, side, side, generator=generator, dtype=DOUBLE)


def by_loops(x: Tensor, z: Tensor, blocks: tuple[Block, ...]) -> float:
    """The recursions, number by number, for one pair of images."""
    channels, side = x.shape[0], x.shape[1]
    sides = [side]
    for block in blocks:
        sides.append((sides[-1] + 2 * block.padding - 2) // (2 if block.pooled else 1))

    def positions(size: int) -> list[tuple[int, int]]:
        return list(itertools.product(range(size), repeat=2))

    @cache
    def before(layer: int, a: str, p: tuple[int, int], b: str, q: tuple[int, int]) -> tuple[float, float]:
        """Covariance and tangent kernel of the convolution of a block."""
        padding, size = blocks[layer].padding, sides[layer]
        total = tangent = 0.0
        for d in positions(3):
            at, of = ((r[0] + d[0] - padding, r[1] + d[1] - padding) for r in (p, q))
            if all(0 <= c < size for c in (*at, *of)):
                k, t = below(layer, a, at, b, of)
                total, tangent = total + k, tangent + t
        k = WEIGHT * total / 9 + BIAS
        return k, k + WEIGHT * tangent / 9

    @cache
    def below(layer: int, a: str, p: tuple[int, int], b: str, q: tuple[int, int]) -> tuple[float, float]:
        """What the block ``layer`` sees."""
        if layer == 0:
            one, two = ({"x": x, "z": z}[name] for name in (a, b))
            return float((one[:, *p] * two[:, *q]).sum()) / channels, 0.0
        pooled = blocks[layer - 1].pooled
        windows = [[(2 * r[0] + i, 2 * r[1] + j) for i, j in positions(2)] if pooled else [r] for r in (p, q)]
        found = [rectified(layer - 1, a, s, b, t) for s in windows[0] for t in windows[1]]
        return sum(k for k, _ in found) / len(found), sum(t for _, t in found) / len(found)

    def rectified(layer: int, a: str, p: tuple[int, int], b: str, q: tuple[int, int]) -> tuple[float, float]:
        k, t = before(layer, a, p, b, q)
        scale = math.sqrt(before(layer, a, p, a, p)[0] * before(layer, b, q, b, q)[0])
        angle = math.acos(max(-1.0, min(1.0, k / scale)))
        opening = (math.pi - angle) / (2 * math.pi)
        return scale * (math.sin(angle) / (2 * math.pi) + opening * math.cos(angle)), t * opening

    last = [below(len(blocks), "x", p, "z", p) for p in positions(sides[-1])]
    k = WEIGHT * sum(k for k, _ in last) / len(last) + BIAS
    return k + WEIGHT * sum(t for _, t in last) / len(last)


@pytest.mark.parametrize(
    ("blocks", "side"),
    [
        ((Block(), Block()), 4),
        ((Block(), Block(pooled=False)), 5),
        ((Block(padding=3), Block()), 4),
        ((Block(pooled=False), Block(), Block()), 7),
    ],
)
def test_kernel_is_that_of_the_recursions_number_by_number(blocks: tuple[Block, ...], side: int) -> None:
    """With pooling, without, with an edge that pooling drops, and with the wide padding of 28 x 28 images.

    The last looks at fewer distances than there are.
    """
    kernel, x, z = InfiniteConvNet(blocks), images(2, side=side), images(1, side=side, seed=1)
    wanted = [by_loops(one, z[0], blocks) for one in x]
    torch.testing.assert_close(kernel.cross(x, z)[:, 0], torch.tensor(wanted, dtype=DOUBLE), rtol=1e-12, atol=0)
    # At the angle zero rounding of a cosine, 1e-16, is one of 1e-8 of the angle.
    wanted = [by_loops(x[0], other, blocks) for other in x]
    torch.testing.assert_close(kernel.gram(x)[0], torch.tensor(wanted, dtype=DOUBLE), rtol=1e-7, atol=0)


def random_network_kernel(x: Tensor, width: int, seed: int) -> Tensor:
    """< df(x_i)/dtheta, df(x_j)/dtheta > of one random network: weights N(0, 1), scaled where they are used."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    channels = x.shape[1]
    filters, biases = [normal(width, channels, 3, 3), normal(width, width, 3, 3)], [normal(width), normal(width)]
    last, last_bias = normal(width), normal(1)
    a = x
    for weights, bias in zip(filters, biases, strict=True):
        scale = math.sqrt(WEIGHT / weights[0].numel())
        a = F.avg_pool2d(F.relu(F.conv2d(a, scale * weights, math.sqrt(BIAS) * bias, padding=1)), 2)
    out = math.sqrt(WEIGHT / width) * a.flatten(1) @ last + math.sqrt(BIAS) * last_bias
    parameters = [*filters, *biases, last, last_bias]
    slopes = [torch.cat([g.flatten() for g in torch.autograd.grad(y, parameters, retain_graph=True)]) for y in out]
    return torch.stack(slopes) @ torch.stack(slopes).T


def test_wide_random_networks_come_to_the_kernel() -> None:
    """Their mean is the kernel within five standard errors and a bias of order 1 / width; their spread halves.

    Entries deviate by s = O(width^-1/2). R networks average to within 5 s / sqrt(R). The constant of the bias is taken
    as one of the relative size 1 / width, and the ratio of spreads from 32 draws each is 2 within 35 %.
    """
    x = images(3).float()
    exact = TWO_BLOCKS.gram(x.double()).float()
    spreads = []
    for width in (32, 128):
        drawn = torch.stack([random_network_kernel(x, width, seed) for seed in range(32)])
        error = drawn.std(0) / math.sqrt(len(drawn))
        assert ((drawn.mean(0) - exact).abs() < 5 * error + exact / width).all()
        spreads.append((drawn / exact - 1).square().mean().sqrt())
    assert 1.3 < spreads[0] / spreads[1] < 2.7


@pytest.mark.parametrize("at_once", [1, 700, 2**24])
def test_memory_bound_changes_nothing(at_once: int) -> None:
    x, z = images(3).requires_grad_(), images(2, seed=1)
    kernels = [InfiniteConvNet((Block(), Block()), covariances_at_once=bound) for bound in (2**20, at_once)]
    grams, crosses = zip(*[(each.gram(x), each.cross(x, z)) for each in kernels], strict=True)
    torch.testing.assert_close(*grams, rtol=1e-12, atol=0)
    torch.testing.assert_close(*crosses, rtol=1e-12, atol=0)
    slopes = [torch.autograd.grad(a.sum() + b.square().sum(), x)[0] for a, b in zip(grams, crosses, strict=True)]
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-10)


def problem_with(network: Network | None = None) -> Problem:
    generator = torch.Generator().manual_seed(0)
    real = RealData(torch.randn(12, 1, 8, 8, generator=generator, dtype=DOUBLE), torch.arange(12) % 3, lambda x: x)
    base = network_problem()
    energy = base.energy if network is None else Energy(PreciseClassifier(network), 100)
    return replace(base, source=None, energy=energy, real_data=lambda: real)


def smooth_network() -> Network:
    return Network.from_module(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3)), (1, 8, 8), 3
    )


@pytest.mark.parametrize("kernel", ["infinite", "empirical"])
def test_gradient_is_that_of_finite_differences(kernel: str) -> None:
    """In images, labels and weights. Where two positions are alike the infinite kernel is once differentiable only."""
    problem = problem_with(None if kernel == "infinite" else smooth_network())
    method, points = KernelInducingPoints(kernel=kernel, ridge=0.1, batch_size=8), network_points()  # type: ignore[arg-type]

    def value(at: Points) -> Tensor:
        return method.loss(at, problem, Randomness.for_purpose(2)).value

    found = gradients(value(points), points)
    generator = torch.Generator().manual_seed(1)
    for name, width in (("x", 1e-6), ("y", 1e-5), ("weights", 1e-4)):
        tensor = getattr(points, name).detach()
        direction = torch.randn(tensor.shape, generator=generator, dtype=DOUBLE)
        ends = [value(replace(points, **{name: tensor + sign * width * direction})).item() for sign in (1, -1)]
        assert (ends[0] - ends[1]) / (2 * width) == pytest.approx(float((found[name] * direction).sum()), rel=1e-5)


def test_loss_is_that_of_ridge_regression_in_its_own_words() -> None:
    """f = sum_j a_j Theta(., x_j) minimises sum_j w_j (f(x_j) - y_j)^2 / w_mean + ridge t || f ||^2."""
    problem, points = problem_with(), network_points(learned=False)
    method = KernelInducingPoints(ridge=0.05, batch_size=8)
    kernel = InfiniteConvNet((Block(), Block()))
    gram = kernel.gram(points.x)
    relative, y = points.weights / points.weights.mean(), points.y - 1 / 3
    a = torch.zeros(6, 3, dtype=DOUBLE, requires_grad=True)
    fitted = gram @ a
    objective = (relative[:, None] * (fitted - y).square()).sum() + 0.05 * gram.trace() / 6 * (a * fitted).sum()
    rows = torch.autograd.grad(objective, a, create_graph=True)[0].flatten()
    curvature = torch.stack([torch.autograd.grad(row, a, retain_graph=True)[0].flatten() for row in rows])
    solution = torch.linalg.solve(curvature, -rows.detach()).view(6, 3)
    assert problem.real_data is not None
    x, labels = problem.real_data().batch(8, Randomness.for_purpose(2))
    missed = kernel.cross(x, points.x) @ solution - (F.one_hot(labels, 3).double() - 1 / 3)
    expected = missed.square().sum(1).mean() / 2
    found = method.loss(points, problem, Randomness.for_purpose(2))
    torch.testing.assert_close(found.value, expected, rtol=1e-9, atol=0)


def test_it_learns_images(digits: Dataset) -> None:
    how = {"network": "convnet", "device": "cpu", "optimiser": "adam", "learning_rate": 0.04}
    options = {"batch_size": 20}
    made = pc.construct(digits, None, "kip", 1, iterations=8, method_options=options, **how)
    start = pc.construct(digits, None, "random", 1, network="convnet", device="cpu")
    network = build_network("convnet", digits.shape, 10)
    real = RealData.of(digits, torch.device("cpu"))
    problem = Problem(Energy(pc.models.classifier.Classifier(network), len(real)), real_data=lambda: real)
    before, after = (
        KernelInducingPoints(batch_size=60).loss(each.points, problem, Randomness.for_purpose(9)).value.item()
        for each in (start, made)
    )
    assert after < 0.9 * before


def test_what_it_needs_is_named(bpc: Invoke) -> None:
    points, randomness = network_points(), Randomness.for_purpose(0)
    with pytest.raises(InputError, match="'kip' needs the real data"):
        KernelInducingPoints().loss(points, replace(problem_with(), real_data=None), randomness)
    with pytest.raises(InputError, match="'kip' starts from a network's initialisation"):
        KernelInducingPoints().loss(
            gaussian_points(), replace(problem_with(), energy=Energy(GaussianModel(), 4)), randomness
        )
    with pytest.raises(InputError, match="infinite, empirical"):
        KernelInducingPoints(kernel="finite")  # type: ignore[arg-type]
    for network, problem in (
        ("mlp", "is that of a ConvNet; got the network 'mlp'"),
        ("convnet:pooling=max", "average"),
    ):
        ended = bpc("construct", "--method", "kip", "--network", network, "--device", "cpu", "--out", "k.safetensors")
        assert ended.exit_code == 2
        assert problem in " ".join(ended.stderr.split())
