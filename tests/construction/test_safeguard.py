"""No method on rows is worse than a uniform subsample or a Hilbert coreset of the same size."""

from __future__ import annotations

import itertools
import os
import statistics
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.glm_problems import FAMILIES, TRAITS, GlmProblem, glm_problem
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.construction.safeguard import CHECKED, CLEARLY, EVERYTHING, OWN, START, Safeguard, between
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points
from pseudocoresets.methods import FrankWolfe, Giga, Problem, Solver, Uniform, row_problem
from pseudocoresets.sources.gaussian_fit import GaussianFit, fit_gaussian

EXAMPLES = int(os.environ.get("PSEUDOCORESETS_EXAMPLES", "6"))
"""Random problems; with 20 or more they are as large as they get, and sizes go up to the number of data."""
LARGE = EXAMPLES >= 20
MOST_DATA, MOST_PARAMETERS = (5000, 50) if LARGE else (300, 6)
MOST_POINTS = 300 if LARGE else 60
"""Of the simple coresets that large ones are compared with."""
SHORT = {"iterations": 5}
SOLVERS = ("moments", "gaussian-rkl", "gaussian-psvi", "laplace-w2", "quasi-newton", "a-iht", "coreset-mcmc")
LEARNERS = ("cd", "psvi", "rkl", "fkl", "wasserstein", "fkl-hmc", "pcd", "black-box-vi", "cd-wasserstein")
SLOW = ("sparse-vi", "hamiltonian-flow", "coreset-mcmc-free")
"""Those whose work grows fast with the size."""
METHODS = {**{name: {} for name in (*SOLVERS, *SLOW)}, **dict.fromkeys(LEARNERS, SHORT)}


@st.composite
def requests(draw: st.DrawFn) -> tuple[GlmProblem, str, int, int]:
    n, d = draw(st.integers(20, MOST_DATA)), draw(st.integers(1, MOST_PARAMETERS))
    family, trait = draw(st.sampled_from(FAMILIES)), draw(st.sampled_from(TRAITS))
    size = draw(st.one_of(st.integers(1, 2 * d), st.integers(1, n if LARGE else min(n, 60)), st.just(n)))
    method, seed = draw(st.sampled_from(sorted(METHODS))), draw(st.integers(0, 1000))
    return glm_problem(family, trait, n, d, seed), method, min(size, n, 40 if method in SLOW else n), seed


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(requests())
def test_no_method_is_worse_than_the_best_simple_coreset(request: tuple[GlmProblem, str, int, int]) -> None:
    problem, method, size, seed = request
    found = pc.construct(
        problem.rows, problem.fit, method, model=problem.model, size=size, seed=seed, **METHODS[method]
    )
    value, error = problem.divergence(found.points)
    about = row_problem(problem.model, problem.rows, problem.fit)
    for simple in (Uniform(), FrankWolfe(), Giga()):
        other, its_error = problem.divergence(simple.solve(about, min(size, MOST_POINTS), seed))
        assert value <= 1.1 * other + 3 * (error + its_error) + 1e-3, (simple.name, found.configuration[CHECKED])
    assert len(found) <= size


@settings(max_examples=EXAMPLES // 6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(("moments", "gaussian-psvi", "gaussian-rkl", "quasi-newton", "a-iht", "cd", "pcd", "rkl")),
    st.sampled_from(FAMILIES),
    st.sampled_from(TRAITS),
    st.integers(50, MOST_DATA),
    st.integers(2, 6),
)
def test_twice_as_many_points_are_no_worse(method: str, family: str, trait: str, n: int, d: int) -> None:
    """Medians of three seeds, the sizes around the number of parameters, where searches are hardest."""
    problem = glm_problem(family, trait, n, d, seed=n)
    medians, errors = [], []
    for size in (d, 2 * d, 4 * d):
        found = (
            pc.construct(problem.rows, problem.fit, method, model=problem.model, size=size, seed=seed)
            for seed in range(3)
        )
        value, error = sorted(problem.divergence(each.points) for each in found)[1]
        medians.append(value)
        errors.append(error)
    for (fewer, its_error), (more, error) in itertools.pairwise(zip(medians, errors, strict=True)):
        assert more <= 1.1 * fewer + 3 * (error + its_error) + 1e-3, medians


@pytest.mark.parametrize(("family", "trait"), [("logistic", "separable"), ("poisson", "large counts")])
def test_more_points_do_not_make_the_median_worse(family: str, trait: str) -> None:
    problem = glm_problem(family, trait, 200, 3, seed=1)
    medians = []
    for size in (1, 3, 12):
        measured = [
            problem.divergence(
                pc.construct(problem.rows, problem.fit, "moments", model=problem.model, size=size, seed=seed).points
            )
            for seed in range(3)
        ]
        medians.append(statistics.median(value for value, _ in measured))
    assert all(more <= 1.1 * fewer + 1e-3 for fewer, more in itertools.pairwise(medians)), medians
    assert medians[-1] < 0.05 < medians[0]


@pytest.mark.parametrize(("n", "d", "seed"), [(800, 10, 2), (300, 6, 4), (1000, 12, 3)])
def test_more_real_points_than_a_simple_coreset_knows_to_use_do_no_harm(n: int, d: int, seed: int) -> None:
    """Fewer points than parameters, of which Frank-Wolfe's and GIGA's coresets become worse with more points."""
    problem = glm_problem("logistic", "imbalanced", n, d, seed)
    found = [
        pc.construct(problem.rows, problem.fit, "quasi-newton", model=problem.model, size=size).points
        for size in (1, 2, 4, 8)
    ]
    values, errors = zip(*map(problem.divergence, found), strict=True)
    for fewer, more in itertools.pairwise(range(4)):
        assert values[more] <= values[fewer] / CLEARLY + 3 * (errors[more] + errors[fewer])


def test_searches_over_more_points_end_no_further_away() -> None:
    """Heavy tails are where a search over many points is slowest."""
    problem = glm_problem("logistic", "heavy-tailed", 3000, 5, seed=3)
    few, many = (
        problem.divergence(pc.construct(problem.rows, problem.fit, "moments", model=problem.model, size=size).points)[0]
        for size in (5, 20)
    )
    assert many <= 1.1 * few + 5e-4, (few, many)


@dataclass(frozen=True)
class Useless(Solver):
    """A coreset that says nothing, or none at all."""

    fails: bool = False
    name: ClassVar[str] = "useless"

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        if self.fails:
            raise DivergenceError("nothing was found")
        return Points(torch.zeros(1, 3).double(), torch.ones(1).double(), torch.ones(1).double())


@pytest.mark.parametrize("fails", [False, True])
def test_a_useless_coreset_gives_way_to_a_simple_one_and_says_so(fails: bool) -> None:
    problem = glm_problem("logistic", "plain", 200, 3, seed=0)
    found = pc.construct(problem.rows, problem.fit, Useless(fails), model=problem.model, size=10)
    checked = found.configuration[CHECKED]
    assert checked["returned"] in ("giga", "frank-wolfe")
    assert found.method == "useless"
    assert found.indices is not None
    assert checked["kl"][checked["returned"]] == min(checked["kl"].values())
    assert (OWN in checked["kl"]) is not fails
    torch.testing.assert_close(found.x, problem.rows.x[found.indices])


class UselessSynthetic(Useless):
    synthetic: ClassVar[bool] = True


def test_many_synthetic_points_stand_beside_fewer() -> None:
    problem = glm_problem("logistic", "plain", 200, 3, seed=0)
    found = pc.construct(problem.rows, problem.fit, UselessSynthetic(), model=problem.model, size=20)
    checked = found.configuration[CHECKED]
    assert checked["returned"] == "12 points"
    assert len(found) == 12
    assert "3 points" not in checked["kl"], "twelve are near enough"
    assert problem.divergence(found.points)[0] < 0.001


def test_a_method_that_fits_the_mean_alone_does_not_lose_the_covariance() -> None:
    problem = glm_problem("logistic", "plain", 300, 3, seed=0)
    found = pc.construct(problem.rows, problem.fit, "wasserstein", model=problem.model, size=6, iterations=30)
    checked = found.configuration[CHECKED]
    assert checked["returned"] == START
    assert checked["kl"][OWN] > 10 * checked["kl"][START]
    assert problem.divergence(found.points)[0] < 0.01


def test_without_the_check_a_method_is_taken_at_its_word() -> None:
    problem = glm_problem("logistic", "plain", 200, 3, seed=0)
    found = pc.construct(problem.rows, problem.fit, Useless(), model=problem.model, size=10, check=False)
    assert CHECKED not in found.configuration
    assert float(found.x.abs().max()) == 0
    with pytest.raises(DivergenceError):
        pc.construct(problem.rows, problem.fit, Useless(True), model=problem.model, size=10, check=False)


def test_as_many_points_as_data_are_the_data() -> None:
    """And no method is asked."""
    problem = glm_problem("poisson", "plain", 25, 3, seed=0)
    found = pc.construct(problem.rows, problem.fit, Useless(), model=problem.model, size=25)
    assert found.configuration[CHECKED]["returned"] == EVERYTHING
    assert set(found.configuration[CHECKED]["kl"]) == {EVERYTHING}
    assert problem.divergence(found.points)[0] == pytest.approx(0, abs=1e-9)


def test_methods_share_their_start_and_find_what_they_found_alone() -> None:
    problem = glm_problem("logistic", "plain", 100, 2, seed=0)

    def learned(method: str, fit: GaussianFit) -> Tensor:
        return pc.construct(problem.rows, fit, method, model=problem.model, size=3, iterations=2).x

    shared = GaussianFit(problem.model, problem.rows)
    alone = learned("rkl", GaussianFit(problem.model, problem.rows))
    learned("cd", shared)
    kept = dict(shared.starts)
    torch.testing.assert_close(learned("rkl", shared), alone, rtol=0, atol=0)
    assert kept
    assert shared.starts == kept


def test_the_way_back_is_the_line_to_the_start() -> None:
    problem = glm_problem("linear", "plain", 50, 2, seed=0)
    about = row_problem(problem.model, problem.rows, problem.fit)
    start, end = (Uniform().solve(about, 5, seed) for seed in (0, 1))
    start, end = (Points(each.x[:3], each.y[:3], each.weights[:3]) for each in (start, end))
    guard = Safeguard(about, 5, 0)
    guard.offer_way_back(start, end)
    half = between(start, end, 0.5)
    torch.testing.assert_close(half.x, (start.x + end.x) / 2)
    torch.testing.assert_close(half.weights, (start.weights + end.weights) / 2)
    exact = float(kl_divergence(problem.fit.gaussian, fit_gaussian(problem.model, half)))
    assert guard.divergences["0.5 of the way"] == pytest.approx(exact)
    assert set(guard.divergences) == {"start", "0.5 of the way", "0.25 of the way", "0.125 of the way"}
