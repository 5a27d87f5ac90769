"""The full data's energy through the end of the coreset's chain: its gradient, and chains that persist."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pseudocoresets as pc
from methods_problems import (
    DOUBLE,
    GaussianModel,
    PreciseClassifier,
    gaussian_points,
    gaussian_real_data,
    gradients,
    network_points,
)
from pseudocoresets.construct import ConstructionSettings, run_construction
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.divergences import Points, Problem, RealData, ThroughChain
from pseudocoresets.divergences.through_chain import POOL, real_slope
from pseudocoresets.energy import Energy
from pseudocoresets.errors import InputError
from pseudocoresets.experts import Experts
from pseudocoresets.networks import Network
from pseudocoresets.seeds import Randomness

REAL = 30


def smooth_network() -> Network:
    """Nothing in it switches, so that differences of every reach are near the derivative."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3))

    return Network.from_module(build, (1, 8, 8), 3)


def smooth_problem(augmentation: Any = None) -> Problem:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(REAL) % 3
    images = torch.randn(REAL, 1, 8, 8, generator=generator, dtype=DOUBLE) + labels[:, None, None, None]
    real = RealData(images, labels, lambda x: x)
    return Problem(Energy(PreciseClassifier(smooth_network()), 100), None, lambda: real, augmentation)


def with_carried(points: Points, carried: Any) -> Points:
    return replace(points, carried=carried)


@pytest.mark.parametrize(("augment_real", "points_per_step"), [(False, 0), (True, 4)])
def test_exact_gradient_is_that_of_the_loss_by_finite_differences(augment_real: bool, points_per_step: int) -> None:
    """In the images, the labels, the weights and the step size, with augmentation."""
    problem = smooth_problem(dsa(flippable=False))
    method = ThroughChain(
        steps=5,
        gradient="constant-memory",
        step_size_learning_rate=1.0,
        augment_real=augment_real,
        points_per_step=points_per_step,
    )
    points = network_points(step_size=0.2)

    def value(at: Points) -> Tensor:
        return method.loss(at, problem, Randomness.for_purpose(4)).value

    found = gradients(value(points), points)
    generator = torch.Generator().manual_seed(9)
    width = 1e-5
    for name, tensor in {"x": points.x, "y": points.y, "weights": points.weights}.items():
        direction = torch.randn(tensor.shape, generator=generator, dtype=DOUBLE)
        ends = [replace(points, **{name: (tensor + sign * width * direction).detach()}) for sign in (1, -1)]
        slope = (value(ends[0]) - value(ends[1])).detach() / (2 * width)
        # Central differences: truncation of order width^2, rounding of order 1e-16 / width.
        torch.testing.assert_close((found[name] * direction).sum(), slope, rtol=1e-7, atol=1e-9)
    steps = [replace(points, extras={"step_size": torch.tensor(0.2 + h, dtype=DOUBLE)}) for h in (width, -width)]
    slope = (value(steps[0]) - value(steps[1])).detach() / (2 * width)
    torch.testing.assert_close(found["step_size"], slope, rtol=1e-7, atol=1e-9)


def test_differences_come_to_the_exact_gradient_with_the_square_of_the_reach() -> None:
    problem, points = smooth_problem(dsa(flippable=False)), network_points()

    def gradient(**options: Any) -> Tensor:
        method = ThroughChain(steps=5, step_size=0.2, **options)
        return gradients(method.loss(points, problem, Randomness.for_purpose(4)).value, points)["x"]

    exact = gradient(gradient="constant-memory")
    errors = [float((gradient(reach=reach) - exact).norm() / exact.norm()) for reach in (0.1, 0.05, 0.025)]
    assert errors[0] < 0.01
    for coarse, fine in pairwise(errors):
        # A central difference: halving the reach quarters the error, up to the next order, reach^2.
        assert fine / coarse == pytest.approx(0.25, rel=0.1**2 * 10)


def test_a_chain_that_does_not_move_has_a_finite_gradient() -> None:
    """At a step of 1e-300 the window's path has length zero in double precision."""
    points = network_points()
    method = ThroughChain(steps=2, step_size=1e-300)
    loss = method.loss(points, smooth_problem(), Randomness.for_purpose(0))
    assert torch.isfinite(gradients(loss.value, points)["x"]).all()


def test_loss_is_the_energy_of_real_data_at_the_end_of_the_window() -> None:
    problem, points = smooth_problem(), network_points(learned=False)
    method = ThroughChain(steps=3, chains=1, batch_size=REAL * 400, step_size=0.2)
    start = smooth_network().initialise(5, 1).to(DOUBLE)
    loss = method.loss(with_carried(points, {POOL: start}), problem, continuing(method))
    theta = start
    for _ in range(3):
        theta = theta.detach().requires_grad_()
        potential = problem.energy.potential(theta, points.x, points.y, points.weights).sum()
        theta = theta - 0.2 * torch.autograd.grad(potential, theta)[0]
    torch.testing.assert_close(loss.carried[POOL], theta.detach(), rtol=1e-12, atol=1e-14)
    real = problem.real_data()
    x, y = real.points(torch.arange(REAL))
    energies = -problem.energy.model.log_likelihood(theta[0], x, y).detach()
    # The batch is drawn with replacement: four standard errors of its mean.
    error = float(energies.std()) / (REAL * 400) ** 0.5
    assert float(loss.value) == pytest.approx(float(energies.mean()), abs=4 * error)


def continuing(method: ThroughChain, restart: bool = False) -> Randomness:
    """Randomness under which the method does not restart the chain it picks (or does)."""
    for seed in range(1000):
        host = Randomness.for_purpose(seed).host
        host.randrange(method.chains)
        if (host.random() < method.steps / method.horizon) == restart:
            return Randomness.for_purpose(seed)
    raise AssertionError("no such seed")


def test_real_slope_is_gathered_over_parts() -> None:
    """More images than go into one part."""
    problem = smooth_problem()
    x, y = problem.real_data().points(torch.arange(REAL).repeat(20))
    theta = smooth_network().initialise(1).to(DOUBLE).requires_grad_()
    whole = -problem.energy.model.log_likelihood(theta, x, y).mean()
    energy, slope = real_slope(problem, theta, x, y)
    torch.testing.assert_close(energy, whole.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, torch.autograd.grad(whole, theta)[0], rtol=1e-10, atol=1e-14)


# Chains that persist.


def test_two_windows_of_a_chain_are_one_of_twice_the_length() -> None:
    """Without augmentation and with fixed points the second window goes on where the first one ended."""
    problem, points = smooth_problem(), network_points(learned=False)
    short, long = (ThroughChain(steps=steps, chains=1, step_size=0.2, horizon=400) for steps in (4, 8))
    start = {POOL: smooth_network().initialise(5, 1).to(DOUBLE)}
    carried = start
    for _ in range(2):
        carried = dict(short.loss(with_carried(points, carried), problem, continuing(short)).carried)
    whole = long.loss(with_carried(points, start), problem, continuing(long)).carried
    torch.testing.assert_close(carried[POOL], whole[POOL], rtol=1e-12, atol=1e-14)
    assert not torch.equal(carried[POOL], start[POOL])


def test_a_restarted_chain_forgets_where_it_was_and_the_others_stay() -> None:
    problem, points = smooth_problem(), network_points(learned=False)
    method = ThroughChain(steps=2, chains=3, step_size=0.2, horizon=20)
    far = torch.full((3, smooth_network().size), 100.0, dtype=DOUBLE)
    for restart in (False, True):
        pool = method.loss(with_carried(points, {POOL: far}), problem, continuing(method, restart)).carried[POOL]
        moved = (pool != far).any(1)
        assert int(moved.sum()) == 1
        assert (float(pool[moved].norm()) < 0.5 * float(far[0].norm())) == restart
    assert torch.equal(far, torch.full_like(far, 100.0))


def test_chains_have_the_mean_age_of_the_horizon() -> None:
    """Restarts come with probability steps / horizon, and each chain is picked as often as the others."""
    problem, points = smooth_problem(), network_points(learned=False)
    method = ThroughChain(steps=1, chains=4, step_size=1e-12, horizon=5, batch_size=1)
    draws, picked, restarted = 500, [0] * 4, 0
    marks = 1000 * torch.arange(1, 5, dtype=DOUBLE)[:, None].expand(4, smooth_network().size)
    for draw in range(draws):
        pool = method.loss(
            with_carried(points, {POOL: marks}), problem, Randomness.for_purpose(0, draw)
        ).carried[POOL]  # fmt: skip
        (chain,) = (pool != marks).any(1).nonzero().flatten().tolist()
        picked[chain] += 1
        restarted += int(float(pool[chain].abs().max()) < 500)
    # Five standard deviations of a binomial count.
    assert restarted == pytest.approx(draws / 5, abs=5 * (draws * 0.2 * 0.8) ** 0.5)
    for count in picked:
        assert count == pytest.approx(draws / 4, abs=5 * (draws * 0.25 * 0.75) ** 0.5)


def test_chains_start_cold_and_apart() -> None:
    loss = ThroughChain(steps=1, chains=3).loss(network_points(), smooth_problem(), Randomness.for_purpose(0))
    first, second, third = loss.carried[POOL]
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert 0.05 < float(loss.carried[POOL].std()) < 1.0


# In a construction.

OPTIONS: dict[str, Any] = {"steps": 10, "horizon": 100, "chains": 3, "batch_size": 128, "step_size": 0.2}


@dataclass(frozen=True)
class Interrupted(ThroughChain):
    """Interrupted at one of its calls."""

    at: int = 0

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Any:
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        if self.at == self.calls:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return super().loss(points, problem, randomness)


def construct(digits: Dataset, experts: Experts, method: ThroughChain, iterations: int, **places: Any) -> Any:
    settings = ConstructionSettings(iterations=iterations, optimiser="adam", learning_rate=0.05, averaging=0.9)
    return run_construction(digits, experts, "bptt", method, settings, device="cpu", **places)


def test_an_interrupted_construction_goes_on_with_the_same_chains(
    digits: Dataset, experts: Experts, tmp_path: Path
) -> None:
    """Interrupted between two checks, it returns to the chains of the last one; the end is the same to the bit."""
    options = OPTIONS | {"steps": 3, "horizon": 30, "step_size_learning_rate": 1e-4}
    whole = construct(digits, experts, Interrupted(**options), 25)
    checkpoint = tmp_path / "checkpoint"
    interrupted = Interrupted(**options, at=15)
    with pytest.raises(KeyboardInterrupt):
        construct(digits, experts, interrupted, 25, checkpoint=checkpoint)
    # The same settings, and no more interruptions: it counts its calls from 15 on.
    resumed = construct(digits, experts, interrupted, 25, checkpoint=checkpoint)
    assert torch.equal(resumed.coreset.images, whole.coreset.images)
    assert resumed.history == whole.history
    assert resumed.coreset.configuration["learned"] == whole.coreset.configuration["learned"]


def test_chains_that_are_lost_would_be_noticed(digits: Dataset, experts: Experts, tmp_path: Path) -> None:
    """The checkpoint holds the chains; with others in their place the construction ends elsewhere."""
    from pseudocoresets.files import read_tensors, write_tensors

    method = ThroughChain(**OPTIONS | {"steps": 3, "horizon": 1000})
    checkpoint = tmp_path / "checkpoint"
    construct(digits, experts, method, 10, checkpoint=checkpoint)
    state, document = read_tensors(checkpoint)
    assert state["carried." + POOL].shape == (3, experts.network.size)
    whole = construct(digits, experts, method, 20, checkpoint=checkpoint)
    write_tensors(checkpoint, state | {"carried." + POOL: state["carried." + POOL] + 0.1}, document)
    other = construct(digits, experts, method, 20, checkpoint=checkpoint)
    assert not torch.equal(whole.coreset.images, other.coreset.images)


def test_construction_beats_its_start(digits: Dataset, experts: Experts) -> None:
    """Accuracy and NLL of cold chains on data that was held out, after a hundred iterations."""
    held = digits.holding_out(0.2)
    made = construct(held, experts, ThroughChain(**OPTIONS), 100)

    def judged(coreset: pc.Coreset) -> Any:
        samples = pc.sample_posterior(
            coreset, chains=3, steps=100, samples=5, step_size=0.2, temperature=0.1, device="cpu"
        )
        return pc.evaluate(samples, held.test)

    before, after = judged(made.initial), judged(made.coreset)
    assert after.accuracy.mean > before.accuracy.mean + 0.05
    assert after.nll.mean < before.nll.mean
    losses = [row["loss"] for row in made.history]
    assert sum(losses[-20:]) < sum(losses[:20])


# What it refuses.


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"horizon": 10}, {"chains": 0}, {"batch_size": 0}, {"gradient": "detached"}, {"reach": 0.0}],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ThroughChain(**options)


def test_models_without_an_initialisation_and_problems_without_real_data_are_refused() -> None:
    real = gaussian_real_data()
    with pytest.raises(InputError, match="Classifier"):
        ThroughChain(steps=1).loss(
            gaussian_points(), Problem(Energy(GaussianModel(), 40), None, lambda: real), Randomness.for_purpose(0)
        )
    bare = replace(smooth_problem(), real_data=None)
    with pytest.raises(InputError, match="real data"):
        ThroughChain(steps=1).loss(network_points(), bare, Randomness.for_purpose(0))
