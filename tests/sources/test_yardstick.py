"""The cheap estimate of a coreset's divergence against independent importance sampling and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.support.glm_problems import glm_problem

from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.targets import all_points
from pseudocoresets.methods import Giga, Uniform, row_problem
from pseudocoresets.models import PoissonRegression
from pseudocoresets.sources.gaussian_fit import expected_log_joint, fit_gaussian
from pseudocoresets.sources.yardstick import Yardstick


@pytest.mark.parametrize(
    ("family", "trait"), [("logistic", "separable"), ("poisson", "plain"), ("poisson", "large counts")]
)
@pytest.mark.parametrize("size", [2, 10, 60])
def test_agrees_with_independent_importance_sampling(family: str, trait: str, size: int) -> None:
    problem = glm_problem(family, trait, 300, 4, seed=2)
    about = row_problem(problem.model, problem.rows, problem.fit)
    for points in (Giga().solve(about, size), Uniform().solve(about, size)):
        value, error = problem.divergence(points)
        assert problem.fit.yardstick.divergence(points) == pytest.approx(value, rel=0.1, abs=3 * error)


@pytest.mark.parametrize("count", [0.0, 2.0])
def test_posteriors_that_are_a_prior_cut_off_agree_with_quadrature(count: float) -> None:
    """No events at a point say that its rate is not large, and nothing more: q_u covers a part of that alone."""
    model = PoissonRegression(1, 5.0)
    rows = Rows(torch.ones(3, 1).double(), torch.tensor([0.0, 0.0, 1.0]).double())
    points = Points(torch.ones(1, 1).double(), torch.tensor([count]).double(), torch.tensor([3.0]).double())
    grid = torch.linspace(-60, 8, 200_000, dtype=torch.float64)[:, None]
    full = (model.log_likelihood(grid, rows.x, rows.y).sum(1) + model.log_prior(grid)).log_softmax(0)
    other = (model.log_likelihood(grid, points.x, points.y) @ points.weights + model.log_prior(grid)).log_softmax(0)
    exact = float(full.exp() @ (full - other))
    assert Yardstick(model, rows, fit_gaussian(model, rows)).divergence(points) == pytest.approx(exact, rel=0.1)


def test_the_nearest_gaussian_of_a_weak_count_under_a_wide_prior_is_stationary() -> None:
    """A hundredth of one count leaves a posterior as wide as the prior, under which its rate has no bound."""
    model = PoissonRegression(2, 10.0)
    points = Points(*(torch.tensor(each).double() for each in ([[1.0, -0.4]], [46.0], [0.008])))
    found = fit_gaussian(model, points)
    joint = expected_log_joint(model, found, points)
    torch.testing.assert_close(found.covariance @ -joint.hessian, torch.eye(2).double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.factor.T @ joint.gradient, torch.zeros(2).double(), rtol=0, atol=1e-3)


def test_is_the_closed_form_for_gaussian_posteriors() -> None:
    problem = glm_problem("linear", "plain", 100, 3, seed=0)
    points = Uniform().solve(row_problem(problem.model, problem.rows, problem.fit), 10)
    exact = float(kl_divergence(problem.fit.gaussian, fit_gaussian(problem.model, points)))
    assert problem.fit.yardstick.divergence(points) == pytest.approx(exact)
    assert problem.fit.yardstick.learning is None


def test_all_the_data_are_at_no_distance_and_nonsense_at_an_infinite_one() -> None:
    problem = glm_problem("logistic", "plain", 100, 3, seed=0)
    yardstick, everything = problem.fit.yardstick, all_points(problem.rows)
    assert yardstick.divergence(everything) == pytest.approx(0, abs=1e-9)
    assert yardstick.divergence(replace(everything, x=everything.x * math.nan)) == math.inf


def test_the_objective_has_the_gradient_of_finite_differences() -> None:
    problem = glm_problem("poisson", "plain", 80, 2, seed=0)
    yardstick, points = problem.fit.yardstick, Giga().solve(row_problem(problem.model, problem.rows, problem.fit), 5)
    draws = yardstick.learning
    assert draws is not None

    def value(x: torch.Tensor) -> torch.Tensor:
        return yardstick.near(Points(x, points.y, points.weights), draws)

    assert torch.autograd.gradcheck(value, points.x.clone().requires_grad_())


def test_too_many_data_are_left_to_the_gaussians() -> None:
    problem = glm_problem("logistic", "plain", 100, 2, seed=0)
    many = replace(problem.rows, x=problem.rows.x[:1].expand(200_000, 2), y=problem.rows.y[:1].expand(200_000))
    assert Yardstick(problem.model, many, problem.fit.gaussian).judging is None
