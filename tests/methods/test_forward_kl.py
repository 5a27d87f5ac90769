"""Forward KL: its gradient against the closed form, by Gaussians, by HMC and by a Kronecker-factored Laplace."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from methods_problems import (
    DOUBLE,
    FixedSource,
    GaussianModel,
    PreciseClassifier,
    gaussian_kl,
    gaussian_points,
    gradients,
    network_points,
    network_problem,
)
from tests.support.glm_problems import glm_problem
from torch import Tensor, nn
from torch.func import hessian

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.targets import all_points
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.methods import METHODS, ForwardKL, ForwardKLByHMC, ForwardKLByLaplace, Points, Problem, row_problem
from pseudocoresets.methods.estimator import energy_difference
from pseudocoresets.methods.kronecker import Curvature, Posterior, curvature
from pseudocoresets.models.networks import Network

DATA_SIZE = 40
LATER = torch.tensor([[0.9, -0.4]], dtype=DOUBLE)


def gaussian_problem(chains: int = 1) -> Problem:
    later = LATER.expand(chains, -1)
    return Problem(Energy(GaussianModel(), DATA_SIZE), FixedSource(later, later))


def closed_form_gradients(points: Points, sigma: float) -> dict[str, Tensor]:
    """T grad KL(N(later, sigma^2 I) || coreset posterior), T = 1 / n."""
    mean, variance = GaussianModel().posterior(points.x, points.weights)
    divergence = gaussian_kl(LATER[0], torch.tensor(sigma**2, dtype=DOUBLE), mean, variance)
    return gradients(divergence / DATA_SIZE, points)


def assert_within_error(
    estimates: list[dict[str, Tensor]], expected: dict[str, Tensor], names: tuple[str, ...]
) -> None:
    """The mean over independent estimates lies within five of its standard errors."""
    for name in names:
        values = torch.stack([estimate[name] for estimate in estimates])
        error = values.std(0) / math.sqrt(len(values))
        assert (error < 0.2 * expected[name].abs().max()).all(), "the test has too much noise to say anything"
        assert ((values.mean(0) - expected[name]).abs() < 5 * error).all(), name


def test_gaussian_method_estimates_the_closed_form_gradient() -> None:
    """With sigma^2 the coreset posterior's variance the variational family is exact, so only Monte Carlo remains."""
    points = gaussian_points()
    sigma = float(GaussianModel().posterior(points.x, points.weights)[1].detach().sqrt())
    method = ForwardKL(steps=60, step_size=0.3, samples=2000, sigma=sigma, at_once=2000)
    problem = gaussian_problem()
    estimates = [
        gradients(method.loss(points, problem, Randomness.for_purpose(seed)).value, points) for seed in range(20)
    ]
    assert_within_error(estimates, closed_form_gradients(points, sigma), ("x", "weights"))


def test_hmc_method_estimates_the_closed_form_gradient() -> None:
    """HMC is exact, so the coreset's expectation is that of its true posterior whatever sigma is."""
    points = gaussian_points()
    # Curvature of U is about 2, so a quarter of a turn is pi / (2 sqrt 2) = 1.1: nearly independent samples.
    method = ForwardKLByHMC(
        chains=200,
        steps=50,
        descent_step_size=0.2,
        burn_in=3,
        samples=3,
        leapfrog_steps=4,
        step_size=0.28,
        sigma=0.05,
        at_once=600,
    )
    problem = gaussian_problem(chains=200)
    estimates, acceptance = [], []
    for seed in range(10):
        loss = method.loss(points, problem, Randomness.for_purpose(seed))
        estimates.append(gradients(loss.value, points))
        acceptance.append(float(loss.terms["acceptance"]))
    assert min(acceptance) > 0.9
    assert max(acceptance) < 1.0
    assert_within_error(estimates, closed_form_gradients(points, 0.05), ("x", "weights"))


@pytest.mark.parametrize("name", ["fkl", "fkl-hmc", "fkl-kfl"])
def test_gathering_in_groups_changes_nothing_but_the_augmentation(name: str) -> None:
    problem, points = network_problem(chains=1), network_points()
    found = {}
    for at_once in (2, 5):
        method = METHODS[name](samples=5, at_once=at_once, steps=3)
        loss = method.loss(points, problem, Randomness.for_purpose(0))
        found[at_once] = (loss.value.detach(), gradients(loss.value, points))
    torch.testing.assert_close(found[2][0], found[5][0], rtol=1e-12, atol=1e-14)
    for key, gradient in found[5][1].items():
        torch.testing.assert_close(found[2][1][key], gradient, rtol=1e-10, atol=1e-14)


def test_gaussian_method_is_the_papers_loop() -> None:
    """Without noise: cross-entropy at the expert minus that at the end of plain gradient descent."""
    problem, points = network_problem(chains=1), network_points()
    loss = ForwardKL(steps=4, step_size=0.1, samples=1, sigma=0.0).loss(points, problem, Randomness.for_purpose(0))
    draw = problem.source.draw(1, None, 1, Randomness.for_purpose(0))
    theta = draw.start
    for _ in range(4):
        theta = theta.detach().requires_grad_()
        potential = problem.energy.potential(theta, points.x, points.y, points.weights).sum()
        theta = theta - 0.1 * torch.autograd.grad(potential, theta)[0]
    teacher, student = (
        problem.energy.per_datum(at.detach(), points.x, points.y, points.weights).mean() for at in (draw.later, theta)
    )
    torch.testing.assert_close(loss.value, teacher - student, rtol=1e-12, atol=1e-15)


def test_both_terms_of_a_group_see_the_same_augmentation() -> None:
    """Then equal samples cancel exactly, augmentation or not."""
    problem, points = network_problem(augmentation=dsa(flippable=True)), network_points()
    same = problem.source.draw(2, None, 1, Randomness.for_purpose(0)).later.repeat(3, 1)
    loss = energy_difference(points, problem, same, same.clone(), Randomness.for_purpose(0), at_once=2)
    assert abs(loss.value.item()) < 1e-15
    assert all(float(gradient.abs().max()) < 1e-15 for gradient in gradients(loss.value, points).values())


def linear_network(inputs: int = 4, classes: int = 3, hidden: int | None = None) -> Network:
    def build() -> nn.Module:
        layers = (
            [nn.Linear(inputs, classes)] if hidden is None else [nn.Linear(inputs, hidden), nn.Linear(hidden, classes)]
        )
        return nn.Sequential(nn.Flatten(), *layers)

    return Network.from_module(build, (1, 2, inputs // 2), classes)


def exact_curvature(network: Network, theta: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """The Gauss-Newton matrix sum_i w_i J_i^T (diag p - p p^T) J_i over the whole parameter vector."""
    p = network.logits(theta, x).softmax(-1)
    jacobian = torch.func.jacrev(lambda at: network.logits(at, x))(theta)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("i,ica,icd,idb->ab", weights, jacobian, inner, jacobian)


def assembled(network: Network, theta: Tensor, found: Curvature) -> Tensor:
    """The block-diagonal matrix that the factors stand for, over the whole parameter vector."""
    names = list(network.unflatten(theta))
    index = network.unflatten(torch.arange(network.size))
    matrix = torch.zeros(network.size, network.size, dtype=theta.dtype)
    for name, factors in found.layers.items():
        columns = index[f"{name}.weight"].flatten(1)
        if factors.has_bias:
            columns = torch.cat([columns, index[f"{name}.bias"][:, None]], 1)
        block = found.total_weight * torch.kron(factors.outputs, factors.inputs)
        matrix[columns.flatten()[:, None], columns.flatten()] = block
    for name, diagonal in found.diagonals.items():
        matrix[index[name].flatten(), index[name].flatten()] = diagonal.flatten()
    assert set(names) == {f"{name}.{kind}" for name in found.layers for kind in ("weight", "bias")} | set(
        found.diagonals
    )
    return matrix


def inputs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 2, 2, generator=generator, dtype=DOUBLE)
    return x, torch.rand(count, generator=generator, dtype=DOUBLE) + 0.5


def rounded(network: Network, seed: int = 1) -> Tensor:
    """Parameters that single precision holds exactly, as modules do."""
    return network.initialise(seed).to(DOUBLE)


def test_factors_are_exact_for_one_point_of_a_linear_classifier() -> None:
    network = linear_network()
    theta, (x, weights) = rounded(network), inputs(1)
    found = assembled(network, theta, curvature(network, theta, x, weights))
    torch.testing.assert_close(found, exact_curvature(network, theta, x, weights), rtol=1e-10, atol=1e-12)
    y = torch.tensor([1])
    model = PreciseClassifier(network)
    second = hessian(lambda at: -(weights * model.log_likelihood(at[None], x, y)[0]).sum())(theta)
    torch.testing.assert_close(found, second, rtol=1e-10, atol=1e-12)


def test_factors_are_exact_where_every_point_has_the_same_output_curvature() -> None:
    """At theta = 0 all class probabilities are equal."""
    network = linear_network()
    theta, (x, weights) = torch.zeros(network.size, dtype=DOUBLE), inputs(5)
    found = assembled(network, theta, curvature(network, theta, x, weights))
    torch.testing.assert_close(found, exact_curvature(network, theta, x, weights), rtol=1e-10, atol=1e-12)


def test_each_layers_block_is_exact_for_one_point_of_a_deep_linear_network() -> None:
    network = linear_network(hidden=3)
    theta, (x, weights) = rounded(network), inputs(1)
    found = assembled(network, theta, curvature(network, theta, x, weights))
    exact = exact_curvature(network, theta, x, weights)
    same_layer = found.abs() > 0
    assert same_layer.float().mean() > 0.4
    torch.testing.assert_close(found[same_layer], exact[same_layer], rtol=1e-10, atol=1e-12)


def test_a_convolution_over_the_whole_image_has_the_factors_of_a_linear_layer() -> None:
    """One position: the convolutional factors must be those of the same map written as a linear layer."""
    convolution = Network.from_module(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()), (1, 2, 2), 3, "one position"
    )
    theta, (x, weights) = rounded(convolution), inputs(4)
    ours = curvature(convolution, theta, x, weights).layers["0"]
    theirs = curvature(linear_network(), theta, x, weights).layers["1"]
    torch.testing.assert_close(ours.inputs, theirs.inputs)
    torch.testing.assert_close(ours.outputs, theirs.outputs)


def test_factors_of_a_convolution_and_diagonal_of_a_norm_by_their_definition() -> None:
    """A sums over positions, G averages over them; a norm has the exact diagonal of the Gauss-Newton matrix."""
    problem, points = network_problem(chains=1), network_points(learned=False)
    network = problem.energy.model.network
    theta = rounded(network)
    found = curvature(network, theta, points.x, points.weights)
    module = network.module(theta).double()
    first, norm = module.features[0], module.features[1]
    assert isinstance(norm, nn.GroupNorm)
    share = points.weights / points.weights.sum()
    A = torch.zeros(10, 10, dtype=DOUBLE)
    padded = nn.functional.pad(points.x, (1, 1, 1, 1))
    for i in range(len(points.x)):
        for row in range(8):
            for column in range(8):
                patch = torch.cat([padded[i, :, row : row + 3, column : column + 3].flatten(), torch.ones(1)])
                A += share[i] * torch.outer(patch, patch)
    torch.testing.assert_close(found.layers["features.0"].inputs, A)
    out = first(points.x)

    def rest(value: Tensor) -> Tensor:
        for layer in list(module.features)[1:]:
            value = layer(value)
        return module.classifier(module.flatten(value)).log_softmax(-1)

    probabilities = rest(out).exp()
    G = torch.zeros(4, 4, dtype=DOUBLE)
    for i in range(len(points.x)):
        jacobian = torch.func.jacrev(lambda one: rest(one[None])[0])(out[i]).flatten(2)
        G += share[i] * torch.einsum("c,cap,cbp->ab", probabilities[i], jacobian, jacobian) / 64
    torch.testing.assert_close(found.layers["features.0"].outputs, G)
    exact = exact_curvature(network, theta, points.x, points.weights).diagonal()
    for name in ("features.1.weight", "features.1.bias", "features.5.weight"):
        index = network.unflatten(torch.arange(network.size))[name]
        torch.testing.assert_close(found.diagonals[name], exact[index])


@pytest.mark.parametrize("sigma", [None, 0.3])
def test_laplace_samples_have_the_inverse_precision_as_covariance(sigma: float | None) -> None:
    network = linear_network()
    theta, (x, weights) = torch.zeros(network.size, dtype=DOUBLE), inputs(5)
    found = curvature(network, theta, x, 20 * weights)
    posterior = Posterior(network, theta + 1, found, temperature=0.5, prior_scale=0.8, sigma=sigma)
    count = 40_000
    samples = posterior.sample(count, torch.Generator().manual_seed(0)) - 1
    precision = (exact_curvature(network, theta, x, 20 * weights) + torch.eye(network.size) / 0.8**2) / 0.5
    if sigma is not None:
        precision = precision + torch.eye(network.size) / sigma**2
    covariance = torch.linalg.inv(precision)
    diagonal = covariance.diagonal()
    # A sample covariance has variance (c_ij^2 + c_ii c_jj) / count.
    error = ((covariance.square() + torch.outer(diagonal, diagonal)) / count).sqrt()
    assert ((samples.T @ samples / count - covariance).abs() < 5 * error).all()
    assert (samples.mean(0).abs() < 5 * (diagonal / count).sqrt()).all()


def test_laplace_method_uses_temperature_and_prior() -> None:
    """Colder samples lie closer to the mode, in the ratio of the square roots of the temperatures."""
    spread = {}
    points = network_points(learned=False)
    for temperature in (1.0, 0.01):
        problem = network_problem(chains=1)
        energy = Energy(problem.energy.model, problem.energy.data_size, temperature)
        method = ForwardKLByLaplace(laplace_sigma=None, samples=20)
        mode = problem.source.draw(1, None, 0, Randomness.for_purpose(0)).start
        samples = method.sample_coreset(points, Problem(energy), mode, Randomness.for_purpose(0))
        spread[temperature] = (samples - mode).norm()
    assert float(spread[1.0] / spread[0.01]) == pytest.approx(10.0, rel=1e-9)


def test_methods_that_need_noise_refuse_temperature_zero() -> None:
    problem = network_problem(chains=1)
    frozen = Problem(Energy(problem.energy.model, 100, 0.0), problem.source)
    for name in ("fkl-hmc", "fkl-kfl"):
        with pytest.raises(InputError, match="positive temperature"):
            METHODS[name](steps=1).loss(network_points(), frozen, Randomness.for_purpose(0))


def test_laplace_method_refuses_a_model_that_is_no_network() -> None:
    with pytest.raises(InputError, match="softmax"):
        ForwardKLByLaplace(steps=1).loss(gaussian_points(), gaussian_problem(), Randomness.for_purpose(0))


def test_draws_of_a_posterior_are_taken_as_they_are_so_that_both_moments_agree() -> None:
    """On the full data the gradient vanishes up to Monte Carlo; noise around draws would make them twice as wide."""
    problem = glm_problem("linear", "plain", 30, 2, seed=0)
    about, points = row_problem(problem.model, problem.rows, problem.fit), all_points(problem.rows)
    points = replace(points, x=points.x.clone().requires_grad_())
    sizes = {}
    for expert_sigma in (0.0, None):
        method = ForwardKL(
            chains=20_000, steps=20, step_size=0.5, samples=1, sigma=1.0, expert_sigma=expert_sigma, at_once=20_000
        )
        loss = method.loss(points, about, Randomness.for_purpose(0, "two moments"))
        sizes[expert_sigma] = float(gradients(loss.value, points)["x"].norm())
    assert sizes[0.0] < 0.05 * sizes[None]
