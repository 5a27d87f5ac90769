"""Models, their averages over Gaussians, and the Gaussian nearest to a posterior."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, Poisson

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence, squared_wasserstein
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.targets import WhitenedTarget, posterior_target, whitened_target
from pseudocoresets.models import (
    FunctionModel,
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SmoothModel,
    SoftmaxRegression,
    check_data,
)
from pseudocoresets.sources.gaussian_fit import expected_log_joint, find_mode, fit_gaussian

DOUBLE = torch.float64


def random_gaussian(size: int, seed: int, scale: float = 0.3) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=DOUBLE)
    covariance = scale**2 * (root @ root.T / size + 0.2 * torch.eye(size, dtype=DOUBLE))
    return Gaussian(0.5 * torch.randn(size, generator=generator, dtype=DOUBLE), covariance)


def data_for(model: object, count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = model.size // 3 if isinstance(model, SoftmaxRegression) else model.size  # type: ignore[attr-defined]
    x = torch.randn(count, features, generator=generator, dtype=DOUBLE)
    if isinstance(model, SoftmaxRegression):
        return x, torch.randint(3, (count,), generator=generator).double()
    if isinstance(model, LinearRegression):
        return x, torch.randn(count, generator=generator, dtype=DOUBLE)
    return x, torch.randint(2, (count,), generator=generator).double()


MODELS = [
    GaussianMean(dimension=3),
    GaussianMean(covariance=torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=DOUBLE)),
    LinearRegression(3, noise_scale=0.7),
    LogisticRegression(3),
    PoissonRegression(3),
    SoftmaxRegression(2, 3),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_populations_are_rows_of_single_evaluations(model: object) -> None:
    x, y = data_for(model, 5, 0)
    theta = torch.randn(4, model.size, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)  # type: ignore[attr-defined]
    together = model.log_likelihood(theta, x, y)  # type: ignore[attr-defined]
    alone = torch.stack([model.log_likelihood(one, x, y) for one in theta])  # type: ignore[attr-defined]
    torch.testing.assert_close(together, alone)
    assert model.log_prior(theta).shape == (4,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_expectations_agree_with_monte_carlo(model: object) -> None:
    """Means of the value and its autograd gradient over many draws, within five standard errors."""
    x, y = data_for(model, 6, 2)
    weights = torch.linspace(0.5, 2.0, 6, dtype=DOUBLE)
    q = random_gaussian(model.size, 3)  # type: ignore[attr-defined]
    found = model.expected_log_likelihood(q, x, y, weights)  # type: ignore[attr-defined]
    theta = q.sample(40000, torch.Generator().manual_seed(4)).requires_grad_()
    values = model.log_likelihood(theta, x, y) @ weights  # type: ignore[attr-defined]
    (gradients,) = torch.autograd.grad(values.sum(), theta)
    _within_five_errors(found.value, values.detach())
    _within_five_errors(found.gradient, gradients)
    whitened = torch.linalg.solve_triangular(q.factor, (theta.detach() - q.mean).T, upper=False).T
    scores = torch.linalg.solve_triangular(q.factor.T, whitened.T, upper=True).T
    # Stein: E[grad^2 f] = E[grad f (S^-1 (theta - mu))^T]
    if not isinstance(model, SoftmaxRegression):  # its Hessian is a central difference as wide as q, not this average
        _within_five_errors(found.hessian, gradients[:, :, None] * scores[:, None, :])


def _within_five_errors(found: Tensor, draws: Tensor) -> None:
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((found - draws.mean(0)).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), prior_scale=st.floats(0.2, 5.0), spread=st.floats(0.1, 4.0))
@example(seed=1275, count=3, prior_scale=4.0, spread=3.25)  # a linear predictor above 20, where softplus is cut off
def test_closed_form_gradient_is_that_of_autograd(
    model: object, seed: int, count: int, prior_scale: float, spread: float
) -> None:
    """Every model, in its own coordinates and whitened, with hard targets and with the soft ones of pseudo-points."""
    model = replace(model, prior_scale=prior_scale)
    generator = torch.Generator().manual_seed(seed)
    weights = 3 * torch.rand(count, generator=generator, dtype=DOUBLE)
    x, hard = data_for(model, count, seed)
    gaussian = random_gaussian(model.size, seed, spread)
    phi = torch.randn(3, model.size, generator=generator, dtype=DOUBLE)
    for y in (hard, soft_targets(model, hard, generator)):
        points = Points(x, y, weights)
        plain = WhitenedTarget(posterior_target(model, points), gaussian)
        assert hasattr(plain.target, "potential_and_gradient")
        value, gradient = autograd_of(plain, phi)
        closed_value, closed_gradient = plain.potential_and_gradient(phi)
        torch.testing.assert_close(closed_value, value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(closed_gradient, gradient, rtol=1e-9, atol=1e-9)
        fast_value, fast_gradient = whitened_target(model, points, gaussian).potential_and_gradient(phi)
        torch.testing.assert_close(fast_value - fast_value[0], value - value[0], rtol=1e-9, atol=1e-8)
        torch.testing.assert_close(fast_gradient, gradient, rtol=1e-9, atol=1e-9)


def autograd_of(target: WhitenedTarget, phi: Tensor) -> tuple[Tensor, Tensor]:
    phi = phi.clone().requires_grad_()
    value = target.potential(phi)
    return value.detach(), torch.autograd.grad(value.sum(), phi)[0]


def soft_targets(model: object, hard: Tensor, generator: torch.Generator) -> Tensor:
    if isinstance(model, SoftmaxRegression):
        return torch.softmax(torch.randn(len(hard), 3, generator=generator, dtype=DOUBLE), -1)
    return torch.rand(len(hard), generator=generator, dtype=DOUBLE)


@pytest.mark.parametrize("model", [MODELS[3], MODELS[5]], ids=["in NumPy", "in PyTorch"])
def test_one_position_is_answered_like_a_row_of_many(model: object) -> None:
    x, y = data_for(model, 6, 5)
    target = whitened_target(model, Points(x, y, torch.ones(6).double()), random_gaussian(model.size, 6))
    phi = torch.randn(3, model.size, generator=torch.Generator().manual_seed(7), dtype=DOUBLE)
    values, gradients = target.potential_and_gradient(phi)
    value, gradient = target.potential_and_gradient(phi[1])
    torch.testing.assert_close(value, values[1])
    torch.testing.assert_close(gradient, gradients[1])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5))
def test_kl_of_gaussians_is_nonnegative_and_zero_only_at_equality(seed: int, size: int) -> None:
    first, second = random_gaussian(size, seed), random_gaussian(size, seed + 1)
    assert float(kl_divergence(first, second)) > 0
    assert abs(float(kl_divergence(first, first))) < 1e-10
    assert abs(float(squared_wasserstein(first, first))) < 1e-10
    assert float(squared_wasserstein(first, second)) > 0


def test_kl_and_wasserstein_of_one_dimensional_gaussians() -> None:
    first = Gaussian(torch.tensor([1.0], dtype=DOUBLE), torch.tensor([[4.0]], dtype=DOUBLE))
    second = Gaussian(torch.tensor([0.0], dtype=DOUBLE), torch.tensor([[1.0]], dtype=DOUBLE))
    assert float(kl_divergence(first, second)) == pytest.approx(0.5 * (4 + 1 - 1 - math.log(4)))
    assert float(squared_wasserstein(first, second)) == pytest.approx(1 + (2 - 1) ** 2)


def test_gaussian_mean_posterior_is_the_textbook_one() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) + 1
    found = fit_gaussian(GaussianMean(prior_scale=2.0, dimension=4), Rows(x, torch.zeros(50).double()))
    torch.testing.assert_close(found.mean, x.sum(0) / (50 + 0.25))
    torch.testing.assert_close(found.covariance, torch.eye(4, dtype=DOUBLE) / (50 + 0.25))


def test_linear_regression_posterior_is_ridge_regression() -> None:
    model = LinearRegression(3, prior_scale=0.5, noise_scale=2.0)
    x, y = data_for(model, 40, 1)
    found = fit_gaussian(model, Rows(x, y))
    precision = x.T @ x / 4 + 4 * torch.eye(3, dtype=DOUBLE)
    torch.testing.assert_close(found.covariance, torch.linalg.inv(precision))
    torch.testing.assert_close(found.mean, torch.linalg.solve(precision, x.T @ y / 4))


@pytest.mark.parametrize("model", [LogisticRegression(3), PoissonRegression(3)], ids=["logistic", "poisson"])
def test_nearest_gaussian_is_stationary_and_close_by_importance_sampling(model: LogisticRegression) -> None:
    x, y = data_for(model, 300, 8)
    data = Rows(x, y, batch_size=70)
    q = fit_gaussian(model, data)
    joint = expected_log_joint(model, q, data)
    assert float(joint.gradient @ q.covariance @ joint.gradient) < 1e-6
    torch.testing.assert_close(torch.linalg.inv(-joint.hessian), q.covariance, rtol=1e-3, atol=1e-6)
    theta = q.sample(4000, torch.Generator().manual_seed(9))
    weights = torch.softmax(-posterior_target(model, Points(x, y, torch.ones(300).double())).potential(theta)
                            - q.log_density(theta), 0)  # fmt: skip
    assert float(1 / weights.square().sum()) > 0.95 * 4000


def test_function_model_agrees_with_the_built_in_one() -> None:
    built_in = LogisticRegression(3)
    own = FunctionModel(built_in.log_likelihood, built_in.log_prior, 3)
    x, y = data_for(built_in, 200, 10)
    first, second = fit_gaussian(built_in, Rows(x, y)), fit_gaussian(own, Rows(x, y))
    assert float(kl_divergence(first, second)) < 1e-3
    mode = find_mode(own, Rows(x, y), torch.zeros(3, dtype=DOUBLE)).mean.requires_grad_()
    value = built_in.log_likelihood(mode, x, y).sum() + built_in.log_prior(mode)
    assert float(torch.autograd.grad(value, mode)[0].abs().max()) < 1e-4


def test_wrong_models_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match="prior scale"):
        LogisticRegression(3, prior_scale=0.0)
    with pytest.raises(InputError, match="dimension"):
        GaussianMean()
    with pytest.raises(InputError, match="noise scale"):
        LinearRegression(2, noise_scale=-1.0)
    wrong = FunctionModel(lambda theta, x, y: theta.sum(), lambda theta: theta.sum(), 2)
    with pytest.raises(InputError, match="one value per datum"):
        wrong.log_likelihood(torch.zeros(2), torch.zeros(4, 2), torch.zeros(4))


def test_places_that_a_distribution_refuses_are_impossible_and_wrong_data_an_error() -> None:
    """exp(-1000) is a scale of zero."""
    y = torch.arange(3, dtype=DOUBLE)
    noise = FunctionModel(lambda theta, x, y: Normal(0.0, theta[0].exp()).log_prob(y), lambda theta: -theta.sum(), 1)
    values = noise.log_likelihood(torch.tensor([[0.0], [-1000.0]], dtype=DOUBLE), y[:, None], y)
    torch.testing.assert_close(values[0], Normal(0.0, 1.0).log_prob(y))
    assert not bool(values[1].isfinite().any())
    assert not bool(noise.log_likelihood(torch.tensor([-1000.0], dtype=DOUBLE), y[:, None], y).isfinite().any())
    counts = FunctionModel(lambda theta, x, y: Poisson(theta[0].exp()).log_prob(y), lambda theta: -theta.sum(), 1)
    with pytest.raises(ValueError, match="support"):
        counts.log_likelihood(torch.zeros(1, dtype=DOUBLE), y[:, None], y + 0.5)


@pytest.mark.parametrize(
    ("model", "y", "sentence"),
    [
        (LogisticRegression(2), [-1.0, 1.0], r"0 and 1 .* -1 to 1\. Labels of -1 and \+1"),
        (PoissonRegression(2), [3.0, -2.0], "counts .* got -2"),
        (SoftmaxRegression(2, 3), [0.0, 3.0], "classes 0 to 2"),
        (SoftmaxRegression(2, 3), [0.0, 0.5], "classes 0 to 2"),
        (LinearRegression(3), [0.0, 0.5], "3 features and the points 2"),
        (GaussianMean(dimension=3), [0.0, 0.0], "3 features and the points 2"),
    ],
)
def test_data_that_a_model_cannot_have_produced_are_refused(model: SmoothModel, y: list[float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_data(model, Rows(torch.eye(2), torch.tensor(y)))


def test_averages_of_predictors_are_integrals_at_every_width() -> None:
    """Against the trapezoidal rule on 40,001 points over 24 standard deviations, which is exact to rounding here."""
    nodes = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    shares = torch.softmax(-0.5 * nodes.square(), 0)
    mean = torch.tensor([-6.0, -0.7, 0.0, 3.0], dtype=torch.float64)
    for model, y, widths in (
        (LogisticRegression(2), torch.tensor([0.0, 0.3, 1.0, 0.9]), (1e-3, 0.3, 1.0, 6.0, 80.0)),
        (PoissonRegression(2), torch.tensor([0.0, 1.0, 2.0, 30.0]), (1e-3, 0.3, 3.0)),
        (LinearRegression(2, noise_scale=0.7), torch.tensor([0.0, -1.0, 2.0, 5.0]), (1e-3, 1.0, 80.0)),
    ):
        for width in widths:
            eta = (mean[:, None] + width * nodes).requires_grad_()
            values = model.log_density(eta, y.double()[:, None])
            first = torch.autograd.grad(values.sum(), eta, create_graph=True)[0]
            second = torch.autograd.grad(first.sum(), eta, allow_unused=True)[0]
            found = model.averages(mean, torch.full_like(mean, width**2), y.double())
            for mine, exact in zip(found, (values, first, second), strict=True):
                torch.testing.assert_close(mine, (exact @ shares).detach(), rtol=1e-7, atol=3e-8)
