"""Coresets of this library beside those of `bayesiancoresets`, on the same data, sizes and seeds, in one run.

    python benchmarks/posterior_peer.py --peer CHECKOUT --out benchmarks/results/posterior_peer.json

`CHECKOUT` is a folder with the peer's repository (github.com/trevorcampbell/bayesian-coresets); leave it out if the
package is installed. The peer's projectors follow its own examples: samples of the Laplace approximation of the full
posterior for its Hilbert coresets ("optimal"), samples of the coreset's posterior for sparse VI and pseudo-coresets,
100 optimisation steps with the step sizes 1 / (1 + i). Both sides are timed with everything they need, approximations
of the posterior included, and both are scored by KL(full || coreset): in closed form for the Gaussian mean; for
logistic regression between the Gaussian fits of a long NUTS run on the full data and of the coreset's posterior
(importance sampling from its nearest Gaussian or, where that is inefficient, a short NUTS run: `scored_by` says which).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from pseudocoresets.errors import DivergenceError
from pseudocoresets.files import write_json
from pseudocoresets.posterior import (
    METHODS,
    GaussianMean,
    LogisticRegression,
    MemoryData,
    NutsPlan,
    PosteriorProblem,
    WeightedPoints,
    gaussian_fit,
    kl_divergence,
    reference_posterior,
)
from pseudocoresets.posterior.gaussian import Gaussian

SIZES = (10, 30, 100)
SHARED = ("uniform", "frank-wolfe", "giga", "sparse-vi")
OURS = (*SHARED, "fkl", "cd", "rkl", "psvi", "wasserstein")
WORTH_A_LONG_RUN = 25.0
"""Nats below which the noise of a short NUTS run (some four nats in 50 dimensions) would matter."""
SLOW = ("sparse-vi", "cd", "rkl", "psvi", "wasserstein")
PEER = (*SHARED, "psvi")


# --- the peer -------------------------------------------------------------------------------------


class GaussianSide:
    """The Gaussian mean (identity covariances, standard normal prior) as the peer wants it."""

    projections = 100

    def __init__(self, x: np.ndarray) -> None:
        self.points = x

    def log_likelihood(self, points: np.ndarray, theta: np.ndarray) -> np.ndarray:
        points, theta = np.atleast_2d(points), np.atleast_2d(theta)
        squares = (points**2).sum(1)[:, None] + (theta**2).sum(1) - 2 * points @ theta.T
        return -0.5 * squares - 0.5 * points.shape[1] * math.log(2 * math.pi)

    def point_gradient(self, points: np.ndarray, theta: np.ndarray) -> np.ndarray:
        points, theta = np.atleast_2d(points), np.atleast_2d(theta)
        return theta[None] - points[:, None]

    def posterior(self, weights: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and a root of the covariance."""
        d = self.points.shape[1]
        if not len(weights):
            return np.zeros(d), np.eye(d)
        lower = np.linalg.cholesky(np.eye(d) + weights.sum() * np.eye(d))
        root = solve_triangular(lower, np.eye(d), lower=True).T
        return root @ (root.T @ (weights @ points)), root

    def coreset(self, weights: np.ndarray, points: np.ndarray) -> WeightedPoints:
        x = torch.from_numpy(np.ascontiguousarray(points))
        return WeightedPoints(x, torch.zeros(len(x), dtype=torch.float64), torch.from_numpy(weights))


class LogisticSide:
    """Logistic regression as the peer's examples write it: z = +-x, log-likelihood -log(1 + exp(-z . theta))."""

    projections = 500

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.points = (2 * y - 1)[:, None] * x

    def log_likelihood(self, points: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0, -np.atleast_2d(points) @ np.atleast_2d(theta).T)

    def point_gradient(self, points: np.ndarray, theta: np.ndarray) -> np.ndarray:
        theta = np.atleast_2d(theta)
        return self._upper_tail(np.atleast_2d(points) @ theta.T)[:, :, None] * theta[None]

    def posterior(self, weights: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The Laplace approximation: its mean and a root of its covariance."""
        d = self.points.shape[1]
        if not len(weights):
            return np.zeros(d), np.eye(d)

        def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
            margins = points @ theta
            value = weights @ np.logaddexp(0, -margins) + 0.5 * theta @ theta
            return value, theta - (weights * self._upper_tail(margins)) @ points

        theta = minimize(negative, np.zeros(d), jac=True).x
        tail = self._upper_tail(points @ theta)
        precision = np.eye(d) + points.T @ ((weights * tail * (1 - tail))[:, None] * points)
        return theta, np.linalg.inv(np.linalg.cholesky(precision)).T

    def coreset(self, weights: np.ndarray, points: np.ndarray) -> WeightedPoints:
        x = torch.from_numpy(np.ascontiguousarray(points))
        return WeightedPoints(x, torch.ones(len(x), dtype=torch.float64), torch.from_numpy(weights))

    @staticmethod
    def _upper_tail(margins: np.ndarray) -> np.ndarray:
        return np.exp(-np.logaddexp(0, margins))


def build_with_peer(bc: Any, side: Any, method: str, sizes: tuple[int, ...], seed: int, subsample: int | None) -> list:
    """(size, coreset, seconds) as the peer grows its coreset, or builds each pseudo-coreset."""
    began = time.perf_counter()
    np.random.seed(seed)
    if method == "psvi":
        return [(size, *_peer_pseudo(bc, side, size, subsample)) for size in sizes]
    builder = _peer_builder(bc, side, method, subsample)
    built, before = [], 0
    for size in sizes:
        builder.build(size - before)
        before = size
        seconds = time.perf_counter() - began
        weights, points, _ = builder.get()
        built.append((size, side.coreset(np.array(weights, dtype=float), np.array(points, dtype=float)), seconds))
    return built


def _peer_builder(bc: Any, side: Any, method: str, subsample: int | None) -> Any:
    if method == "uniform":
        return bc.UniformSamplingCoreset(side.points)
    if method == "sparse-vi":
        options = {"n_subsample_select": subsample, "n_subsample_opt": subsample}
        return bc.SparseVICoreset(side.points, _coreset_projector(bc, side), opt_itrs=100, **options)
    mean, root = side.posterior(np.ones(len(side.points)), side.points)

    def sampler(count: int, weights: Any, points: Any) -> np.ndarray:
        return mean + np.random.randn(count, len(mean)) @ root.T

    projector = bc.BlackBoxProjector(sampler, side.projections, side.log_likelihood)
    from bayesiancoresets.snnls import GIGA
    from bayesiancoresets.snnls import FrankWolfe as PeerFrankWolfe

    return bc.HilbertCoreset(side.points, projector, snnls=GIGA if method == "giga" else PeerFrankWolfe)


def _peer_pseudo(bc: Any, side: Any, size: int, subsample: int | None) -> tuple[WeightedPoints, float]:
    began = time.perf_counter()
    builder = bc.BatchPSVICoreset(side.points, _coreset_projector(bc, side), opt_itrs=100, n_subsample_opt=subsample)
    builder.build(size)
    weights, points, _ = builder.get()
    seconds = time.perf_counter() - began
    return side.coreset(np.array(weights, dtype=float), np.array(points, dtype=float)), seconds


def _coreset_projector(bc: Any, side: Any) -> Any:
    def sampler(count: int, weights: Any, points: Any) -> np.ndarray:
        weights = np.array([]) if weights is None else np.asarray(weights)
        mean, root = side.posterior(weights, np.asarray(points))
        return mean + np.random.randn(count, len(mean)) @ root.T

    return bc.BlackBoxProjector(sampler, 100, side.log_likelihood, side.point_gradient)


# --- our side and the score -----------------------------------------------------------------------


def build_with_ours(problem: PosteriorProblem, method: str, size: int, seed: int) -> tuple[WeightedPoints, float]:
    entry = METHODS[method]
    began = time.perf_counter()
    fresh = PosteriorProblem(problem.model, problem.data)
    points = entry.build(fresh, size, seed)
    return points, time.perf_counter() - began


def signed(problem: PosteriorProblem, points: WeightedPoints) -> WeightedPoints:
    """Hard labels of logistic regression written into the signs of x, so that equal coresets get equal scores."""
    hard = bool(((points.y == 0) | (points.y == 1)).all())
    if not (isinstance(problem.model, LogisticRegression) and hard):
        return points
    return WeightedPoints((2 * points.y - 1)[:, None] * points.x, torch.ones_like(points.y), points.weights)


def score(problem: PosteriorProblem, full: Gaussian, points: WeightedPoints) -> tuple[float, str]:
    """KL(full || coreset) and how the coreset's Gaussian was found."""
    try:
        same = signed(problem, points)
        fit, how = gaussian_fit(problem.model, same, plan=NutsPlan(150, 150, 2))
        if how == "nuts" and float(kl_divergence(full, fit)) < WORTH_A_LONG_RUN:
            fit, how = gaussian_fit(problem.model, same, plan=NutsPlan(2000, 300, 4))
        return float(kl_divergence(full, fit)), how
    except DivergenceError:
        return math.inf, "failed"


# --- the settings ---------------------------------------------------------------------------------


def gaussian_setting(seed: int) -> tuple[PosteriorProblem, Any]:
    x = np.random.RandomState(1000 + seed).randn(1000, 100) + 1
    data = MemoryData(torch.from_numpy(x), torch.zeros(len(x), dtype=torch.float64))
    return PosteriorProblem(GaussianMean(dimension=100), data), GaussianSide(x)


def logistic_setting(dimension: int) -> Callable[[int], tuple[PosteriorProblem, Any]]:
    """The peer's own example: x ~ N(0, I), theta = (3, ..., 3); one data set, seeds are those of the construction."""

    def setting(seed: int) -> tuple[PosteriorProblem, Any]:
        stream = np.random.RandomState(dimension)
        x = stream.randn(10000, dimension)
        y = (stream.rand(10000) <= 1 / (1 + np.exp(-3 * x.sum(1)))).astype(float)
        data = MemoryData(torch.from_numpy(x), torch.from_numpy(y))
        return PosteriorProblem(LogisticRegression(dimension), data), LogisticSide(x, y)

    return setting


SETTINGS: dict[str, Callable[[int], tuple[PosteriorProblem, Any]]] = {
    "gaussian-100": gaussian_setting,
    "logistic-10": logistic_setting(10),
    "logistic-50": logistic_setting(50),
}


def rank_bound(full: Gaussian, size: int) -> float:
    """A lower bound of KL(full || coreset) for any weighted points of a linear predictor with the prior N(0, I).

    m points leave the prior untouched in the size - m directions orthogonal to them; a direction in which the full
    posterior's variance is v costs at least (v - 1 - log v) / 2.
    """
    variances = torch.linalg.eigvalsh(full.covariance)
    costs = (0.5 * (variances - 1 - variances.log())).sort().values
    return float(costs[: max(0, full.size - size)].sum())


# --- the run --------------------------------------------------------------------------------------


class Run:
    """One setting: its cells fill up seed by seed, and are saved after each method."""

    def __init__(self, name: str, options: argparse.Namespace, bc: Any, entry: dict, save: Callable[[], None]) -> None:
        self.name, self.options, self.bc, self.entry, self.save = name, options, bc, entry, save
        self.cells: dict[str, dict] = entry.setdefault("cells", {"peer": {}, "ours": {}})

    def everything(self) -> None:
        """First what is fast, for all seeds; then what is slow, for as many as were asked for."""
        for slow, seeds in ((False, self.options.seeds), (True, self.options.slow_seeds)):
            for seed in range(seeds):
                self.one_seed(seed, slow)
                print(f"{self.name}: seed {seed} {'slow' if slow else 'fast'} done", flush=True)

    def one_seed(self, seed: int, slow: bool) -> None:
        problem, side = SETTINGS[self.name](seed)
        full = self.full_posterior(problem)
        for method in self.options.peer_methods:
            if (method == "sparse-vi") == slow:
                self.peer(problem, full, side, method, seed)
        for method in self.options.our_methods:
            if (method in SLOW) == slow:
                self.ours(problem, full, method, seed)
        if not slow and self.name.startswith("gaussian"):
            for method in self.options.every_size:
                coresets = (build_with_ours(problem, method, size, seed)[0] for size in range(1, 101))
                worst = max(score(problem, full, points)[0] for points in coresets)
                self.entry.setdefault("worst_kl_over_sizes_1_to_100", {}).setdefault(method, []).append(worst)
                self.save()

    def full_posterior(self, problem: PosteriorProblem) -> Gaussian:
        if self.name.startswith("gaussian"):
            return problem.approximation
        plan = NutsPlan(self.options.reference_draws, 300, 4)
        reference, again = (reference_posterior(problem, plan, seed, self.options.cache) for seed in (0, 1))
        self.entry["reference"] = reference.summary()
        self.entry["noise_floor_kl"] = float(kl_divergence(reference.gaussian, again.gaussian))
        self.entry["rank_bound_kl"] = {str(size): rank_bound(reference.gaussian, size) for size in SIZES}
        return reference.gaussian

    def peer(self, problem: PosteriorProblem, full: Gaussian, side: Any, method: str, seed: int) -> None:
        subsample = None if self.name.startswith("gaussian") else self.options.peer_subsample
        sizes = SIZES if method != "sparse-vi" else tuple(s for s in SIZES if s <= self.options.peer_sparse_vi_up_to)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for size, points, seconds in build_with_peer(self.bc, side, method, sizes, seed, subsample):
                _note(self.cells["peer"], method, size, *score(problem, full, points), seconds)
        self.save()

    def ours(self, problem: PosteriorProblem, full: Gaussian, method: str, seed: int) -> None:
        for size in SIZES:
            points, seconds = build_with_ours(problem, method, size, seed)
            _note(self.cells["ours"], method, size, *score(problem, full, points), seconds)
        self.save()


def _note(cells: dict, method: str, size: int, divergence: float, how: str, seconds: float) -> None:
    cell = cells.setdefault(method, {}).setdefault(str(size), {"kl": [], "seconds": [], "scored_by": []})
    cell["kl"].append(divergence if math.isfinite(divergence) else None)
    cell["seconds"].append(seconds)
    cell["scored_by"].append(how)


def summarise(cells: dict) -> dict[str, Any]:
    def middle(values: list) -> float | None:
        numbers = sorted(math.inf if value is None else value for value in values)
        median = statistics.median(numbers)
        return median if math.isfinite(median) else None

    return {
        side: {
            method: {
                size: {
                    "median_kl": middle(cell["kl"]),
                    "worst_kl": None if None in cell["kl"] else max(cell["kl"]),
                    "median_seconds": statistics.median(cell["seconds"]),
                }
                for size, cell in sizes.items()
            }
            for method, sizes in methods.items()
        }
        for side, methods in cells.items()
    }


def environment(peer: Any) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    processor = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "command": "python benchmarks/posterior_peer.py " + " ".join(_shown(sys.argv[1:])),
        "commit": commit.stdout.strip(),
        "cpu": processor,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "peer": f"bayesiancoresets {getattr(peer, '__version__', '0.9.1')}",
        "note": "Two shared cores, one thread for each run; other work ran beside it.",
    }


def _shown(arguments: list[str]) -> list[str]:
    """The arguments, with folders of this machine reduced to their last part."""
    return [Path(text).name if text.startswith("/") else text for text in arguments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="folder with the peer's checkout, if it is not installed")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/posterior_peer.json"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/posterior"))
    parser.add_argument("--settings", default=",".join(SETTINGS), type=lambda text: text.split(","))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--reference-draws", type=int, default=5000)
    parser.add_argument("--peer-methods", default=",".join(PEER), type=lambda text: text.split(","))
    parser.add_argument("--our-methods", default=",".join(OURS), type=lambda text: text.split(","))
    parser.add_argument("--every-size", default=[], type=lambda text: text.split(","))
    parser.add_argument(
        "--peer-sparse-vi-up-to", type=int, default=30, help="its cost grows with the square of the size"
    )
    parser.add_argument("--slow-seeds", type=int, default=10, help="seeds of the slower methods and of peer sparse VI")
    parser.add_argument("--peer-subsample", type=int, default=1000, help="data its sparse VI and PSVI see at each step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peer is not None:
        sys.path.insert(0, str(options.peer))
    import bayesiancoresets as bc

    record: dict[str, Any] = {"environment": environment(bc), "settings": {}}

    def save() -> None:
        for entry in record["settings"].values():
            entry["summary"] = summarise(entry["cells"])
        write_json(options.out, record)

    for name in options.settings:
        Run(name, options, bc, record["settings"].setdefault(name, {}), save).everything()
    print(json.dumps({name: entry["summary"] for name, entry in record["settings"].items()}, indent=1))


if __name__ == "__main__":
    main()
