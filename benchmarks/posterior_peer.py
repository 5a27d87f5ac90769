"""Coresets of this library beside those of `bayesiancoresets`, on the same data, sizes and seeds, in one run.

    python benchmarks/posterior_peer.py --peer CHECKOUT --out benchmarks/results/posterior_peer.json

`CHECKOUT` is a folder with the peer's repository (github.com/trevorcampbell/bayesian-coresets); leave it out if the
package is installed. The peer's projectors follow its own examples: samples of the Laplace approximation of the full
posterior for its Hilbert coresets ("optimal"), samples of the coreset's posterior for sparse VI and pseudo-coresets,
100 optimisation steps with the step sizes 1 / (1 + i). Both sides are timed with everything they need, approximations
of the posterior included, and both are scored by KL(full || coreset): in closed form for the Gaussian mean; for
logistic regression between the Gaussian fits of a long NUTS run on the full data and of the coreset's posterior
(importance sampling from its nearest Gaussian or, where that is inefficient, NUTS: `scored_by` says which).

A run adds its cells to the file `--out`, seed by seed, in place of those that it has measured anew; `--only-missing`
completes a run that was stopped. Each cell says which of the `runs` it comes from.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from pseudocoresets._io.files import write_json
from pseudocoresets.construction import construct
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.inference.models import gaussian_moments
from pseudocoresets.methods import METHODS
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.gaussian_mean import GaussianMean
from pseudocoresets.models.glm import LogisticRegression
from pseudocoresets.sources.gaussian_fit import fit_gaussian
from pseudocoresets.sources.reference import reference_posterior
from pseudocoresets.workflows.provenance import provenance

SIZES = (10, 30, 100)
SHARED = ("uniform", "frank-wolfe", "giga", "sparse-vi")
OURS = (*SHARED, "moments", "cd", "gaussian-rkl", "gaussian-psvi", "laplace-w2")
QUICK_SECONDS = 0.1
REPEATS = 9
WORTH_A_LONG_RUN = 25.0
"""Nats below which the noise of a short NUTS run (some four nats in 50 dimensions) would matter."""
PEER = (*SHARED, "psvi")


class Stopwatch:
    """Time since it was made, by the clock and by what this process used of its core."""

    KEYS = ("seconds", "processor_seconds")

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        now = time.perf_counter(), time.process_time()
        return {key: end - begin for key, begin, end in zip(self.KEYS, self._began, now, strict=True)}


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

    def coreset(self, weights: np.ndarray, points: np.ndarray) -> Points:
        x = torch.from_numpy(np.ascontiguousarray(points))
        return Points(x, torch.zeros(len(x), dtype=torch.float64), torch.from_numpy(weights))


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

    def coreset(self, weights: np.ndarray, points: np.ndarray) -> Points:
        x = torch.from_numpy(np.ascontiguousarray(points))
        return Points(x, torch.ones(len(x), dtype=torch.float64), torch.from_numpy(weights))

    @staticmethod
    def _upper_tail(margins: np.ndarray) -> np.ndarray:
        return np.exp(-np.logaddexp(0, margins))


def typical(build: Callable[[], list]) -> list:
    """[(..., seconds)] of a construction; what is quick is made several times, and the median time of each is kept.

    The first call of anything that takes less than a few milliseconds measures cold caches.
    """
    results = [build()]
    if max(result[-1]["processor_seconds"] for result in results[0]) < QUICK_SECONDS:
        results += [build() for _ in range(REPEATS - 1)]
    times = zip(*([row[-1] for row in rows] for rows in results), strict=True)
    medians = [{key: statistics.median(each[key] for each in same) for key in Stopwatch.KEYS} for same in times]
    return [(*row[:-1], median) for row, median in zip(results[0], medians, strict=True)]


def build_with_peer(bc: Any, side: Any, method: str, sizes: tuple[int, ...], seed: int, subsample: int | None) -> list:
    """(size, coreset, seconds) as the peer grows its coreset, or builds each pseudo-coreset."""
    watch = Stopwatch()
    np.random.seed(seed)
    if method == "psvi":
        return [(size, *_peer_pseudo(bc, side, size, subsample)) for size in sizes]
    builder = _peer_builder(bc, side, method, subsample)
    built, before = [], 0
    for size in sizes:
        builder.build(size - before)
        before = size
        seconds = watch.read()
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


def _peer_pseudo(bc: Any, side: Any, size: int, subsample: int | None) -> tuple[Points, dict[str, float]]:
    watch = Stopwatch()
    builder = bc.BatchPSVICoreset(side.points, _coreset_projector(bc, side), opt_itrs=100, n_subsample_opt=subsample)
    builder.build(size)
    weights, points, _ = builder.get()
    seconds = watch.read()
    return side.coreset(np.array(weights, dtype=float), np.array(points, dtype=float)), seconds


def _coreset_projector(bc: Any, side: Any) -> Any:
    def sampler(count: int, weights: Any, points: Any) -> np.ndarray:
        weights = np.array([]) if weights is None else np.asarray(weights)
        mean, root = side.posterior(weights, np.asarray(points))
        return mean + np.random.randn(count, len(mean)) @ root.T

    return bc.BlackBoxProjector(sampler, 100, side.log_likelihood, side.point_gradient)


# --- our side and the score -----------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model and its full data."""

    model: SmoothModel
    rows: Rows


def build_with_ours(case: Case, method: str, size: int, seed: int) -> tuple[Points, dict[str, float]]:
    entry = METHODS[method]()
    watch = Stopwatch()
    points = construct(case.rows, model=case.model, method=entry, size=size, seed=seed).points
    return points, watch.read()


def signed(case: Case, points: Points) -> Points:
    """Hard labels of logistic regression written into the signs of x, so that equal coresets get equal scores."""
    hard = bool(((points.y == 0) | (points.y == 1)).all())
    if not (isinstance(case.model, LogisticRegression) and hard):
        return points
    return Points((2 * points.y - 1)[:, None] * points.x, torch.ones_like(points.y), points.weights)


def score(case: Case, full: Gaussian, points: Points) -> tuple[float, str]:
    """KL(full || coreset) and how the coreset's Gaussian was found."""
    try:
        same = signed(case, points)
        fit, how = gaussian_moments(same, case.model, samples=150, warmup=150)
        if how == "nuts" and float(kl_divergence(full, fit)) < WORTH_A_LONG_RUN:
            fit, how = gaussian_moments(same, case.model, samples=2000, warmup=300)
        return float(kl_divergence(full, fit)), how
    except DivergenceError:
        return math.inf, "failed"


# --- the settings ---------------------------------------------------------------------------------


def gaussian_setting(seed: int) -> tuple[Case, Any]:
    x = np.random.RandomState(1000 + seed).randn(1000, 100) + 1
    rows = Rows(torch.from_numpy(x), torch.zeros(len(x), dtype=torch.float64))
    return Case(GaussianMean(dimension=100), rows), GaussianSide(x)


def logistic_setting(dimension: int) -> Callable[[int], tuple[Case, Any]]:
    """The peer's own example: x ~ N(0, I), theta = (3, ..., 3); one data set, seeds are those of the construction."""

    def setting(seed: int) -> tuple[Case, Any]:
        stream = np.random.RandomState(dimension)
        x = stream.randn(10000, dimension)
        y = (stream.rand(10000) <= 1 / (1 + np.exp(-3 * x.sum(1)))).astype(float)
        rows = Rows(torch.from_numpy(x), torch.from_numpy(y))
        return Case(LogisticRegression(dimension), rows), LogisticSide(x, y)

    return setting


SETTINGS: dict[str, Callable[[int], tuple[Case, Any]]] = {
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

    def __init__(self, name: str, options: argparse.Namespace, bc: Any, record: dict, save: Callable[[], None]) -> None:
        self.name, self.options, self.bc, self.save = name, options, bc, save
        self.number = len(record["runs"]) - 1
        self.entry = record["settings"].setdefault(name, {})
        self.cells: dict[str, dict] = self.entry.setdefault("cells", {"peer": {}, "ours": {}})

    def everything(self) -> None:
        for seed in range(self.options.seeds):
            self.one_seed(seed)
            print(f"{self.name}: seed {seed} done", flush=True)

    def one_seed(self, seed: int) -> None:
        case, side = SETTINGS[self.name](seed)
        full = self.full_posterior(case)
        for method in self.options.peer_methods:
            sizes = tuple(size for size in self.options.sizes if size <= self.options.peer_largest.get(method, size))
            if not self.done("peer", method, sizes, seed):
                self.peer(case, full, side, method, sizes, seed)
        for method in self.options.our_methods:
            if not self.done("ours", method, self.options.sizes, seed):
                self.ours(case, full, method, seed)
        if self.name.startswith("gaussian"):
            for method in self.options.every_size:
                coresets = (build_with_ours(case, method, size, seed)[0] for size in range(1, 101))
                worst = max(score(case, full, points)[0] for points in coresets)
                worst_by_seed = self.entry.setdefault("worst_kl_over_sizes_1_to_100", {}).setdefault(method, {})
                worst_by_seed[str(seed)] = worst
                self.save()

    def done(self, side: str, method: str, sizes: tuple[int, ...], seed: int) -> bool:
        """Whether an earlier run with the same file has measured this and `--only-missing` asks to keep that."""
        cells = self.cells[side].get(method, {})
        return self.options.only_missing and all(str(seed) in cells.get(str(size), {}) for size in sizes)

    def full_posterior(self, case: Case) -> Gaussian:
        if self.name.startswith("gaussian"):
            return fit_gaussian(case.model, case.rows)
        draws, cache = self.options.reference_draws, self.options.cache
        reference, again = (
            reference_posterior(case.rows, case.model, draws, seed=seed, cache=cache) for seed in (0, 1)
        )
        self.entry["reference"] = reference.summary()
        self.entry["noise_floor_kl"] = float(kl_divergence(reference.gaussian, again.gaussian))
        self.entry["rank_bound_kl"] = {str(size): rank_bound(reference.gaussian, size) for size in SIZES}
        return reference.gaussian

    def peer(self, case: Case, full: Gaussian, side: Any, method: str, sizes: tuple[int, ...], seed: int) -> None:
        subsample = None if self.name.startswith("gaussian") else self.options.peer_subsample
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grown = typical(lambda: build_with_peer(self.bc, side, method, sizes, seed, subsample))
            for size, points, seconds in grown:
                self.note("peer", method, size, seed, score(case, full, points), seconds)
        self.save()

    def ours(self, case: Case, full: Gaussian, method: str, seed: int) -> None:
        for size in self.options.sizes:
            ((points, seconds),) = typical(lambda size=size: [build_with_ours(case, method, size, seed)])
            self.note("ours", method, size, seed, score(case, full, points), seconds)
        self.save()

    def note(
        self, side: str, method: str, size: int, seed: int, scored: tuple[float, str], seconds: dict[str, float]
    ) -> None:
        divergence, how = scored
        cell = self.cells[side].setdefault(method, {}).setdefault(str(size), {})
        kl = divergence if math.isfinite(divergence) else None
        cell[str(seed)] = {"kl": kl, **seconds, "scored_by": how, "run": self.number}


def summarise(cells: dict) -> dict[str, Any]:
    return {
        side: {
            method: {size: _summary_of(list(cell.values())) for size, cell in sizes.items()}
            for method, sizes in methods.items()
        }
        for side, methods in cells.items()
    }


def _summary_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst over the seeds; a coreset without a proper posterior counts as infinitely far, written null."""
    divergences = [math.inf if result["kl"] is None else result["kl"] for result in results]
    middle, worst = statistics.median(divergences), max(divergences)
    return {
        "seeds": len(results),
        "median_kl": middle if math.isfinite(middle) else None,
        "worst_kl": worst if math.isfinite(worst) else None,
        **{f"median_{key}": statistics.median(result[key] for result in results) for key in Stopwatch.KEYS},
    }


def describe_run(peer: Any) -> dict[str, Any]:
    return {
        **provenance(),
        "threads": torch.get_num_threads(),
        "numpy": np.__version__,
        "peer": f"bayesiancoresets {getattr(peer, '__version__', '0.9.1')}",
        "note": "Other work ran on the machine's second core: compare the processor seconds.",
    }


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _limits(text: str) -> dict[str, int]:
    """`sparse-vi=30,psvi=10` as a dictionary."""
    return {name: int(size) for name, size in (part.split("=") for part in _names(text))}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="folder with the peer's checkout, if it is not installed")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/posterior_peer.json"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/posterior"))
    parser.add_argument("--settings", default=list(SETTINGS), type=_names)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sizes", default=SIZES, type=_sizes)
    parser.add_argument("--reference-draws", type=int, default=2500, help="of each of four chains")
    parser.add_argument("--peer-methods", default=list(PEER), type=_names)
    parser.add_argument("--our-methods", default=list(OURS), type=_names)
    parser.add_argument("--every-size", default=[], type=_names, help="our methods to score at every size to 100")
    parser.add_argument(
        "--peer-largest",
        default={"sparse-vi": 30},
        type=_limits,
        help="largest size of a method of the peer's; the cost of its sparse VI grows with the square of the size",
    )
    parser.add_argument("--peer-subsample", type=int, default=1000, help="data its sparse VI and PSVI see at each step")
    parser.add_argument("--only-missing", action="store_true", help="keep what the file holds already")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    if options.peer is not None:
        sys.path.insert(0, str(options.peer))
    import bayesiancoresets as bc

    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    record = {"runs": record.get("runs", []), "settings": record.get("settings", {})}
    record["runs"].append(describe_run(bc))

    def save() -> None:
        for entry in record["settings"].values():
            entry["summary"] = summarise(entry["cells"])
        write_json(options.out, record)

    for name in options.settings:
        Run(name, options, bc, record, save).everything()
    print(json.dumps({name: entry["summary"] for name, entry in record["settings"].items()}, indent=1))


if __name__ == "__main__":
    main()
