"""The full data's energy through the end of the coreset's chain: its gradient, and chains that persist."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_problems import (
    DOUBLE,
    GaussianModel,
    PreciseClassifier,
    gaussian_points,
    gaussian_real_data,
    gradients,
    network_points,
)
from torch import Tensor, nn

import pseudocoresets as pc
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.energy import Energy, without_noise
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Motion, at_rest
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.gradients import Differences
from pseudocoresets.kernels import PreconditionedSGHMC, advance, speeds_at
from pseudocoresets.methods import BPTT, Loss, Points, Problem, RealData
from pseudocoresets.methods.bptt import POOL, SPEEDS, VELOCITIES
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts import Experts

REAL = 30


def smooth_network() -> Network:
    """Nothing in it switches, so that differences of every radius are near the derivative."""

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
    return replace(points, state=carried)


def unequal_speeds() -> dict[str, Tensor]:
    return {SPEEDS: torch.linspace(0.5, 2, smooth_network().size, dtype=DOUBLE)[None]}


def moving_chains(count: int) -> dict[str, Tensor]:
    """Chains whose velocities are of the size of a slope."""
    generator = torch.Generator().manual_seed(6)
    places = smooth_network().initialise(5, count).to(DOUBLE)
    return {POOL: places, VELOCITIES: 0.1 * torch.randn(places.shape, generator=generator, dtype=DOUBLE)}


@pytest.mark.parametrize("gradient", ["stored", "exact"])
@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize(
    ("augment_real", "points_per_step", "momentum"), [(False, 0, 0.0), (True, 4, 0.0), (False, 0, 0.9), (True, 4, 0.9)]
)
def test_exact_gradient_is_that_of_the_loss_by_finite_differences(
    augment_real: bool, points_per_step: int, momentum: float, preconditioned: bool, gradient: str
) -> None:
    """In the images, the labels, the weights and the step size, with augmentation; with momentum from a motion."""
    problem = smooth_problem(dsa(flippable=False))
    method = BPTT(
        steps=5,
        momentum=momentum,
        preconditioned=preconditioned,
        gradient=gradient,
        step_size_learning_rate=1.0,
        augment_real=augment_real,
        points_per_step=points_per_step,
    )
    carried = (moving_chains(method.chains) if momentum else {}) | (unequal_speeds() if preconditioned else {})
    points = with_carried(network_points(step_size=0.2), carried)

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
    steps = [
        replace(points, hyperparameters={"step_size": torch.tensor(0.2 + h, dtype=DOUBLE)}) for h in (width, -width)
    ]
    slope = (value(steps[0]) - value(steps[1])).detach() / (2 * width)
    torch.testing.assert_close(found["step_size"], slope, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_differences_come_to_the_exact_gradient_with_the_square_of_the_radius(
    momentum: float, preconditioned: bool
) -> None:
    problem, points = smooth_problem(dsa(flippable=False)), network_points()

    def gradient(**options: Any) -> Tensor:
        method = BPTT(steps=5, step_size=0.2, momentum=momentum, preconditioned=preconditioned, **options)
        return gradients(method.loss(points, problem, Randomness.for_purpose(4)).value, points)["x"]

    exact = gradient(gradient="stored")
    errors = [
        float((gradient(gradient=Differences(radius)) - exact).norm() / exact.norm())
        for radius in (0.05, 0.025, 0.0125)
    ]
    assert errors[0] < 0.01
    for coarse, fine in pairwise(errors):
        # A central difference: halving the radius quarters the error, up to the next order, radius^2.
        assert fine / coarse == pytest.approx(0.25, rel=0.05**2 * 10)


def test_a_chain_that_does_not_move_has_a_finite_gradient() -> None:
    """At a step of 1e-300 the unroll's path has length zero in double precision."""
    points = network_points()
    method = BPTT(steps=2, step_size=1e-300)
    loss = method.loss(points, smooth_problem(), Randomness.for_purpose(0))
    assert torch.isfinite(gradients(loss.value, points)["x"]).all()


def test_loss_is_the_energy_of_real_data_at_the_end_of_the_unroll() -> None:
    problem, points = smooth_problem(), network_points(learned=False)
    method = BPTT(steps=3, chains=1, batch_size=REAL * 400, step_size=0.2)
    start = smooth_network().initialise(5, 1).to(DOUBLE)
    loss = method.loss(with_carried(points, {POOL: start}), problem, continuing(method))
    theta = start
    for _ in range(3):
        theta = theta.detach().requires_grad_()
        potential = problem.energy.potential(theta, points.x, points.y, points.weights).sum()
        theta = theta - 0.2 * torch.autograd.grad(potential, theta)[0]
    torch.testing.assert_close(loss.state[POOL], theta.detach(), rtol=1e-12, atol=1e-14)
    real = problem.real_data()
    x, y = real.rows(torch.arange(REAL))
    energies = -problem.energy.model.log_likelihood(theta[0], x, y).detach()
    # The batch is drawn with replacement: four standard errors of its mean.
    error = float(energies.std()) / (REAL * 400) ** 0.5
    assert float(loss.value) == pytest.approx(float(energies.mean()), abs=4 * error)


def continuing(method: BPTT, restart: bool = False) -> Randomness:
    """Randomness under which the method does not restart the chain it picks (or does)."""
    for seed in range(1000):
        if drawn_by(method, Randomness.for_purpose(seed))[0] == restart:
            return Randomness.for_purpose(seed)
    raise AssertionError("no such seed")


def drawn_by(method: BPTT, randomness: Randomness) -> tuple[bool, Tensor]:
    """Whether the first chain that is picked restarts, and where: the order of what an iteration draws."""
    generator = randomness.device
    torch.rand(method.chains, generator=generator)
    drawn = randomness.host.random() if method.burn_in else float(torch.rand(method.unrolls, 1, generator=generator)[0])
    start = smooth_network().draw(method.unrolls, generator).to(DOUBLE)
    return drawn < method.steps / (method.horizon - method.burn_in), start


def test_real_gradients_are_gathered_over_parts() -> None:
    """More images than go into one part, at two places."""
    problem = smooth_problem()
    x, y = problem.real_data().rows(torch.arange(REAL).repeat(20))
    thetas = smooth_network().initialise(1, 2).to(DOUBLE).requires_grad_()
    whole = -problem.energy.model.log_likelihood(thetas, x, y).mean(-1)
    energies, found = problem.real_gradients(thetas, x, y)
    torch.testing.assert_close(energies, whole.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torch.autograd.grad(whole.sum(), thetas)[0], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("gradient", ["stored", "differences"])
def test_several_unrolls_are_the_mean_of_each_alone(gradient: str, momentum: float) -> None:
    """Without augmentation; the same chains one by one, on the same batch."""
    problem, points = smooth_problem(), network_points(step_size=0.2)
    method = BPTT(steps=4, momentum=momentum, chains=3, unrolls=3, gradient=gradient, step_size_learning_rate=1.0)
    starts = Motion(*moving_chains(3).values())

    def found(start: Motion) -> tuple[Tensor, dict[str, Tensor]]:
        outcome = method.descend(points, problem, start, Randomness.for_purpose(1))
        return outcome.loss.detach(), gradients(outcome.loss, points)

    together, alone = found(starts), [found(starts.of([chain])) for chain in range(3)]
    torch.testing.assert_close(together[0], torch.stack([loss for loss, _ in alone]).mean())
    for name, gradient_of_all in together[1].items():
        mean = torch.stack([each[name] for _, each in alone]).mean(0)
        torch.testing.assert_close(gradient_of_all, mean, rtol=1e-9, atol=1e-12)


# Chains that persist.


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_unrolls_of_a_chain_are_one_of_twice_the_length(momentum: float) -> None:
    """Without augmentation and with fixed points the second unroll goes on where the first one ended, and as fast."""
    problem, points = smooth_problem(), network_points(learned=False)
    short, long = (BPTT(steps=steps, chains=1, step_size=0.2, momentum=momentum) for steps in (4, 8))

    def after(method: BPTT, carried: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(method.loss(with_carried(points, carried), problem, continuing(method)).state)

    start = {POOL: smooth_network().initialise(5, 1).to(DOUBLE)}
    half, whole = after(short, start), after(long, start)
    twice = after(short, half)
    for name in (POOL, VELOCITIES):
        torch.testing.assert_close(twice[name], whole[name], rtol=1e-12, atol=1e-14)
    assert not torch.equal(whole[POOL], start[POOL])
    stopped = after(short, {POOL: half[POOL]})
    assert torch.allclose(stopped[POOL], whole[POOL], rtol=1e-3, atol=1e-3) == (momentum == 0)


def test_an_unroll_with_speeds_is_a_stretch_of_the_kernel_with_masses() -> None:
    """At temperature zero, and with the speeds that the kernel finds where the chain starts."""
    problem, points = smooth_problem(), network_points(learned=False)
    method = BPTT(steps=7, chains=1, step_size=0.2, momentum=0.8, preconditioned=True)
    start = smooth_network().initialise(5, 1).to(DOUBLE)
    target = problem.energy.target(points.x, points.y, points.weights)
    carried = {POOL: start, SPEEDS: speeds_at(start, target)}
    end = method.loss(with_carried(points, carried), problem, continuing(method)).state[POOL]
    kernel = PreconditionedSGHMC(0.2, 0.2)
    chain = advance(kernel, start, without_noise(target), method.steps, torch.Generator())
    torch.testing.assert_close(end, chain, rtol=1e-12, atol=1e-14)
    assert carried[SPEEDS].unique().numel() == 4


def test_speeds_are_found_once_and_kept() -> None:
    problem, points = smooth_problem(), network_points(learned=False)
    method = BPTT(steps=2, chains=2, unrolls=2, step_size=0.2, preconditioned=True)
    first = dict(method.loss(points, problem, Randomness.for_purpose(4)).state)
    assert first[SPEEDS].shape == (1, smooth_network().size)
    moved = replace(with_carried(points, first), x=points.x + 1)
    assert torch.equal(method.loss(moved, problem, Randomness.for_purpose(5)).state[SPEEDS], first[SPEEDS])
    assert SPEEDS not in replace(method, preconditioned=False).loss(points, problem, Randomness.for_purpose(4)).state


def test_a_restarted_chain_forgets_where_it_was_and_the_others_stay() -> None:
    problem, points = smooth_problem(), network_points(learned=False)
    method = BPTT(steps=2, chains=3, step_size=0.2, horizon=20)
    far = torch.full((3, smooth_network().size), 100.0, dtype=DOUBLE)
    for restart in (False, True):
        pool = method.loss(with_carried(points, {POOL: far}), problem, continuing(method, restart)).state[POOL]
        moved = (pool != far).any(1)
        assert int(moved.sum()) == 1
        assert (float(pool[moved].norm()) < 0.5 * float(far[0].norm())) == restart
    assert torch.equal(far, torch.full_like(far, 100.0))


def test_chains_have_the_mean_age_of_the_horizon() -> None:
    """Restarts come with probability steps / horizon, and each chain is picked as often as the others."""
    problem, points = smooth_problem(), network_points(learned=False)
    method = BPTT(steps=1, chains=4, step_size=1e-12, horizon=5, batch_size=1)
    draws, picked, restarted = 500, [0] * 4, 0
    marks = 1000 * torch.arange(1, 5, dtype=DOUBLE)[:, None].expand(4, smooth_network().size)
    for draw in range(draws):
        pool = method.loss(
            with_carried(points, {POOL: marks}), problem, Randomness.for_purpose(0, draw)
        ).state[POOL]  # fmt: skip
        (chain,) = (pool != marks).any(1).nonzero().flatten().tolist()
        picked[chain] += 1
        restarted += int(float(pool[chain].abs().max()) < 500)
    # Five standard deviations of a binomial count.
    assert restarted == pytest.approx(draws / 5, abs=5 * (draws * 0.2 * 0.8) ** 0.5)
    for count in picked:
        assert count == pytest.approx(draws / 4, abs=5 * (draws * 0.25 * 0.75) ** 0.5)


def test_chains_start_cold_and_apart() -> None:
    loss = BPTT(steps=1, chains=3).loss(network_points(), smooth_problem(), Randomness.for_purpose(0))
    first, second, third = loss.state[POOL]
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert 0.05 < float(loss.state[POOL].std()) < 1.0


# Burn-in, and ages.


def plain_run(
    start: Motion, problem: Problem, points: Points, steps: int, step_size: float, momentum: float = 0.0
) -> Motion:
    """v <- mu v + grad U(theta);  theta <- theta - eta v, spelt out."""
    position, velocity = start
    for _ in range(steps):
        theta = position.detach().requires_grad_()
        potential = problem.energy.potential(theta, points.x, points.y, points.weights).sum()
        velocity = momentum * velocity + torch.autograd.grad(potential, theta)[0]
        position = (theta - step_size * velocity).detach()
    return Motion(position, velocity)


def carried_by(loss: Loss) -> Motion:
    return Motion(loss.state[POOL], loss.state[VELOCITIES])


@pytest.mark.parametrize(("learned_step_size", "momentum"), [(False, 0.0), (True, 0.0), (False, 0.9)])
def test_a_restarted_chain_is_burn_in_and_unroll_from_its_initialisation(
    learned_step_size: bool, momentum: float
) -> None:
    """From rest, and with the learned step size where there is one."""
    problem = smooth_problem()
    points = network_points(learned=False, **({"step_size": 0.3} if learned_step_size else {}))
    options: dict[str, Any] = {"steps": 4, "chains": 1, "step_size": 0.2, "momentum": momentum}
    cold, warm = (BPTT(**options, burn_in=b, horizon=b + 4) for b in (0, 8))
    far = torch.full((1, smooth_network().size), 100.0, dtype=DOUBLE)
    eta, given = 0.3 if learned_step_size else 0.2, with_carried(points, {POOL: far, VELOCITIES: far})
    for method, steps in ((cold, 4), (warm, 12)):
        found = carried_by(method.loss(given, problem, continuing(method, restart=True)))
        start = at_rest(drawn_by(method, continuing(method, restart=True))[1])
        expected = plain_run(start, problem, points, steps, eta, momentum)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_chain_that_goes_on_takes_no_burn_in() -> None:
    problem, points = smooth_problem(), network_points(learned=False)
    method = BPTT(steps=4, burn_in=8, chains=1, step_size=0.2, horizon=400)
    start = smooth_network().initialise(5, 1).to(DOUBLE)
    end = method.loss(with_carried(points, {POOL: start}), problem, continuing(method)).state[POOL]
    expected = plain_run(at_rest(start), problem, points, 4, 0.2).position
    torch.testing.assert_close(end, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("unrolls", [1, 3])
@pytest.mark.parametrize("spread", [False, True])
def test_first_pool_has_its_ages(spread: bool, unrolls: int, momentum: float) -> None:
    """Each place that the first iteration leaves alone is a plain run of as many steps from the same cold start.

    The starts are drawn as many at once as there are unrolls, and what is too much of the last draw is not used.
    """
    problem, points = smooth_problem(), network_points(learned=False)
    cold = BPTT(steps=3, chains=4, unrolls=unrolls, step_size=0.2, momentum=momentum, horizon=30)
    method = replace(cold, burn_in=6, spread=spread)
    generator = Randomness.for_purpose(2).device
    draws = [smooth_network().draw(unrolls, generator) for _ in range(0, 4, unrolls)]
    starts = at_rest(torch.cat(draws)[:4].to(DOUBLE))
    pool = carried_by(method.loss(points, problem, Randomness.for_purpose(2)))
    agreeing = 0
    for chain, age in enumerate(method.first_ages()):
        expected = plain_run(starts.of([chain]), problem, points, age, 0.2, momentum)
        pairs = zip(pool.of([chain]), expected, strict=True)
        agreeing += int(all(torch.allclose(*pair, rtol=1e-11, atol=1e-13) for pair in pairs))
    assert agreeing == 4 - unrolls
    assert len(set(method.first_ages())) == (4 if spread else 1)


def test_spread_ages_are_those_of_the_long_run() -> None:
    """Many chains that age by unrolls and restart with the method's probability have the same quantiles."""
    method = BPTT(steps=3, chains=400, horizon=51, burn_in=21, spread=True)
    ages = torch.tensor(method.first_ages(), dtype=DOUBLE)
    assert float(ages.min()) == 24
    # Mid-quantiles of a geometric law: what is missing of the mean is the last half-interval's tail, of order 1 / 400.
    assert float(ages.mean()) == pytest.approx(51, abs=0.5)
    host, simulated = Randomness.for_purpose(0).host, []
    age = 21
    for _ in range(20_000):
        age = 3 + (21 if host.random() < 3 / (51 - 21) else age)
        simulated.append(float(age))
    # Successive ages of a chain are correlated over 1 / p = 10 unrolls: about 20 000 / 20 independent ones.
    share = (torch.tensor(simulated) <= 42).double().mean()
    expected = (ages <= 42).double().mean()
    assert float(share) == pytest.approx(float(expected), abs=4 * 0.5 / 1000**0.5)


def test_ages_where_every_unroll_restarts() -> None:
    assert BPTT(steps=5, burn_in=10, horizon=15, chains=3, spread=True).first_ages() == [15, 15, 15]


# Iterations that count the same.


def test_equal_weight_has_a_gradient_of_norm_one_over_the_images_and_the_same_direction_in_all() -> None:
    problem, points = smooth_problem(), network_points(step_size=0.2)
    method = BPTT(steps=3, step_size_learning_rate=1.0)
    raw = method.loss(points, problem, Randomness.for_purpose(0))
    equal = replace(method, equal_weight=True).loss(points, problem, Randomness.for_purpose(0))
    before, after = gradients(raw.value, points), gradients(equal.value, points)
    assert float(after["x"].norm()) == pytest.approx(1, rel=1e-12)
    for name, gradient in before.items():
        torch.testing.assert_close(after[name], gradient / before["x"].norm(), rtol=1e-12, atol=0)
    assert torch.equal(equal.value, raw.value)
    assert torch.equal(equal.state[POOL], raw.state[POOL])


def test_equal_weight_of_images_that_are_not_learned_is_the_plain_loss() -> None:
    points = network_points(learned=False)
    method = BPTT(steps=2, equal_weight=True)
    loss = method.loss(points, smooth_problem(), Randomness.for_purpose(0))
    plain = replace(method, equal_weight=False).loss(points, smooth_problem(), Randomness.for_purpose(0))
    assert torch.equal(loss.value, plain.value)


# In a construction.

OPTIONS: dict[str, Any] = {"steps": 10, "horizon": 100, "chains": 3, "batch_size": 128, "step_size": 0.2}


@dataclass(frozen=True)
class Interrupted(BPTT):
    """Interrupted at one of its calls."""

    at: int = 0

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Any:
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        if self.at == self.calls:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return super().loss(points, problem, randomness)


def construct(digits: Dataset, experts: Experts | None, method: BPTT, iterations: int, **places: Any) -> Any:
    settings = ConstructionSettings(iterations=iterations, optimiser="adam", learning_rate=0.05, averaging=0.9)
    return run_construction(digits, experts, "bptt", method, settings, device="cpu", **places)


@pytest.mark.parametrize(
    "aged",
    [
        {},
        {"burn_in": 6, "spread": True, "equal_weight": True},
        {"momentum": 0.9, "step_size": 0.02, "preconditioned": True},
    ],
)
def test_an_interrupted_construction_goes_on_with_the_same_chains(
    digits: Dataset, experts: Experts, tmp_path: Path, aged: dict[str, Any]
) -> None:
    """Interrupted between two checks, it returns to the chains of the last one; the end is the same to the bit."""
    options = OPTIONS | {"steps": 3, "horizon": 30, "step_size_learning_rate": 1e-4} | aged
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


@pytest.mark.parametrize(("lost", "momentum"), [(POOL, 0.0), (VELOCITIES, 0.9)])
def test_chains_that_are_lost_would_be_noticed(
    digits: Dataset, experts: Experts, tmp_path: Path, lost: str, momentum: float
) -> None:
    """The checkpoint holds the chains; with others in their place the construction ends elsewhere."""
    from pseudocoresets._io.files import read_tensors, write_tensors

    method = BPTT(**OPTIONS | {"steps": 3, "horizon": 1000, "momentum": momentum})
    checkpoint = tmp_path / "checkpoint"
    construct(digits, experts, method, 10, checkpoint=checkpoint)
    state, document = read_tensors(checkpoint)
    (key,) = (name for name in state if name.startswith("method") and name.endswith(lost))
    assert state[key].shape == (3, experts.network.size)
    whole = construct(digits, experts, method, 20, checkpoint=checkpoint)
    write_tensors(checkpoint, state | {key: state[key] + 0.1}, document)
    other = construct(digits, experts, method, 20, checkpoint=checkpoint)
    assert not torch.equal(whole.coreset.images, other.coreset.images)


def test_construction_beats_its_start(digits: Dataset, experts: Experts) -> None:
    """Accuracy and NLL of cold chains on data that was held out, after a hundred iterations."""
    held = digits.holding_out(0.2)
    made = construct(held, None, BPTT(**OPTIONS), 100, network=experts.network)

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
    [
        {"steps": 0},
        {"horizon": 10},
        {"burn_in": -40},
        {"burn_in": 400},
        {"burn_in": 50},
        {"momentum": -0.1},
        {"momentum": 1.0},
        {"chains": 0},
        {"batch_size": 0},
        {"gradient": "guessed"},
        {"gradient": "differences:radius=0.0"},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        BPTT(**options)


def test_models_without_an_initialisation_and_problems_without_real_data_are_refused() -> None:
    real = gaussian_real_data()
    with pytest.raises(InputError, match="Classifier"):
        BPTT(steps=1).loss(
            gaussian_points(), Problem(Energy(GaussianModel(), 40), None, lambda: real), Randomness.for_purpose(0)
        )
    bare = replace(smooth_problem(), real_data=None)
    with pytest.raises(InputError, match="real data"):
        BPTT(steps=1).loss(network_points(), bare, Randomness.for_purpose(0))
