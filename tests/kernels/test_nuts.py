"""NUTS against known answers and against another library; errors come from effective sample sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.energy import FunctionTarget
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.kernels import NUTS, run_chain
from pseudocoresets.kernels.diagnostics import mean_ess, rank_r_hat
from pseudocoresets.kernels.nuts import _metric_windows, _shrunk_variances

LARGEST_Z = 4.5
DENSE = NUTS(metric="dense")
PRECISION = torch.tensor([[2.0, 1.2, 0.0], [1.2, 1.0, -0.3], [0.0, -0.3, 30.0]], dtype=torch.double)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mean_and_error(draws: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Means of (chains, draws, quantities) and their Monte-Carlo errors."""
    values = draws.numpy()
    return values.mean((0, 1)), values.std((0, 1)) / np.sqrt(mean_ess(draws))


def largest_z(draws: Tensor, expected: Tensor) -> float:
    mean, error = mean_and_error(draws)
    return float(np.abs((mean - expected.numpy()) / error).max())


def products(draws: Tensor) -> Tensor:
    return torch.cat([draws, (draws[..., :, None] * draws[..., None, :]).flatten(-2)], -1)


@pytest.mark.parametrize(("metric", "temperature"), [("dense", 1.0), ("diagonal", 0.1)])
def test_correlated_gaussian(metric: str, temperature: float) -> None:
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
    target = FunctionTarget(lambda t: (((t - mean) @ PRECISION) * (t - mean)).sum(-1) / 2, temperature)
    start = 3 * torch.randn(4, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    run = NUTS(metric=metric).run(target, start, draws=250, warmup=200)  # type: ignore[arg-type]
    covariance = temperature * torch.linalg.inv(PRECISION)
    assert run.samples.shape == (4, 250, 3)
    expected = torch.cat([torch.zeros(3), covariance.flatten()])
    assert largest_z(products(run.samples - mean), expected) < LARGEST_Z
    assert rank_r_hat(run.samples).max() < 1.02
    assert int(run.divergences.sum()) == 0


def test_banana() -> None:
    """x ~ N(0, 1), y | x ~ N(b (x^2 - 1), 1): E y = 0, E y^2 = 1 + 2 b^2, E x^2 y = 2 b."""
    b = 0.7
    target = FunctionTarget(lambda t: t[..., 0] ** 2 / 2 + (t[..., 1] - b * (t[..., 0] ** 2 - 1)) ** 2 / 2)
    run = DENSE.run(target, torch.zeros(6, 2, dtype=torch.double), draws=300, warmup=150)
    x, y = run.samples.unbind(-1)
    functions = torch.stack([x, y, x**2, y**2, x * y, x**2 * y], -1)
    expected = torch.tensor([0, 0, 1, 1 + 2 * b**2, 0, 2 * b])
    assert largest_z(functions, expected) < LARGEST_Z


def logistic_regression() -> FunctionTarget:
    """A posterior far from Gaussian: 25 points, five parameters, prior N(0, 2^2)."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(25, 5, dtype=torch.double, generator=draw)
    x[:, 4] = 0.8 * x[:, 3] + 0.6 * x[:, 4]
    sign = torch.where(x @ torch.tensor([2.0, -1.0, 0.0, 1.0, 1.0]).double() > 0, 1.0, -1.0)
    signed = x * sign[:, None]
    return FunctionTarget(lambda t: F.softplus(-(t @ signed.T)).sum(-1) + t.square().sum(-1) / 8)


def test_logistic_regression_against_pyro() -> None:
    mcmc = pytest.importorskip("pyro.infer.mcmc")
    pyro = pytest.importorskip("pyro")
    target = logistic_regression()
    ours = DENSE.run(target, torch.zeros(6, 5, dtype=torch.double), draws=300, warmup=150)
    pyro.set_rng_seed(0)
    kernel = mcmc.NUTS(potential_fn=lambda parameters: target.potential(parameters["theta"]))
    sampler = mcmc.MCMC(
        kernel,
        num_samples=250,
        warmup_steps=100,
        initial_params={"theta": torch.zeros(5, dtype=torch.double)},
        disable_progbar=True,
    )
    sampler.run()
    theirs = sampler.get_samples(group_by_chain=True)["theta"].detach()
    (mean, error), (their_mean, their_error) = (mean_and_error(products(d)) for d in (ours.samples, theirs))
    assert np.abs((mean - their_mean) / np.hypot(error, their_error)).max() < LARGEST_Z


def test_covariance_changes_the_cost_and_not_the_answer() -> None:
    scale = torch.logspace(-1, 0, 4, dtype=torch.double)
    target = FunctionTarget(lambda t: (t / scale).square().sum(-1) / 2)
    start = torch.zeros(4, 4, dtype=torch.double)
    run = NUTS(metric="dense", covariance=scale.square().diag()).run(target, start, draws=200, warmup=15)
    blind = DENSE.run(target, start, draws=200, warmup=15)
    assert largest_z(run.samples.square(), scale.square()) < LARGEST_Z
    assert run.gradients.sum() < blind.gradients.sum() / 2


def test_acceptance_follows_the_request() -> None:
    target = FunctionTarget(lambda t: t.square().sum(-1) / 2)
    start = torch.zeros(4, 10, dtype=torch.double)
    low, high = (NUTS(metric="dense", preferred_acceptance=a).run(target, start, 100, 120) for a in (0.6, 0.95))
    assert low.step_size.min() > high.step_size.max()
    assert low.acceptance.max() < high.acceptance.min()


def test_cliffs_are_divergences_and_the_rest_stays_right() -> None:
    """A normal cut off at 1.5 by cliffs that no leapfrog step can follow: the truncated normal's second moment."""
    target = FunctionTarget(lambda t: (t**2 / 2 + 1e6 * (t.abs() > 1.5)).sum(-1))
    run = DENSE.run(target, torch.zeros(6, 1, dtype=torch.double), draws=300, warmup=100)
    assert run.samples.abs().max() <= 1.5
    assert int(run.divergences.min()) > 0
    inside = stats.norm.cdf(1.5) - stats.norm.cdf(-1.5)
    expected = torch.tensor([0.0, 1 - 2 * 1.5 * stats.norm.pdf(1.5) / inside])
    assert largest_z(torch.cat([run.samples, run.samples**2], -1), expected) < LARGEST_Z


def test_a_chain_does_not_depend_on_its_companions() -> None:
    target = FunctionTarget(lambda t: (t**2 / 2 + t.cos()).sum(-1))
    starts = torch.tensor([[0.5, 0.1], [2.0, -1.0], [0.0, 3.0]], dtype=torch.double)
    together = DENSE.run(target, starts, 50, 50, seed=3)
    alone = DENSE.run(target, starts[:1], 50, 50, seed=3)
    assert torch.equal(together.samples[0], alone.samples[0])
    assert not torch.equal(together.samples[0], DENSE.run(target, starts[:1], 50, 50, seed=4).samples[0])


class QuarticInBoth:
    """U = sum(theta^4 / 4 + theta^2), in PyTorch and in NumPy; counts the calls to the latter."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.array_calls = 0

    def potential(self, theta: Tensor) -> Tensor:
        return (theta**4 / 4 + theta**2).sum(-1)

    def potential_and_gradient_of_array(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.array_calls += 1
        return (positions**4 / 4 + positions**2).sum(-1), positions**3 + 2 * positions


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_target_in_numpy_is_sampled_like_the_same_in_torch(temperature: float) -> None:
    both = QuarticInBoth(temperature)
    starts = torch.tensor([[0.5, 0.1, 1.0], [1.0, -1.0, 0.0]], dtype=torch.double)
    in_numpy = DENSE.run(both, starts, 30, 30, seed=5)
    calls = both.array_calls
    in_torch = DENSE.run(FunctionTarget(both.potential, temperature), starts, 30, 30, seed=5)
    torch.testing.assert_close(in_numpy.samples, in_torch.samples, rtol=1e-6, atol=1e-6)
    assert calls > 60
    DENSE.run(both, starts.float(), 2, 2, seed=5)
    assert both.array_calls == calls, "single precision was asked for; the NumPy form is double"


def test_unusable_requests_are_refused() -> None:
    target = FunctionTarget(lambda t: t.square().sum(-1))
    start = torch.zeros(2, 3, dtype=torch.double)
    with pytest.raises(InputError, match="positive temperature"):
        DENSE.run(FunctionTarget(target.potential, 0.0), start)
    with pytest.raises(InputError, match=r"\(chains, size\)"):
        DENSE.run(target, start[0])
    with pytest.raises(InputError, match="positive definite"):
        NUTS(metric="dense", covariance=-torch.eye(3)).run(target, start)
    with pytest.raises(InputError, match="shape"):
        NUTS(covariance=torch.eye(2)).run(target, start)
    with pytest.raises(InputError, match="'dense' or 'diagonal'"):
        NUTS(metric="full")  # type: ignore[arg-type]
    with pytest.raises(DivergenceError, match="not finite at the start"):
        DENSE.run(FunctionTarget(lambda t: t.sum(-1) * math.inf), start)


@given(st.integers(1, 3000))
def test_metric_windows_lie_in_the_warm_up_and_do_not_overlap(warmup: int) -> None:
    windows = _metric_windows(warmup)
    for end, begin in windows.items():
        assert 0 <= begin < end <= warmup
        assert end - begin >= 10
    ends = list(windows)
    assert all(windows[later] == earlier for earlier, later in itertools.pairwise(ends))
    if warmup >= 20:
        assert ends and ends[-1] < warmup


@given(
    variances=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20).map(np.array),
    draws=st.integers(2, 1000),
)
def test_shrinking_keeps_the_mean_and_the_order_of_variances(variances: np.ndarray, draws: int) -> None:
    shrunk = _shrunk_variances(variances, draws)
    rounding = 1e-12 * variances.max()
    assert abs(shrunk.mean() - variances.mean()) <= rounding * len(variances)
    assert (shrunk >= variances.min() - rounding).all()
    assert (shrunk <= variances.max() + rounding).all()
    assert (np.diff(shrunk[np.argsort(variances)]) >= -rounding).all()


def test_shrinking_removes_noise_and_leaves_what_is_real() -> None:
    stream = np.random.default_rng(0)
    draws = stream.standard_normal((100, 50))
    estimates = draws.var(0, ddof=1)
    assert np.abs(_shrunk_variances(estimates, 100) - 1).mean() < 0.5 * np.abs(estimates - 1).mean()
    scales = np.geomspace(1e-2, 1e2, 50)
    np.testing.assert_allclose(_shrunk_variances(scales * estimates, 100), scales * estimates, rtol=0.01, atol=0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_single_transitions_leave_a_gaussian_invariant(temperature: float) -> None:
    """Independent exact draws, moved by three transitions, are exact draws: moments within 4.5 standard errors."""
    covariance = temperature * torch.linalg.inv(PRECISION)
    target = FunctionTarget(lambda t: ((t @ PRECISION) * t).sum(-1) / 2, temperature)
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(3000, 3, generator=generator, dtype=torch.double) @ torch.linalg.cholesky(covariance).T
    kernel = NUTS(step_size=0.25, max_depth=6)
    chain = run_chain(kernel, start, target, 3, generator, keep_at={3})
    moved, again = chain.kept[0], run_chain(kernel, start[0], target, 1, generator)
    values = products(moved)
    expected = torch.cat([torch.zeros(3), covariance.flatten()])
    error = values.std(0) / math.sqrt(len(values))
    assert float(((values.mean(0) - expected) / error).abs().max()) < LARGEST_Z
    assert float((moved - start).norm(dim=-1).median()) > 0.5 * temperature**0.5, "the chains must have moved"
    assert chain.acceptance is not None and chain.acceptance.shape == (3000,)
    assert again.position.shape == (3,)


def test_a_transition_carries_the_potential_and_gradient_of_its_end() -> None:
    target = FunctionTarget(lambda t: (t**4).sum(-1), 0.5)
    kernel, generator = NUTS(step_size=0.3), torch.Generator().manual_seed(0)
    state, _ = kernel.step(kernel.init(torch.ones(4, 2, dtype=torch.double), target), target, generator)
    torch.testing.assert_close(state.potential, target.potential(state.position))
    torch.testing.assert_close(state.gradient, 4 * state.position**3)
