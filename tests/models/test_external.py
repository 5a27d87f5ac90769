"""Models from outside PyTorch: the same numbers, gradients and coresets as the same model inside."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.models import (
    JaxModel,
    LogisticRegression,
    NumpyModel,
    SmoothModel,
    numpyro_model,
    pymc_model,
    stan_model,
)
from pseudocoresets.sources.gaussian_fit import fit_gaussian

INSIDE = LogisticRegression(2, prior_scale=2.0)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = normal(120, 2, seed=0)
Y = (X.sum(1) + normal(120, seed=1) > 0).double()


def numpy_model() -> NumpyModel:
    def likelihood(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        eta = x @ theta
        return y * eta - np.logaddexp(0, eta), (y - 1 / (1 + np.exp(-eta)))[:, None] * x

    return NumpyModel(likelihood, lambda theta: (-theta @ theta / 8, -theta / 4), 2)


def jax_model() -> JaxModel:
    jax = pytest.importorskip("jax")
    return JaxModel(
        lambda theta, x, y: y * (x @ theta) - jax.nn.softplus(x @ theta),
        lambda theta: -theta @ theta / 8,
        2,
        pseudo_target="unit",
    )


def numpyro_logistic() -> JaxModel:
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(x: object, y: object) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, 2).expand([2]).to_event(1))
        numpyro.sample("obs", dist.Bernoulli(logits=x @ theta), obs=y)  # type: ignore[operator]

    return numpyro_model(model, X, Y)


def pymc_logistic() -> JaxModel:
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        x, y = pm.Data("x", X.numpy()), pm.Data("y", Y.numpy())
        theta = pm.Normal("theta", 0, 2, shape=2)
        pm.Bernoulli("obs", logit_p=x @ theta, observed=y)
    return pymc_model(model)


MODELS = [numpy_model, jax_model, numpyro_logistic, pymc_logistic]


@pytest.mark.parametrize("make", MODELS)
def test_values_and_gradients_are_those_of_the_model_inside(make: object) -> None:
    model: SmoothModel = make()  # type: ignore[operator]
    weights = torch.rand(120, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for theta in (normal(2, seed=3), normal(5, 2, seed=4)):
        found = []
        for each in (model, INSIDE):
            leaf = theta.clone().requires_grad_()
            values, prior = each.log_likelihood(leaf, X, Y), each.log_prior(leaf)
            shift = prior - prior.detach()
            (slope,) = torch.autograd.grad((values @ weights + shift).sum(), leaf)
            found.append((values.detach(), slope))
        torch.testing.assert_close(found[0][0], found[1][0])
        torch.testing.assert_close(found[0][1], found[1][1])


@pytest.mark.parametrize("make", MODELS)
def test_the_nearest_gaussian_is_found_and_real_points_are_chosen(make: object) -> None:
    model: SmoothModel = make()  # type: ignore[operator]
    full = fit_gaussian(INSIDE, pc.Rows(X, Y))
    assert float(kl_divergence(full, fit_gaussian(model, pc.Rows(X, Y)))) < 1e-3
    coreset = pc.construct((X, Y), model=model, method="giga", size=15)
    assert float(kl_divergence(full, fit_gaussian(INSIDE, coreset.points))) < 0.5


def test_jax_differentiates_twice_and_in_the_points() -> None:
    model = jax_model()
    theta, x, y = normal(3, 2, seed=5).requires_grad_(), X[:4].clone().requires_grad_(), Y[:4] * 0.8 + 0.1
    inputs = (theta, x, y.requires_grad_())
    assert torch.autograd.gradcheck(model.log_likelihood, inputs)
    assert torch.autograd.gradgradcheck(model.log_likelihood, inputs)
    coreset = pc.construct((X, Y), model=model, method="moments", size=6, check=False)
    full = fit_gaussian(INSIDE, pc.Rows(X, Y))
    assert float(kl_divergence(full, fit_gaussian(INSIDE, coreset.points))) < 0.05


def test_a_constrained_numpyro_parameter_has_its_jacobian() -> None:
    """sigma ~ HalfNormal(1) as z = log sigma: log p(z) = log p(sigma) + z."""
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(x: object, y: object) -> None:
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        numpyro.sample("obs", dist.Normal(x[:, 0], sigma), obs=y)  # type: ignore[index]

    made = numpyro_model(model, X, Y)
    z = torch.tensor([[0.3], [-0.7]], dtype=torch.float64)
    prior = made.log_prior(z)
    expected = -z.exp().square() / 2 + z
    torch.testing.assert_close(prior[0] - prior[1], (expected[0] - expected[1])[0])
    inside = torch.distributions.Normal(X[:, 0], z[0].exp()).log_prob(Y)
    torch.testing.assert_close(made.log_likelihood(z[0], X, Y), inside)


def test_what_a_numpy_function_cannot_do_is_said() -> None:
    with pytest.raises(pc.InputError, match="does not say how it changes with the points"):
        pc.construct((X, Y), model=numpy_model(), method="moments", size=5, check=False)
    wrong = NumpyModel(lambda theta, x, y: (np.zeros(3), np.zeros((3, 2))), lambda theta: (0.0, 0 * theta), 2)
    with pytest.raises(pc.InputError, match=r"must give values \(120,\) and gradients \(120, 2\)"):
        wrong.log_likelihood(torch.zeros(2, dtype=torch.float64), X, Y)


@pytest.fixture(scope="module")
def stan_logistic() -> NumpyModel:
    """logistic.stan beside this file, compiled where BridgeStan's sources are (BRIDGESTAN names them) or before."""
    pytest.importorskip("bridgestan")
    library = os.environ.get("PSEUDOCORESETS_STAN_LIBRARY")
    if library is None and "BRIDGESTAN" not in os.environ:
        pytest.skip("set BRIDGESTAN to BridgeStan's sources, or PSEUDOCORESETS_STAN_LIBRARY to logistic.stan compiled")
    return stan_model(library or Path(__file__).parent / "logistic.stan", X, Y)


def test_a_stan_program_is_a_model_of_rows(stan_logistic: NumpyModel) -> None:
    """beta ~ N(0, s^2), s = exp(z) log-normal with deviation 1/2, so that z ~ N(0, 1/4) with its Jacobian."""
    model, theta = stan_logistic, torch.tensor([[0.4, -1.2, 0.3], [0.1, 0.2, -0.5]], dtype=torch.float64)
    torch.testing.assert_close(model.log_likelihood(theta, X, Y), INSIDE.log_likelihood(theta[:, :2], X, Y))
    normal_log = torch.distributions.Normal(0.0, theta[:, 2:].exp()).log_prob(theta[:, :2]).sum(-1)
    torch.testing.assert_close(
        model.log_prior(theta), normal_log + torch.distributions.Normal(0.0, 0.5).log_prob(theta[:, 2])
    )
    leaf = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.log_likelihood(leaf, X, Y).sum(), leaf)
    (expected,) = torch.autograd.grad(INSIDE.log_likelihood(leaf[:, :2], X, Y).sum(), leaf)
    torch.testing.assert_close(slope, expected)


def test_real_points_are_chosen_for_a_stan_program(stan_logistic: NumpyModel) -> None:
    full = fit_gaussian(stan_logistic, pc.Rows(X, Y))
    coreset = pc.construct((X, Y), model=stan_logistic, method="giga", size=20)
    assert float(kl_divergence(full, fit_gaussian(stan_logistic, coreset.points))) < 0.5
