"""Markov kernels against targets whose answers are known.

Chains of a population are independent, so the error of an average over them is known: every comparison is a
z-score, and its bound is one that a right kernel passes with near certainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, linalg, stats
from torch import Tensor

from pseudocoresets.core.energy import Energy, FunctionTarget
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.kernels import (
    HMC,
    KERNELS,
    MALA,
    SCHEDULES,
    SGD,
    SGHMC,
    Adam,
    AnyKernel,
    Cosine,
    Cyclical,
    Drop,
    DualAveraging,
    Langevin,
    Polynomial,
    PreconditionedSGHMC,
    advance,
    is_adjusted,
    run_chain,
    speeds_at,
    warm_up,
)
from pseudocoresets.kernels.preconditioned import relative_speeds
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network

LARGEST_Z = 4.5
"""A right answer exceeds this once in 150,000 comparisons."""
CHAINS = 10_000
PRECISION = torch.tensor([[2.0, 0.8, 0.0], [0.8, 1.0, -0.3], [0.0, -0.3, 1.5]], dtype=torch.double)
MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
TEMPERATURE = 0.3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(temperature: float = TEMPERATURE) -> FunctionTarget:
    def potential(theta: Tensor) -> Tensor:
        centred = theta - MEAN
        return ((centred @ PRECISION) * centred).sum(-1) / 2

    return FunctionTarget(potential, temperature)


def z_scores(values: Tensor, expected: Tensor) -> Tensor:
    """How many standard errors the means of independent rows of ``values`` lie from what is expected."""
    return (values.mean(0) - expected) / (values.std(0) / math.sqrt(len(values)))


def moment_z_scores(samples: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """z-scores of all means and second central moments about the known mean."""
    centred = samples - mean
    products = centred[:, :, None] * centred[:, None, :]
    return torch.cat([z_scores(samples, mean), z_scores(products.flatten(1), covariance.flatten())])


def langevin_covariance(step_size: float) -> Tensor:
    """S = (I - eta A) S (I - eta A)^T + 2 eta T I."""
    transition = np.eye(3) - step_size * PRECISION.numpy()
    return torch.as_tensor(linalg.solve_discrete_lyapunov(transition, 2 * step_size * TEMPERATURE * np.eye(3)))


def sghmc_covariance(step_size: float, decay: float, precision: Tensor = PRECISION) -> Tensor:
    """The position's block of the stationary covariance of (theta, v), a linear recursion."""
    eye, gradient = np.eye(3), step_size * precision.numpy()
    transition = np.block([[eye - gradient, (1 - decay) * eye], [-gradient, (1 - decay) * eye]])
    noise = np.kron(np.ones((2, 2)), 2 * decay * step_size * TEMPERATURE * eye)
    return torch.as_tensor(linalg.solve_discrete_lyapunov(transition, noise)[:3, :3].copy())


BLOCKS = (1, 2)


def speeds_by_hand(gradient: Tensor) -> Tensor:
    """For two blocks, of one parameter and of two."""
    first, second = gradient[0] ** 2, (gradient[1] ** 2 + gradient[2] ** 2) / 2
    whole = (gradient**2).sum() / 3
    return torch.stack([1.001 / (block / whole + 0.001) for block in (first, second, second)]).sqrt()


def preconditioned_covariance(step_size: float, decay: float, speeds: Tensor) -> Tensor:
    """That of SGHMC in coordinates in which all speeds are one, P^(-1/2) theta, taken back."""
    root = speeds.sqrt().diag()
    return root @ sghmc_covariance(step_size, decay, root @ PRECISION @ root) @ root


EXACT = TEMPERATURE * torch.linalg.inv(PRECISION)
KERNELS_WITH_COVARIANCE = [
    pytest.param(Langevin(0.3), langevin_covariance(0.3), 60, id="langevin"),
    pytest.param(SGHMC(0.3, 0.3), sghmc_covariance(0.3, 0.3), 100, id="sghmc"),
    pytest.param(MALA(0.4), EXACT, 100, id="mala"),
    pytest.param(HMC(0.3, 5), EXACT, 30, id="hmc"),
    pytest.param(HMC(0.3, 5, mass=PRECISION.diagonal().clone()), EXACT, 30, id="hmc with mass"),
]


@pytest.mark.parametrize(("kernel", "covariance", "steps"), KERNELS_WITH_COVARIANCE)
def test_correlated_gaussian(kernel: AnyKernel, covariance: Tensor, steps: int) -> None:
    start = torch.zeros(CHAINS, 3, dtype=torch.double)
    end = advance(kernel, start, gaussian(), steps, seeded())
    assert moment_z_scores(end, MEAN, covariance).abs().max() < LARGEST_Z


@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_speeds_change_how_fast_the_posterior_is_reached_and_not_which(decay: float) -> None:
    """With speeds that the kernel finds where all chains start, chains are those of SGHMC in scaled coordinates."""
    start, target = torch.zeros(CHAINS, 3, dtype=torch.double), replace(gaussian(), blocks=BLOCKS)
    speeds = speeds_by_hand(-MEAN @ PRECISION)
    assert float(speeds.max() / speeds.min()) > 3
    end = advance(PreconditionedSGHMC(0.3, decay), start, target, 100, seeded())
    assert moment_z_scores(end, MEAN, preconditioned_covariance(0.3, decay, speeds)).abs().max() < LARGEST_Z


def test_one_block_has_the_speed_one() -> None:
    start = torch.randn(5, 3, dtype=torch.double, generator=seeded(1))
    ends = [
        advance(kernel, start, gaussian(), 20, seeded()) for kernel in (SGHMC(0.1, 0.3), PreconditionedSGHMC(0.1, 0.3))
    ]
    torch.testing.assert_close(*ends)


@given(st.floats(1e-3, 1e3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_speeds_do_not_depend_on_the_scale_of_the_gradient(scale: float, blocks: list[int], seed: int) -> None:
    """They are one number for each block, the larger the smaller its gradients are."""
    gradient = torch.randn(2, sum(blocks), dtype=torch.double, generator=seeded(seed))
    speeds = relative_speeds(gradient, blocks)
    torch.testing.assert_close(relative_speeds(scale * gradient, blocks), speeds)
    means = torch.stack([part.square().mean(-1) for part in gradient.split(blocks, -1)], -1)
    of_blocks = torch.stack([part[..., 0] for part in speeds.split(blocks, -1)], -1)
    assert torch.equal(speeds, of_blocks.repeat_interleave(torch.tensor(blocks), -1))
    assert torch.equal(means.argsort(-1), (-of_blocks).argsort(-1))


def test_speeds_where_there_is_no_gradient_are_one() -> None:
    assert torch.equal(relative_speeds(torch.zeros(2, 3), (1, 2)), torch.ones(2, 3))


def test_blocks_of_a_network_are_its_tensors() -> None:
    model = Classifier(build_network("convnet:depth=1,width=4", (1, 8, 8), 3))
    x, y, theta = torch.randn(3, 1, 8, 8, generator=seeded()), torch.arange(3), model.network.initialise(0, 2)
    found = speeds_at(theta, Energy(model, 50).target(x, y, torch.full((3,), 50 / 3)))
    parts = model.network.unflatten(found)
    assert all(part.flatten(1).unique(dim=1).shape[1] == 1 for part in parts.values())
    assert (parts["classifier.weight"][:, 0, 0] < parts["features.0.weight"][:, 0, 0, 0, 0]).all()


@pytest.mark.parametrize(("kernel", "steps"), [(Langevin(0.3), 60), (SGHMC(0.3, 0.3), 100)])
def test_bias_of_unadjusted_kernels_is_large_enough_to_be_seen(kernel: AnyKernel, steps: int) -> None:
    end = advance(kernel, torch.zeros(CHAINS, 3, dtype=torch.double), gaussian(), steps, seeded())
    assert moment_z_scores(end, MEAN, EXACT).abs().max() > 2 * LARGEST_Z


@pytest.mark.parametrize("decay", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("step_size", [0.01, 0.3])
def test_documented_variance_of_sghmc_solves_its_recursion(decay: float, step_size: float) -> None:
    curvature, directions = torch.linalg.eigh(PRECISION)
    documented = TEMPERATURE / (curvature * (1 - step_size * curvature / (2 * (2 - decay))))
    expected = directions @ documented.diag() @ directions.T
    torch.testing.assert_close(sghmc_covariance(step_size, decay), expected)


def test_sghmc_without_memory_is_langevin() -> None:
    start = torch.randn(5, 3, dtype=torch.double, generator=seeded(1))
    langevin = advance(Langevin(0.1), start, gaussian(), 20, seeded())
    torch.testing.assert_close(advance(SGHMC(0.1, 1.0), start, gaussian(), 20, seeded()), langevin)


def test_hmc_with_one_leapfrog_step_is_mala() -> None:
    start = torch.randn(50, 3, dtype=torch.double, generator=seeded(1))
    hmc = run_chain(HMC(0.8, 1), start, gaussian(), 20, seeded())
    mala = run_chain(MALA(0.8**2 / 2), start, gaussian(), 20, seeded())
    torch.testing.assert_close(hmc.position, mala.position)
    assert hmc.acceptance is not None and mala.acceptance is not None
    torch.testing.assert_close(hmc.acceptance, mala.acceptance)
    assert mala.acceptance.mean() < 0.95


BANANA_SCALE, BANANA_BEND = 1.0, 0.7


def banana(theta: Tensor) -> Tensor:
    """x ~ N(0, s^2), y | x ~ N(b (x^2 - s^2), 1)."""
    x, y = theta.unbind(-1)
    return x**2 / (2 * BANANA_SCALE**2) + (y - BANANA_BEND * (x**2 - BANANA_SCALE**2)) ** 2 / 2


def banana_functions(theta: Tensor) -> Tensor:
    x, y = theta.unbind(-1)
    return torch.stack([x, y, x**2, y**2, x * y, x**2 * y], -1)


BANANA_EXPECTATIONS = torch.tensor(
    [0, 0, BANANA_SCALE**2, 1 + 2 * BANANA_BEND**2 * BANANA_SCALE**4, 0, 2 * BANANA_BEND * BANANA_SCALE**4],
    dtype=torch.double,
)


@pytest.mark.parametrize(("kernel", "steps"), [(MALA(0.3), 150), (HMC(0.4, 5), 40)], ids=["mala", "hmc"])
def test_banana(kernel: AnyKernel, steps: int) -> None:
    end = advance(kernel, torch.zeros(CHAINS, 2, dtype=torch.double), FunctionTarget(banana), steps, seeded())
    assert z_scores(banana_functions(end), BANANA_EXPECTATIONS).abs().max() < LARGEST_Z


@dataclass(frozen=True)
class LinearRegression:
    """y ~ N(x . theta, noise^2), theta ~ N(0, prior^2 I)."""

    size: int
    noise: float = 0.5
    prior: float = 0.8

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -((theta @ x.T - y) ** 2) / (2 * self.noise**2)

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / (2 * self.prior**2)

    def posterior(self, x: Tensor, y: Tensor, weights: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        precision = (x.T * weights) @ x / self.noise**2 + torch.eye(self.size) / self.prior**2
        return torch.linalg.solve(precision, (x.T * weights) @ y / self.noise**2), temperature * torch.inverse(
            precision
        )


@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize(("kernel", "steps"), [(MALA(0.15), 150), (HMC(0.25, 3), 40)], ids=["mala", "hmc"])
def test_linear_regression_with_weights_prior_and_temperature(
    kernel: AnyKernel, steps: int, temperature: float
) -> None:
    draw = seeded(3)
    x = torch.randn(12, 3, dtype=torch.double, generator=draw)
    y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.double) + 0.5 * torch.randn(12, generator=draw)
    weights = 2 * torch.rand(12, dtype=torch.double, generator=draw)
    model = LinearRegression(3)
    target = Energy(model, data_size=12, temperature=temperature).target(x, y, weights)
    mean, covariance = model.posterior(x, y, weights, temperature)
    end = advance(kernel, torch.zeros(CHAINS, 3, dtype=torch.double), target, steps, seeded())
    assert moment_z_scores(end, mean, covariance).abs().max() < LARGEST_Z


@pytest.mark.parametrize(("kernel", "steps"), [(MALA(0.2), 100), (HMC(0.4, 4), 40)], ids=["mala", "hmc"])
def test_skewed_quartic_against_quadrature(kernel: AnyKernel, steps: int) -> None:
    def density(t: float) -> float:
        return math.exp(-(t**4 / 4 - t + math.cos(2 * t)) / 0.7)

    def moment(power: int) -> float:
        return float(integrate.quad(lambda t: t**power * density(t), -6, 6)[0])

    expected = torch.tensor([moment(k) / moment(0) for k in (1, 2, 3)], dtype=torch.double)
    target = FunctionTarget(lambda t: (t**4 / 4 - t + (2 * t).cos()).sum(-1), 0.7)
    end = advance(kernel, torch.zeros(CHAINS, 1, dtype=torch.double), target, steps, seeded())
    assert z_scores(torch.cat([end, end**2, end**3], 1), expected).abs().max() < LARGEST_Z


def expected_acceptance(step_size: float, leapfrog_steps: int, curvature: float, temperature: float) -> float:
    """E min(1, exp(-(H' - H) / T)) at stationarity on U = curvature theta^2 / 2, by quadrature."""
    kick = np.array([[1, 0], [-step_size / 2 * curvature, 1]])
    drift = np.array([[1, step_size], [0, 1]])
    trajectory = np.linalg.matrix_power(kick @ drift @ kick, leapfrog_steps)
    grid = np.linspace(-8, 8, 1601)
    scale = np.sqrt(np.array([temperature / curvature, temperature]))
    start = scale[:, None, None] * np.stack(np.meshgrid(grid, grid, indexing="ij"))
    end = np.einsum("ij,jab->iab", trajectory, start)

    def energy(z: np.ndarray) -> np.ndarray:
        return (curvature * z[0] ** 2 + z[1] ** 2) / (2 * temperature)

    density = np.outer(stats.norm.pdf(grid), stats.norm.pdf(grid)) * (grid[1] - grid[0]) ** 2
    return float((density * np.minimum(1, np.exp(energy(start) - energy(end)))).sum())


@pytest.mark.parametrize(("step_size", "leapfrog_steps"), [(1.0, 1), (0.9, 3), (1.2, 5)])
def test_acceptance_rate_on_a_gaussian(step_size: float, leapfrog_steps: int) -> None:
    curvature, temperature = 1.7, 0.4
    target = FunctionTarget(lambda t: curvature * t.square().sum(-1) / 2, temperature)
    chains = 50_000
    start = math.sqrt(temperature / curvature) * torch.randn(chains, 1, dtype=torch.double, generator=seeded(1))
    expected = expected_acceptance(step_size, leapfrog_steps, curvature, temperature)
    kernels: list[AnyKernel] = [HMC(step_size, leapfrog_steps)]
    if leapfrog_steps == 1:
        kernels.append(MALA(step_size**2 / 2))
    for kernel in kernels:
        acceptance = run_chain(kernel, start, target, 1, seeded()).acceptance
        assert acceptance is not None
        assert abs(float(z_scores(acceptance, torch.tensor(expected)))) < LARGEST_Z
        assert expected < 0.97


@pytest.mark.parametrize(("kernel", "wanted"), [(MALA(1e-4), None), (HMC(2.0, 4), None), (HMC(0.01, 4), 0.6)])
def test_dual_averaging_reaches_the_acceptance_asked_for(kernel: AnyKernel, wanted: float | None) -> None:
    generator = seeded()
    adapted, position = warm_up(kernel, torch.zeros(500, 3, dtype=torch.double), gaussian(), 400, generator, wanted)
    run = run_chain(adapted, position, gaussian(), 40, generator)
    assert run.acceptance is not None
    expected = wanted or {MALA: 0.574, HMC: 0.8}[type(kernel)]
    # One step's mean over 500 chains deviates by at most 0.5 / sqrt(500) = 0.022; averaging the steps, by less.
    assert abs(run.acceptance.mean() - expected) < 0.022


@given(st.floats(0.2, 0.95), st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=30)
def test_dual_averaging_solves_a_known_response(wanted: float, first: float) -> None:
    averaging = DualAveraging(first, wanted)
    for _ in range(3000):
        averaging = averaging.update(math.exp(-averaging.step_size))
    assert math.exp(-averaging.average) == pytest.approx(wanted, abs=0.02)


def test_adapting_needs_a_kernel_that_rejects() -> None:
    with pytest.raises(InputError, match="MALA or HMC"):
        warm_up(Langevin(0.1), torch.zeros(2, 3), gaussian(), 10, seeded())
    with pytest.raises(InputError, match="between 0 and 1"):
        warm_up(MALA(0.1), torch.zeros(2, 3).double(), gaussian(), 10, seeded(), 1.0)


@pytest.mark.parametrize("kernel", [MALA(0.2), HMC(0.4, 3)], ids=["mala", "hmc"])
@pytest.mark.parametrize("outside", [math.inf, math.nan])
def test_each_chain_is_rejected_on_its_own(kernel: AnyKernel, outside: float) -> None:
    """Flat on [-1, 1] and forbidden outside: uniform there, with variance 1/3 and fourth moment 1/5."""

    def potential(theta: Tensor) -> Tensor:
        inside = theta.abs().amax(-1) <= 1
        return torch.where(inside, 0 * theta.sum(-1), outside)

    run = run_chain(kernel, torch.zeros(CHAINS, 1).double(), FunctionTarget(potential), 60, seeded())
    moments = torch.cat([run.position, run.position**2, run.position**4], 1)
    assert run.position.abs().max() <= 1
    assert z_scores(moments, torch.tensor([0, 1 / 3, 1 / 5])).abs().max() < LARGEST_Z


def noisy_quadratic(curvature: float, deviation: float, temperature: float) -> FunctionTarget:
    """U with a gradient that has fresh noise at every evaluation."""
    noise = seeded(7)

    def potential(theta: Tensor) -> Tensor:
        slope = deviation * torch.randn(theta.shape, generator=noise, dtype=theta.dtype)
        return (curvature * theta**2 / 2 + slope * theta).sum(-1)

    return FunctionTarget(potential, temperature)


@pytest.mark.parametrize("decay", [None, 0.2])
def test_stochastic_gradients_add_the_variance_they_should(decay: float | None) -> None:
    curvature, deviation, temperature, eta = 1.3, 0.8, 0.5, 0.2
    rho = 0.0 if decay is None else 1 - decay
    noise = 2 * (1 - rho) * eta * temperature + (eta * deviation) ** 2
    # The variance of the second-order recursion theta_{t+1} = (1 + rho - h) theta_t - rho theta_{t-1} + noise.
    h = eta * curvature
    variance = (1 + rho) * noise / ((1 - rho) * h * (2 * (1 + rho) - h))
    kernel: AnyKernel = Langevin(eta) if decay is None else SGHMC(eta, decay)
    target = noisy_quadratic(curvature, deviation, temperature)
    end = advance(kernel, torch.zeros(CHAINS, 1, dtype=torch.double), target, 100, seeded())
    assert abs(float(z_scores(end**2, torch.tensor(variance)))) < LARGEST_Z


@pytest.mark.parametrize("name", list(KERNELS))
def test_every_kernel_runs_one_chain_and_a_population(name: str) -> None:
    kernel = KERNELS[name](step_size=0.05)
    for start in (torch.zeros(3).double(), torch.zeros(4, 3).double()):
        run = run_chain(kernel, start, gaussian(), 6, seeded(), keep_at={2, 6})
        assert run.kept.shape == (2, *start.shape)
        assert run.potentials.shape == (6, *start.shape[:-1])
        assert torch.equal(run.kept[-1], run.position)
        assert torch.equal(run.position, advance(kernel, start, gaussian(), 6, seeded()))
        assert (run.acceptance is not None) == is_adjusted(kernel)
        assert not run.position.requires_grad


@pytest.mark.parametrize("name", list(KERNELS))
def test_potentials_belong_to_the_positions_where_steps_began(name: str) -> None:
    start = torch.randn(4, 3, dtype=torch.double, generator=seeded(2))
    run = run_chain(KERNELS[name](step_size=0.3), start, gaussian(), 5, seeded(), keep_at=range(1, 6))
    began = torch.cat([start[None], run.kept[:-1]])
    torch.testing.assert_close(run.potentials, gaussian().potential(began))


def test_divergence_is_reported() -> None:
    target = FunctionTarget(lambda theta: (theta**4).sum(-1))
    with pytest.raises(DivergenceError, match="lower its step size"):
        run_chain(Langevin(10.0), torch.ones(2, 1), target, 20, seeded())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Langevin(0.0),
        lambda: MALA(-1.0),
        lambda: HMC(math.nan),
        lambda: HMC(0.1, leapfrog_steps=0),
        lambda: SGHMC(0.1, momentum_decay=0.0),
        lambda: SGHMC(0.1, momentum_decay=1.5),
        lambda: MALA(0.1).init(torch.zeros(3).double(), gaussian(temperature=0.0)),
        lambda: HMC(0.1).init(torch.zeros(3).double(), gaussian(temperature=0.0)),
        lambda: HMC(0.1, mass=torch.ones(2)).init(torch.zeros(3).double(), gaussian()),
        lambda: Cyclical(steps=3, cycles=4),
        lambda: Cyclical(steps=10, cycles=2, exploration=1.0),
        lambda: Cyclical(steps=10, cycles=2, exploration=0.8).keep_at(3),
        lambda: SGD(0.1, momentum=1.0),
        lambda: SGD(0.0),
        lambda: Adam(0.1, beta2=1.0),
        lambda: Drop(at=-1),
        lambda: Cosine(steps=0),
        lambda: Polynomial(scale=0.0),
    ],
)
def test_unusable_settings_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        make()


@given(st.data(), st.integers(1, 300), st.floats(0, 0.95))
@settings(deadline=None)
def test_cyclical_schedule(data: st.DataObject, steps: int, exploration: float) -> None:
    cycles = data.draw(st.integers(1, steps))
    schedule = Cyclical(steps, cycles, exploration)
    length = math.ceil(steps / cycles)
    factors = [schedule(t) for t in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    assert all(factors[t] == 1 for t in range(0, steps, length))
    assert all(factors[t] < factors[t - 1] for t in range(1, steps) if t % length)
    sampling = {t + 1 for t in range(steps) if (t % length) / length >= exploration}
    if sampling:
        samples = data.draw(st.integers(1, len(sampling)))
        kept = schedule.keep_at(samples)
        assert len(kept) == samples and kept <= sampling and max(sampling) in kept


def test_exploration_has_no_noise_and_sampling_has() -> None:
    schedule = Cyclical(steps=20, cycles=2, exploration=0.5)
    start = torch.ones(2, 3, dtype=torch.double)
    first, second = (
        run_chain(SGHMC(0.1), start, gaussian(), 20, seeded(seed), range(1, 21), schedule).kept for seed in (0, 1)
    )
    assert torch.equal(first[:5], second[:5])
    assert not torch.isclose(first[5:], second[5:]).any()


def test_schedule_scales_the_step() -> None:
    frozen = FunctionTarget(lambda theta: theta.sum(-1), temperature=0.0)
    for schedule in (SCHEDULES[name](10) for name in SCHEDULES):
        run = run_chain(Langevin(0.1), torch.zeros(1, 1).double(), frozen, 10, seeded(), schedule=schedule)
        assert float(run.position) == pytest.approx(-0.1 * sum(schedule(t) for t in range(10)))


@pytest.mark.parametrize(
    ("kernel", "torchs"),
    [
        (SGD(0.05, 0.8), lambda theta: torch.optim.SGD([theta], lr=0.05, momentum=0.8)),
        (Adam(0.05, 0.8, 0.95), lambda theta: torch.optim.Adam([theta], lr=0.05, betas=(0.8, 0.95))),
    ],
)
def test_an_optimiser_is_torchs_under_a_drop_of_the_rate(
    kernel: AnyKernel, torchs: Callable[[Tensor], torch.optim.Optimizer]
) -> None:
    """At any temperature, because it has no noise."""
    start = torch.randn(2, 3, generator=seeded(), dtype=torch.double)
    theta = start.clone().requires_grad_()
    optimiser = torchs(theta)
    for step in range(8):
        optimiser.param_groups[0]["lr"] = 0.05 if step < 5 else 0.005
        optimiser.zero_grad()
        gaussian().potential(theta).sum().backward()
        optimiser.step()
    run = run_chain(kernel, start, gaussian(), 8, seeded(), schedule=Drop(5))
    torch.testing.assert_close(run.position, theta.detach())
