"""What is captured for any network computes what the plain path does; run by ``make test-gpu``.

Both sides multiply in float32, so that they differ by rounding alone. How much some steps make of it depends on the
network: units of ReLU and max pooling switch, and norms of few pixels divide by little. On a CPU, parameters that are
changed by 1e-5 of themselves move four steps of ResNet18 by 6 to 8 %, and those of a smooth network by 2e-5.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudocoresets.backends import ChainPlan, PlainBackend
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.kernels import HMC, MALA, SGD, SGHMC, AnyKernel, Drop, Langevin
from pseudocoresets.methods import BPTT, ContrastiveDivergence, Points, Wasserstein, build_gradient_method
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import train_experts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

FusedBackend: Any = pytest.importorskip("pseudocoresets.backends.fused", exc_type=ImportError).FusedBackend

from pseudocoresets.backends.fused.target import whole_products  # noqa: E402

ROUNDING = 0.02
PRODUCT_ROUNDING = 1e-5
"""Relative, of float32 in a convolution by Winograd's tiles, whose sums make some hundred times more of 6e-8."""
STANDARD_ERRORS = 4
OTHERS = (
    "convnet:norm=group,pooling=max,activation=leaky-relu",
    "convnet:norm=none,activation=sigmoid",
    "convnet:norm=layer,pooling=none,depth=2,width=16",
    "alexnet",
    "vgg11",
    "resnet18",
    "mlp",
)


@pytest.fixture(autouse=True)
def float32() -> Iterator[None]:
    with whole_products():
        yield


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def cifar(name: str, side: int = 32) -> Network:
    return build_network(name, (3, side, side), 10)


def points(images: int = 10, side: int = 32) -> Points:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(images, 3, side, side, generator=generator, device="cuda")
    return Points(x, torch.arange(images, device="cuda") % 10, uniform_weights(images, 1000, "cuda"))


def rounding_bound(plan: ChainPlan, start: Tensor, plain: Tensor) -> Tensor:
    """How far apart rounding may put two runs: three times what it does to starts changed by as much, and positions."""
    generator = torch.Generator("cuda").manual_seed(1)
    away = []
    for _ in range(3):
        noise = torch.randn(start.shape, generator=generator, device="cuda")
        away.append((moved(PlainBackend(), plan, start * (1 + PRODUCT_ROUNDING * noise)) - plain).norm(dim=-1))
    return 3 * torch.stack(away).amax(0) + plan.steps * torch.finfo(start.dtype).eps * start.norm(dim=-1)


def moved(backend: PlainBackend, plan: ChainPlan, start: Tensor) -> Tensor:
    return backend.run_chain(plan, start, Randomness.for_purpose(0, "run", device="cuda")) - start


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_noiseless_steps_of_any_network_agree(name: str, chains: int) -> None:
    """Four steps in blocks of two, kept in the middle and at the end, with a step size that changes.

    At 32 x 32 pixels VGG11's last norms are of 2 x 2, and rounding alone moves it by more than half of its way.
    """
    side = 64 if name == "vgg11" else 32
    network, given = cifar(name, side), points(side=side)
    start = network.initialise(0, chains, "cuda")
    kernel = SGD(0.002, 0.5)
    plan = ChainPlan(kernel, Energy(Classifier(network), 1000), given, 4, noisy=False, schedule=Drop(3), keep_at={2, 4})
    backend = FusedBackend("cuda", torch.float32)
    plain, fast = moved(PlainBackend(), plan, start), moved(backend, plan, start)
    assert all(captured is not None for captured in backend._chains.values())
    bound = rounding_bound(plan, start, plain)
    assert (bound < 0.5 * plain.norm(dim=-1)).all()
    assert ((fast - plain).norm(dim=-1) < bound).all()


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("name", [name for name in OTHERS if name.startswith("convnet")])
def test_convnets_step_in_bfloat16(name: str, chains: int) -> None:
    """One step is at most twice as far from one in float32 as autograd's gradient in bfloat16 is."""
    network, given = cifar(name), points()
    start, energy = network.initialise(0, chains, "cuda"), Energy(Classifier(network), 1000)
    backend, plan = FusedBackend("cuda"), ChainPlan(SGD(0.002), energy, given, 1, noisy=False)
    plain, fast = moved(PlainBackend(), plan, start), moved(backend, plan, start)
    assert all(captured is not None for captured in backend._chains.values())
    theta = start.bfloat16().requires_grad_()
    rounded = Points(given.x.bfloat16(), given.y, given.weights)
    (gradient,) = torch.autograd.grad(energy.potential(theta, rounded.x, rounded.y, rounded.weights).sum(), theta)
    bound = 2 * (0.002 * gradient.float() + plain[0]).norm(dim=-1)
    assert (bound < 0.3 * plain[0].norm(dim=-1)).all()
    assert ((fast - plain)[0].norm(dim=-1) < bound).all()


@pytest.mark.parametrize("kernel", [Langevin(0.05), SGHMC(0.02)])
def test_noise_has_the_kernels_deviation(kernel: Langevin | SGHMC) -> None:
    """One step with noise less the same without; the graph is replayed with a seed of its own each time."""
    network, temperature = cifar("alexnet"), 1 / 1000
    start, backend = network.initialise(0, 2, "cuda"), FusedBackend("cuda")
    energy, given = Energy(Classifier(network), 1000), points()
    still = backend.run_chain(
        ChainPlan(kernel, energy, given, 1, noisy=False), start, Randomness.for_purpose(0, device="cuda")
    )
    share = 1.0 if isinstance(kernel, Langevin) else kernel.momentum_decay
    runs = [
        backend.run_chain(ChainPlan(kernel, energy, given, 1), start, Randomness.for_purpose(seed, device="cuda"))
        for seed in (0, 1)
    ]
    noise = torch.stack([run - still for run in runs]) / math.sqrt(2 * share * kernel.step_size * temperature)
    assert abs(float(noise.mean())) < STANDARD_ERRORS / math.sqrt(noise.numel())
    assert abs(float(noise.std()) - 1) < STANDARD_ERRORS / math.sqrt(2 * noise.numel())
    assert abs(float((noise[0] * noise[1]).mean())) < STANDARD_ERRORS / math.sqrt(noise[0].numel())


@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_experts_of_any_network_take_the_same_steps(name: str) -> None:
    """Two experts, each on images of its own."""
    network, batch, steps = cifar(name), 16, 2
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(2, steps, batch, 3, 32, 32, generator=generator, device="cuda")
    y = torch.arange(2 * steps * batch, device="cuda").view(2, steps, batch) % 10
    start, ends = network.initialise(0, 2, "cuda"), []
    for backend in (PlainBackend(), FusedBackend("cuda")):
        runner = backend.chains(network, x.device, 2, batch, steps, False, False)
        runner.set_position(start)
        runner.set_rates(Rates(0.002, momentum=0.9))
        for images, labels in zip(x.split(runner.steps, 1), y.split(runner.steps, 1), strict=True):
            runner.set_labels(labels, torch.full((batch,), 1 / batch, device="cuda"))
            runner.run_block(images, None, Randomness.for_purpose(0, device="cuda"))
        ends.append(runner.position() - start)
    plain, fast = ends
    assert ((fast - plain).norm(dim=-1) < ROUNDING * plain.norm(dim=-1)).all()


@pytest.mark.parametrize("kernel", [HMC(0.003, leapfrog_steps=3), MALA(1e-5)])
@pytest.mark.parametrize("name", ["convnet:depth=3,width=128", "convnet:pooling=max", "resnet18"])
def test_kernels_that_accept_or_reject_walk_the_same_way(name: str, kernel: AnyKernel) -> None:
    """Noise and decisions are drawn outside of the graph, so that both sides draw the same."""
    network = cifar(name)
    plan = ChainPlan(kernel, Energy(Classifier(network), 1000), points(), 4)
    backend, start = FusedBackend("cuda"), network.initialise(0, 2, "cuda")
    plain, fast = moved(PlainBackend(), plan, start), moved(backend, plan, start)
    assert all(captured is not None for captured in backend._potentials.values())
    assert ((fast - plain).norm(dim=-1) < ROUNDING * plain.norm(dim=-1)).all()
    assert plain.norm() > 0


def test_posteriors_are_sampled_by_hmc(digits: Dataset) -> None:
    """Warm-up and draws at the posterior's own temperature, which needs potentials that are not rounded."""
    from pseudocoresets.construction.tasks import real_coreset

    spec = build_network("convnet:pooling=max,width=16", digits.shape, 10).spec
    coreset = real_coreset(digits, ConstructionSettings(ipc=1), spec, "random")
    samples = sample_posterior(coreset, "hmc", chains=2, steps=60, samples=5, device="cuda")
    assert samples.parameters.isfinite().all()
    assert len(samples.parameters.flatten(0, 1).unique(dim=0)) > 2


@pytest.mark.parametrize("learned", [{"learn_weights": True}, {"learn_labels": True, "learn_weights": True}])
@pytest.mark.parametrize("name", ["convnet:width=32", "convnet:width=32,pooling=max"])
def test_weights_and_labels_are_learned_on_the_fast_path(digits: Dataset, learned: dict[str, Any], name: str) -> None:
    """Captured iterations have the losses of iterations that are not, and weights move."""
    experts = train_experts(digits, name, 2, epochs=2, batch_size=128, device="cuda")
    method = ContrastiveDivergence(steps=4, max_start_epoch=None, expert_epochs=1)
    losses, weights = [], []
    for captured in (False, True):
        backend = FusedBackend("cuda")
        if not captured:
            backend.repeated = lambda work: work
        settings = ConstructionSettings(iterations=10, learning_rate=1e-3, **learned)
        made = run_construction(digits, experts, method.name, method, settings, backend=backend, device="cuda")
        losses.append(torch.tensor([row["loss"] for row in made.history]))
        weights.append(made.coreset.weights)
    assert (losses[1] - losses[0]).abs().max() < 0.2 * losses[0].std()
    assert not torch.equal(weights[0], torch.full_like(weights[0], float(weights[0].mean())))
    torch.testing.assert_close(weights[1], weights[0], rtol=0.01, atol=0)


@pytest.mark.parametrize("gradient", ["differences", "stored"])
@pytest.mark.parametrize("name", ["convnet:width=32", "convnet:width=32,pooling=max"])
def test_matched_trajectories_are_captured(digits: Dataset, name: str, gradient: str) -> None:
    """Losses and step sizes of captured iterations are those of iterations that are not."""
    experts = train_experts(digits, name, 2, epochs=2, batch_size=128, device="cuda")
    method = Wasserstein(steps=4, max_start_epoch=None, gradient=gradient, step_size_learning_rate=1e-3)
    found = []
    for captured in (False, True):
        backend = FusedBackend("cuda")
        if not captured:
            backend.repeated = lambda work: work
        settings = ConstructionSettings(iterations=10, learning_rate=1.0)
        made = run_construction(digits, experts, method.name, method, settings, backend=backend, device="cuda")
        found.append(torch.tensor([[row["loss"], row["step_size"]] for row in made.history]))
    eager, fast = found
    assert method.repeats
    assert ((fast - eager).abs().amax(0) < 0.2 * eager.std(0)).all()


@pytest.mark.parametrize("method", ["pcd", "fkl-hmc"])
def test_methods_that_sample_by_hmc_run(digits: Dataset, method: str) -> None:
    experts = train_experts(digits, "convnet:width=16", 2, epochs=2, batch_size=128, device="cuda")
    options = {"chains": 2} if method == "pcd" else {"steps": 2, "burn_in": 1, "samples": 2, "max_start_epoch": 0}
    built = build_gradient_method(method, options)
    settings = ConstructionSettings(iterations=3, learning_rate=1e-3)
    made = run_construction(digits, experts, method, built, settings, backend=FusedBackend("cuda"), device="cuda")
    assert all(math.isfinite(row["loss"]) for row in made.history)
    assert all(0 <= row["acceptance"] <= 1 for row in made.history)


def test_steps_on_a_part_of_the_points_are_captured(digits: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    """Iterations of `bptt` with random points in each step; the graphs of an earlier construction are garbage by then.

    What is freed within a capture invalidates it, so the collector is as eager as it can be.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for ipc in (5, 6):
            method = BPTT(steps=6, horizon=12, batch_size=100, spread=True, points_per_step=20)
            settings, backend = ConstructionSettings(ipc=ipc, iterations=8, learning_rate=1e-3), FusedBackend("cuda")
            made = run_construction(
                digits, None, "bptt", method, settings, network="convnet:width=32", backend=backend, device="cuda"
            )
            assert all(math.isfinite(row["loss"]) for row in made.history)
            assert backend._trajectories
            assert None not in backend._trajectories.values()
    finally:
        gc.set_threshold(*thresholds)
    assert "could not be captured" not in caplog.text


class Loop:
    """A graph in an object that holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself, self.graph, here = self, torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        with torch.cuda.graph(self.graph):
            here += 1


def test_a_graph_that_becomes_garbage_meanwhile_does_not_spoil_a_capture(caplog: pytest.LogCaptureFixture) -> None:
    total, earlier = torch.zeros(1, device="cuda"), [Loop()]

    def work(randomness: Randomness) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            earlier.clear()
            made = [[i] for i in range(100_000)]  # more than the collector lets pass
            assert len(made) == 100_000
        return total.add_(1)

    repeated, randomness = FusedBackend("cuda").repeated(work), Randomness.for_purpose(0, device="cuda")
    for _ in range(6):
        repeated(randomness)
    assert float(total) == 6
    assert not earlier
    assert not caplog.records


class Waits(nn.Module):
    """A network whose forward waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.linear(images.flatten(1))
        largest = float(scores.detach().abs().max())
        return scores.clamp(-largest, largest)


def test_a_network_that_waits_for_the_device_goes_the_plain_way(
    digits: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """The last test, because an aborted capture is untidy: what comes after it draws as if nothing had happened."""
    network = Network.from_module(Waits, (1, 8, 8), 10)
    energy, start = Energy(Classifier(network), 1000), network.initialise(0, 1, "cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(10, 1, 8, 8, generator=generator, device="cuda")
    given = Points(x, torch.arange(10, device="cuda"), uniform_weights(10, 1000, "cuda"))
    plan = ChainPlan(Langevin(0.1), energy, given, 4)
    backend = FusedBackend("cuda")
    torch.testing.assert_close(moved(backend, plan, start), moved(PlainBackend(), plan, start))
    (warning,) = (record.message for record in caplog.records if "could not be captured" in record.message)
    assert "largest = float(" in warning
    experts = train_experts(digits, network, 2, epochs=2, batch_size=128, device="cuda", backend=backend)
    method = ContrastiveDivergence(steps=2, max_start_epoch=None, expert_epochs=1)
    losses = []
    for each in (PlainBackend(), backend):
        settings = ConstructionSettings(iterations=6, learning_rate=1e-3, augment=False)
        made = run_construction(digits, experts, method.name, method, settings, backend=each, device="cuda")
        losses.append(torch.tensor([row["loss"] for row in made.history]))
    torch.testing.assert_close(losses[1], losses[0])
    messages = [record.message for record in caplog.records if record.name.endswith("fused.capture")]
    assert len(messages) == len(set(messages))
