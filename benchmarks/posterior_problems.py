"""All methods on problems that nobody tuned them for, beside `bayesiancoresets`: KL(full || coreset) by size and seed.

    python benchmarks/posterior_problems.py --posteriordb FOLDER --peer CHECKOUT --out FILE

FOLDER holds posteriordb (github.com/stan-dev/posteriordb) and CHECKOUT the peer's repository; without the first, its
problems are named as missing, and without the second the peer is left out. The regressions of posteriordb are those of
kidiq, earnings, nes, diamonds, mesquite, sblrc, sblri, wells, nes_logit and GLM_Poisson. Features and a linear model's
target are standardised, the prior is N(0, 10^2) in those units and a linear model's noise is known (its least-squares
estimate). Where the published model has a flat prior, the divergence from its reference draws is recorded beside
(`kl_reference_draws`). The other problems are drawn here: separable, imbalanced, collinear, heavy-tailed, large counts,
few data, many parameters.

Every coreset is scored by importance sampling with draws that no construction has seen (`Yardstick` with another seed;
in closed form for linear models). `verdict` holds, per problem and size, the medians over seeds, whether the best of
ours with most seeds is no worse than the best of the peer's, and the largest ratio of a checked method to the best of
ours that need no cleverness (uniform, Frank-Wolfe, GIGA), of which 1.1 is allowed: of medians over the seeds that the
method has, and of single seeds. Divergences below a thousandth of a nat count as equal. What
the peer cannot do is infinite; a construction of ours that takes longer than `--limit` is left out and counted.
`kl_error` is the standard deviation of that divergence over other draws that score.

`more_points` compares neighbouring sizes of a problem, apart for methods that `construct` checks and for the simple
ones, which it takes as they are: how many medians over seeds rise by more than a tenth (`worse`), and how many by more
than three standard errors of the scores (`beyond_noise`), a thousandth of a nat in either case.

`--jobs` processes share the work; what one does in one go are methods that begin at the same place. The file is written
every few seconds and at the end, however that comes, and a cell that it already holds is not measured again; each says
which of the `runs` it comes from.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import signal
import statistics
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from posterior_peer import build_with_peer
from pseudocoresets._io.files import write_json
from pseudocoresets.construction import construct
from pseudocoresets.construction.safeguard import CHECKED, OWN
from pseudocoresets.core.errors import DivergenceError, PseudocoresetsError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.progress import Silent
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.glm import LinearRegression, LogisticRegression, PoissonRegression
from pseudocoresets.sources.gaussian_fit import GaussianFit, find_mode, fit_gaussian
from pseudocoresets.sources.yardstick import DRAWS, Yardstick
from pseudocoresets.workflows.provenance import provenance

SIZES = (5, 20, 100)
MORE_SIZES = (1, 5, 10, 20, 30, 100)
MORE_SIZES_OF = (
    "separable, d 6",
    "imbalanced, d 12",
    "large counts, d 10",
    "collinear linear",
    "heavy-tailed logistic",
)
SIMPLE = ("uniform", "frank-wolfe", "giga")
SOLVERS = ("moments", "gaussian-psvi", "gaussian-rkl", "laplace-w2")
LEARNERS = (
    *("cd", "psvi", "rkl", "fkl", "wasserstein", "fkl-hmc", "pcd", "black-box-vi", "cd-wasserstein"),
    "mtt",  # MTT's loss, which asks for samples and no network
)
REAL = ("a-iht", "sparse-vi", "quasi-newton", "coreset-mcmc", "coreset-mcmc-free", "hamiltonian-flow")
OURS = (*SIMPLE, *SOLVERS, *LEARNERS, *REAL)
"""All that make coresets of rows."""
PEER = ("uniform", "frank-wolfe", "giga")
"""The same; its sparse-vi, whose time grows with the square of the size, and psvi, its pseudo-coresets, can be too."""
UNSEEN = 20_261
"""The seed of the draws that score."""
OTHERS = 4
"""Other such draws, which say how much chance there is in a score."""
MORE_DRAWS = {"few data, logistic": 65_536}
"""Draws that score problems of which the usual number says too little."""
EQUAL = 1e-3
CLEARLY = 1.1
LIMIT = 300.0
"""Processor seconds of a construction, which the first method of a size and seed spends in part on the common start."""
PRIOR_SCALE = 10.0
WRITE_SECONDS = 10.0


@dataclass(frozen=True)
class Case:
    """A model, its data, and how parameters of the published model become ours."""

    name: str
    model: SmoothModel
    rows: Rows
    reference: Gaussian | None = None
    """The Gaussian of posteriordb's reference draws, in our units."""


# --- problems drawn here --------------------------------------------------------------------------


def drawn(name: str, family: str, n: int, d: int, seed: int) -> Case:
    """The name says what is special about it."""
    stream = np.random.default_rng([seed, n, d])
    x = stream.laplace(size=(n, d))
    if "heavy" in name:
        x = stream.standard_t(2.2, (n, d))
    if "collinear" in name:
        x[:, 1::2] = x[:, : 2 * (d // 2) : 2] + 0.02 * x[:, 1::2]
    x[:, -1] = 1
    theta = stream.uniform(-1, 1, d) / math.sqrt(d / 3)
    theta[-1] = -4.0 if "imbalanced" in name else 0.0
    eta = np.clip(x @ theta, -30, 30)
    if family == "linear":
        return _case(name, LinearRegression(d, PRIOR_SCALE), x, eta + stream.standard_normal(n))
    if family == "logistic":
        chance = 1 / (1 + np.exp(-eta * (15.0 if "separable" in name else 1.0)))
        return _case(name, LogisticRegression(d, PRIOR_SCALE), x, (stream.random(n) < chance).astype(float))
    rate = np.exp(np.clip(0.6 * eta + (5.5 if "counts" in name else 0.5), -10, 9))
    return _case(name, PoissonRegression(d, PRIOR_SCALE), x, stream.poisson(rate).astype(float))


DRAWN = (
    ("separable, d 6", "logistic", 600, 6),
    ("separable, d 15", "logistic", 1500, 15),
    ("imbalanced, d 5", "logistic", 3000, 5),
    ("imbalanced, d 12", "logistic", 5000, 12),
    ("heavy-tailed logistic", "logistic", 1000, 8),
    ("collinear logistic", "logistic", 800, 8),
    ("few data, logistic", "logistic", 40, 5),
    ("many parameters, logistic", "logistic", 4000, 40),
    ("large counts, d 4", "poisson", 500, 4),
    ("large counts, d 10", "poisson", 2000, 10),
    ("heavy-tailed Poisson", "poisson", 1000, 5),
    ("collinear Poisson", "poisson", 600, 6),
    ("collinear linear", "linear", 1000, 10),
    ("heavy-tailed linear", "linear", 2000, 12),
    ("many parameters, linear", "linear", 3000, 50),
)


# --- problems of posteriordb ----------------------------------------------------------------------


Design = Callable[[dict[str, np.ndarray]], tuple[np.ndarray, np.ndarray]]


def columns(target: str, *names: str, log: bool = False) -> Design:
    """A constant, then columns or products of columns ("a*b")."""

    def design(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        parts = [np.prod([data[part] for part in name.split("*")], axis=0) for name in names]
        y = data[target]
        return np.column_stack([np.ones(len(y)), *parts]), np.log(y) if log else y

    return design


def nes(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    ages = [(data["age_discrete"] == group).astype(float) for group in (2, 3, 4)]
    names = ("educ1", "gender", "income")
    parts = [data["real_ideo"], data["race_adj"], *ages, *(data[name] for name in names)]
    return np.column_stack([np.ones(len(parts[0])), *parts]), data["partyid7"]


def log_mesquite(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    volume, area = data["diam1"] * data["diam2"] * data["canopy_height"], data["diam1"] * data["diam2"]
    shape, height = data["diam1"] / data["diam2"], data["total_height"]
    parts = [*(np.log(each) for each in (volume, area, shape, height)), data["group"]]
    return np.column_stack([np.ones(len(volume)), *parts]), np.log(data["weight"])


def matrix(target: str, name: str) -> Design:
    return lambda data: (np.column_stack([np.ones(len(data[target])), data[name]]), data[target])


def diamonds(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return data["X"], data["Y"]


def poisson_years(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    year = data["year"]
    return np.column_stack([np.ones(len(year)), year, year**2, year**3]), data["C"]


PUBLISHED: tuple[tuple[str, str, str, Design], ...] = (
    ("kidiq-kidscore_momiq", "linear", "kidiq", columns("kid_score", "mom_iq")),
    ("kidiq-kidscore_momhs", "linear", "kidiq", columns("kid_score", "mom_hs")),
    ("kidiq-kidscore_momhsiq", "linear", "kidiq", columns("kid_score", "mom_hs", "mom_iq")),
    ("kidiq-kidscore_interaction", "linear", "kidiq", columns("kid_score", "mom_hs", "mom_iq", "mom_hs*mom_iq")),
    ("earnings-earn_height", "linear", "earnings", columns("earn", "height")),
    ("earnings-logearn_height", "linear", "earnings", columns("earn", "height", log=True)),
    ("earnings-logearn_interaction", "linear", "earnings", columns("earn", "height", "male", "height*male", log=True)),
    *((f"nes{year}-nes", "linear", f"nes{year}", nes) for year in range(1972, 2001, 4)),
    ("mesquite-logmesquite_logvash", "linear", "mesquite", log_mesquite),
    ("sblrc", "linear", "sblrc", matrix("y", "X")),
    ("sblri", "linear", "sblri", matrix("y", "X")),
    ("diamonds", "linear", "diamonds", diamonds),
    ("wells-dist", "logistic", "wells_data", columns("switched", "dist")),
    ("wells-interaction", "logistic", "wells_data", columns("switched", "dist", "arsenic", "dist*arsenic")),
    ("wells-all", "logistic", "wells_data", columns("switched", "dist", "arsenic", "educ", "assoc")),
    ("nes_logit", "logistic", "nes_logit_data", columns("vote", "income")),
    ("GLM_Poisson", "poisson", "GLM_Poisson_Data", poisson_years),
)


def published(root: Path, name: str, family: str, data_name: str, design: Design) -> Case | None:
    """A regression of posteriordb in standardised units; None where its data are not there."""
    path = root / "posterior_database/data/data" / f"{data_name}.json.zip"
    if not path.is_file():
        return None
    data = {key: np.asarray(value, dtype=float) for key, value in _zipped(path).items()}
    x, y = design(data)
    means, scales = x.mean(0), x.std(0)
    means[0], scales[0] = 0.0, 1.0
    z = (x - means) / scales
    if family != "linear":
        model = (LogisticRegression if family == "logistic" else PoissonRegression)(x.shape[1], PRIOR_SCALE)
        return _case(name, model, z, y)
    centre, unit = y.mean(), y.std()
    target = (y - centre) / unit
    rest = target - z @ np.linalg.lstsq(z, target, rcond=None)[0]
    noise = math.sqrt(float(rest @ rest) / (len(y) - x.shape[1]))
    draws_at = root / "posterior_database/reference_posteriors/draws/draws" / f"{name}.json.zip"
    reference = None
    if draws_at.is_file():
        beta = np.column_stack(_reference_draws(draws_at, x.shape[1]))
        theta = beta * scales / unit
        theta[:, 0] = (beta @ np.where(np.arange(len(means)) == 0, 1.0, means) - centre) / unit
        reference = Gaussian.fit(torch.from_numpy(theta))
    return _case(name, LinearRegression(x.shape[1], PRIOR_SCALE, noise), z, target, reference)


def _zipped(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def _reference_draws(path: Path, size: int) -> list[np.ndarray]:
    chains = _zipped(path)
    return [np.concatenate([chain[f"beta[{index + 1}]"] for chain in chains]) for index in range(size)]


def _case(name: str, model: SmoothModel, x: np.ndarray, y: np.ndarray, reference: Gaussian | None = None) -> Case:
    return Case(name, model, Rows(torch.from_numpy(x), torch.from_numpy(np.asarray(y, dtype=float))), reference)


# --- the peer -------------------------------------------------------------------------------------


class ModelSide:
    """A model as the peer wants it: points are rows (x, y), of two classes (2 y - 1) x as in its examples.

    Hilbert coresets project on draws of a Laplace approximation.
    """

    projections = 500

    def __init__(self, case: Case) -> None:
        self._model = case.model
        self._signed = isinstance(case.model, LogisticRegression)
        x, y = case.rows.x, case.rows.y[:, None]
        self.points = ((2 * y - 1) * x if self._signed else torch.cat([x, y], 1)).numpy()

    def log_likelihood(self, points: np.ndarray, theta: np.ndarray) -> np.ndarray:
        x, y = self._split(torch.from_numpy(np.atleast_2d(points).copy()))
        return self._model.log_likelihood(_draws(theta), x, y).numpy().T

    def point_gradient(self, points: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """(points, draws, columns)."""
        draws = _draws(theta)
        moved = torch.from_numpy(np.atleast_2d(points).copy()).expand(len(draws), -1, -1).clone().requires_grad_()
        each = torch.vmap(self._model.log_likelihood)(draws, *self._split(moved))
        (slopes,) = torch.autograd.grad(each.sum(), moved)
        return slopes.transpose(0, 1).numpy()

    def posterior(self, weights: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = find_mode(self._model, self.coreset(weights, points), torch.zeros(self._model.size).double())
        return found.mean.numpy(), found.factor.numpy()

    def coreset(self, weights: np.ndarray, points: np.ndarray) -> Points:
        rows = np.ascontiguousarray(points, dtype=float).reshape(-1, self.points.shape[1])
        return Points(*self._split(torch.from_numpy(rows)), torch.from_numpy(np.asarray(weights, dtype=float)))

    def _split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        return (points, torch.ones_like(points[..., 0])) if self._signed else (points[..., :-1], points[..., -1])


def _draws(theta: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.atleast_2d(theta)))


# --- the run --------------------------------------------------------------------------------------


class Task(NamedTuple):
    """Constructions of ours of one size, by methods that share their start, or a run of the peer's of all sizes."""

    problem: str
    side: str
    methods: tuple[str, ...]
    sizes: tuple[int, ...]
    seed: int


class Cell(NamedTuple):
    """What was measured, and where it belongs."""

    problem: str
    side: str
    method: str
    size: int
    seed: int
    found: dict[str, Any]


class Known(NamedTuple):
    """A problem, its nearest Gaussian, and what scores."""

    case: Case
    fit: GaussianFit
    scores: tuple[Yardstick, ...]
    """The score and, unless it is exact, others by other draws."""

    def scored(self, points: Points) -> dict[str, Any]:
        """`kl` and its error."""
        values = [each.divergence(points) for each in self.scores]
        chance = float(np.std(values, ddof=1)) if len(values) > 1 and all(map(math.isfinite, values)) else 0.0
        return {"kl": values[0], "kl_error": chance}


@dataclass(frozen=True)
class Measurement:
    """How the cells of a task are found."""

    root: Path | None
    peer: Path | None
    limit: float
    score_draws: int | None

    def __call__(self, task: Task) -> list[Cell]:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        about = known(task.problem, self.root, self.score_draws)
        if task.side == "ours":
            (size,) = task.sizes
            return [
                Cell(
                    task.problem, task.side, method, size, task.seed, _ours(about, method, size, task.seed, self.limit)
                )
                for method in task.methods
            ]
        assert self.peer is not None
        (method,) = task.methods
        return [
            Cell(task.problem, task.side, method, size, task.seed, found)
            for size, found in _peer(about, task, method, self.peer)
        ]


def builders(root: Path | None) -> Iterator[tuple[str, Callable[[], Case | None]]]:
    """Those that are drawn, then those of posteriordb, by name."""
    for index, each in enumerate(DRAWN):
        yield each[0], partial(drawn, *each, seed=index)
    if root is not None:
        for name, *rest in PUBLISHED:
            yield name, partial(published, root, name, *rest)


def all_cases(root: Path | None) -> Iterator[Case]:
    """Those that are there."""
    found = (build() for _, build in builders(root))
    return (case for case in found if case is not None)


@lru_cache(maxsize=64)
def known(name: str, root: Path | None, score_draws: int | None = None) -> Known:
    case = dict(builders(root))[name]()
    assert case is not None
    fit = GaussianFit(case.model, case.rows)
    draws = score_draws or MORE_DRAWS.get(name, DRAWS)
    first = Yardstick(case.model, case.rows, fit.gaussian, UNSEEN, draws)
    others = 0 if case.model.has_gaussian_posterior else OTHERS
    return Known(case, fit, (first, *(replace(first, seed=UNSEEN + 1 + index) for index in range(others))))


def _ours(about: Known, method: str, size: int, seed: int, limit: float) -> dict[str, Any]:
    case = about.case
    began = time.process_time()
    try:
        with processor_seconds(limit):
            coreset = construct(case.rows, about.fit, method, model=case.model, size=size, seed=seed, progress=Silent())
    except TimeoutError:
        return {"kl": None, "too_long": limit}
    except (PseudocoresetsError, RuntimeError, ArithmeticError, ValueError) as error:
        return {"kl": math.inf, "failure": f"{type(error).__name__}: {error}"}
    seconds = time.process_time() - began
    cell = about.scored(coreset.points) | {"processor_seconds": seconds}
    checked = coreset.configuration.get(CHECKED)
    if checked is not None:
        cell |= {"returned": checked["returned"], "own": checked["kl"].get(OWN)}
    if case.reference is not None:
        cell["kl_reference_draws"] = float(kl_divergence(case.reference, fit_gaussian(case.model, coreset.points)))
    return cell


@contextlib.contextmanager
def processor_seconds(limit: float) -> Iterator[None]:
    """End what takes longer by a TimeoutError."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peer(about: Known, task: Task, method: str, folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    import bayesiancoresets as bc

    bc.util.set_verbosity("error")
    try:
        built = build_with_peer(bc, ModelSide(about.case), method, task.sizes, task.seed, None)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError, DivergenceError) as error:
        yield from ((size, {"kl": math.inf, "failure": str(error)}) for size in task.sizes)
        return
    for size, points, seconds in built:
        yield size, (about.scored(points) if len(points) else {"kl": math.inf}) | seconds


def verdict(cells: dict[str, Any], size: str) -> dict[str, Any] | None:
    """Medians over seeds, who is best, and how much worse than the simple ones a checked method is at most."""
    found = {
        side: {method: measured(by_size[size]) for method, by_size in methods.items() if size in by_size}
        for side, methods in cells.items()
    }
    ours, peer = found.get("ours", {}), found.get("peer", {})
    simple = [ours[name] for name in SIMPLE if name in ours]
    seeds = set.intersection(*(set(each) for each in simple)) if simple else set()
    both = {name: {s: v for s, v in found.items() if s in seeds} for name, found in ours.items() if name not in SIMPLE}
    checked = {name: values for name, values in both.items() if values}
    if not checked:
        return None
    ratios = {name: ratio(values, simple) for name, values in checked.items()}
    one_seed = {name: max(ratio({s: v}, simple) for s, v in values.items()) for name, values in checked.items()}
    medians = {
        side: {name: statistics.median(v.values()) for name, v in each.items() if v} for side, each in found.items()
    }
    worst = max(ratios, key=lambda name: ratios[name])
    result = {"medians": medians, "best": min(medians["ours"], key=lambda name: medians["ours"][name])}
    result |= {
        "seeds": {name: len(values) for name, values in checked.items()},
        "ratios": ratios,
        "worst_checked": worst,
    }
    result |= {"worst_ratio": ratios[worst], "worst_ratio_one_seed": max(one_seed.values())}
    if peer:
        most = max(map(len, checked.values()))
        best = min(medians["ours"][name] for name, values in checked.items() if len(values) == most)
        result["ours_best"] = best <= min(medians["peer"].values()) + EQUAL
    return result


def measured(cells: dict[str, Any]) -> dict[str, float]:
    """seed -> divergence, of which those that are not finite are null in a file; without cells that took too long."""
    return {
        seed: math.inf if cell["kl"] is None else cell["kl"] for seed, cell in cells.items() if "too_long" not in cell
    }


def ratio(values: dict[str, float], simple: list[dict[str, float]]) -> float:
    """The median of a method over that of the best simple one, over the seeds that the method has."""
    of_simple = min(statistics.median(each[seed] for seed in values) for each in simple)
    return max(statistics.median(values.values()), EQUAL) / max(of_simple, EQUAL)


def judge(problem: dict[str, Any]) -> None:
    """Bring the verdict of a problem up to date."""
    sizes = sorted(
        {size for methods in problem["cells"].values() for found in methods.values() for size in found}, key=int
    )
    found = {size: verdict(problem["cells"], size) for size in sizes}
    problem["verdict"] = {size: each for size, each in found.items() if each is not None}


def summary(problems: dict[str, Any]) -> dict[str, Any]:
    verdicts = [each for problem in problems.values() for each in problem.get("verdict", {}).values()]
    beside = [each["ours_best"] for each in verdicts if "ours_best" in each]
    methods = sorted({name for each in verdicts for name in each["seeds"]})
    cells = [
        cell
        for problem in problems.values()
        for by_size in problem["cells"].get("ours", {}).values()
        for by_seed in by_size.values()
        for cell in by_seed.values()
    ]
    return {
        "problems": len(problems),
        "problems_and_sizes": len(verdicts),
        "cells_of_ours": len(cells),
        "too_long": sum("too_long" in cell for cell in cells),
        "failures": sum("failure" in cell for cell in cells),
        "problems_and_sizes_by_method_and_seeds": {
            name: Counter(str(each["seeds"].get(name, 0)) for each in verdicts) for name in methods
        },
        "ours_best": sum(beside),
        "beside_peer": len(beside),
        "within_1.1_of_simple": sum(each["worst_ratio"] <= 1.1 for each in verdicts),
        "largest_ratio": max((each["worst_ratio"] for each in verdicts), default=None),
        "largest_ratio_one_seed": max((each["worst_ratio_one_seed"] for each in verdicts), default=None),
        "more_points": more_points(problems),
        "methods": {name: about_method(name, problems) for name in methods},
    }


def about_method(method: str, problems: dict[str, Any]) -> dict[str, Any]:
    """In how many pairs of problem and size it is there, nearer than the peer, and its own coreset was returned."""
    verdicts = [
        (problem["cells"]["ours"][method][size], each)
        for problem in problems.values()
        for size, each in problem.get("verdict", {}).items()
        if method in each["seeds"]
    ]
    pairs = [
        (each["medians"]["ours"][method], min(each["medians"]["peer"].values()))
        for _, each in verdicts
        if "peer" in each["medians"]
    ]
    ratios = [max(ours, EQUAL) / max(peer, EQUAL) for ours, peer in pairs]
    own = [cell.get("returned") == OWN for cells, _ in verdicts for cell in cells.values()]
    seconds = [
        cell["processor_seconds"] for cells, _ in verdicts for cell in cells.values() if "processor_seconds" in cell
    ]
    return {
        "pairs": len(verdicts),
        "pairs_beside_peer": len(pairs),
        "no_worse_than_peer": sum(ours <= peer + EQUAL for ours, peer in pairs),
        "median_ratio_to_peer": statistics.median(ratios) if ratios else None,
        "largest_ratio_to_simple": max(each["ratios"][method] for _, each in verdicts),
        "own_returned": sum(own) / len(own),
        "median_processor_seconds": statistics.median(seconds) if seconds else None,
    }


class Rise(NamedTuple):
    """The medians over seeds of a method at two neighbouring sizes of a problem."""

    problem: str
    sizes: tuple[int, int]
    medians: tuple[float, float]
    noise: float
    """Standard error of their difference, as far as the draws that score are to blame."""

    @property
    def ratio(self) -> float:
        fewer, more = (max(each, EQUAL) for each in self.medians)
        return 1.0 if more == fewer else more / fewer

    @property
    def beyond_noise(self) -> bool:
        fewer, more = self.medians
        return more > fewer and more - fewer > EQUAL + 3 * self.noise


def more_points(problems: dict[str, Any]) -> dict[str, Any]:
    """For checked methods and simple ones: of pairs of neighbouring sizes, how many medians rise, and which."""
    rises = list(neighbours(problems))
    found: dict[str, Any] = {}
    for kind, belongs in (("checked", lambda name: name not in SIMPLE), ("unchecked", lambda name: name in SIMPLE)):
        of_kind = [(method, rise) for method, rise in rises if belongs(method)]
        methods = sorted({method for method, _ in of_kind})
        found[kind] = about_rises([rise for _, rise in of_kind]) | {
            "methods": {name: about_rises([rise for method, rise in of_kind if method == name]) for name in methods}
        }
    return found


def about_rises(rises: list[Rise]) -> dict[str, Any]:
    """How many there are, how many too high, and these."""
    high = [each for each in rises if each.ratio > CLEARLY or each.beyond_noise]
    return {
        "pairs": len(rises),
        "worse": sum(each.ratio > CLEARLY for each in rises),
        "beyond_noise": sum(each.beyond_noise for each in rises),
        "worse_and_beyond_noise": sum(each.ratio > CLEARLY and each.beyond_noise for each in rises),
        "largest_ratio": max((each.ratio for each in rises), default=None),
        "which": [
            f"{each.problem}: {each.medians[0]:.3g} at {each.sizes[0]}, {each.medians[1]:.3g} at {each.sizes[1]}"
            f" (noise {each.noise:.1g})"
            for each in sorted(high, key=lambda each: -each.ratio)
        ],
    }


def neighbours(problems: dict[str, Any]) -> Iterator[tuple[str, Rise]]:
    """By method, of sizes that have three seeds."""
    for name, problem in problems.items():
        for method, by_size in problem["cells"].get("ours", {}).items():
            known = [(int(size), measured(cells), cells) for size, cells in by_size.items()]
            enough = sorted((size, *middle(each, cells)) for size, each, cells in known if len(each) > 2)
            for (fewer, low, its_error), (more, high, error) in itertools.pairwise(enough):
                yield method, Rise(name, (fewer, more), (low, high), math.hypot(its_error, error))


def middle(values: dict[str, float], cells: dict[str, Any]) -> tuple[float, float]:
    """The median over seeds, and the error of the cells that it is made of."""
    order = sorted(values, key=lambda seed: values[seed])
    half = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    return statistics.median(values.values()), max(cells[seed].get("kl_error", 0.0) for seed in half)


def tasks(cases: list[Case], options: argparse.Namespace) -> Iterator[Task]:
    """Seed by seed, so that a run that is stopped has all problems with fewer of those; in each, the longest first."""
    for seed in range(options.seeds):
        if options.peer is not None:
            for case, each in itertools.product(cases, options.peer_methods):
                yield Task(case.name, "peer", (each,), sizes_of(case, options), seed)
        pairs = [(case, size) for case in cases for size in sizes_of(case, options)]
        for case, size in sorted(pairs, key=lambda pair: -work(*pair)):
            for methods in grouped(options.methods):
                yield Task(case.name, "ours", methods, (size,), seed)


def sizes_of(case: Case, options: argparse.Namespace) -> tuple[int, ...]:
    sizes = options.sizes or (MORE_SIZES if case.name in MORE_SIZES_OF else SIZES)
    return tuple(size for size in sizes if size < len(case.rows))


def work(case: Case, size: int) -> float:
    """What a construction's time grows with; searches for pseudo-points end soon where posteriors are Gaussian."""
    return (0.1 if case.model.has_gaussian_posterior else 1.0) * case.model.size * size


def grouped(methods: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Few enough that little is lost where a run is stopped; those that share a start are together."""
    for kind in (SOLVERS, LEARNERS):
        yield tuple(name for name in methods if name in kind)
    yield tuple(name for name in methods if name not in (*SOLVERS, *LEARNERS))


def remaining(task: Task, problems: dict[str, Any]) -> Task:
    """The methods of a task that the record lacks."""
    cells = problems.get(task.problem, {}).get("cells", {}).get(task.side, {})
    there = (
        all(str(task.seed) in cells.get(method, {}).get(str(size), {}) for size in task.sizes)
        for method in task.methods
    )
    return task._replace(methods=tuple(name for name, known in zip(task.methods, there, strict=True) if not known))


@contextlib.contextmanager
def spread(jobs: int) -> Iterator[Callable[[Measurement, list[Task]], Iterator[list[Cell]]]]:
    """A map over processes, whose results come as soon as they are there; with one job, over this one."""
    if jobs == 1:
        yield lambda measure, waiting: map(measure, waiting)
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            yield lambda measure, waiting: pool.imap_unordered(measure, waiting)


def end(number: int, frame: FrameType | None) -> NoReturn:
    """Be told to stop as if by an exception, so that what was found is written."""
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriordb", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), help="Of all problems.")
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")), default=OURS)
    parser.add_argument("--peer-methods", type=lambda text: tuple(text.split(",")), default=PEER)
    parser.add_argument("--problems", type=lambda text: text.split(";"), help="Names, separated by semicolons.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=LIMIT, help="Processor seconds of a cell.")
    parser.add_argument("--score-draws", type=int, help="Draws that score; all of a problem by as many.")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    cases = list(all_cases(options.posteriordb))
    missing = sorted({name for name, *_ in PUBLISHED} - {case.name for case in cases})
    if missing:
        print("missing (give --posteriordb):", ", ".join(missing))
    wanted = [case for case in cases if options.problems is None or case.name in options.problems]
    record = json.loads(options.out.read_text()) if options.out.is_file() else {"problems": {}, "runs": []}
    problems, runs = record["problems"], record["runs"]
    command = " ".join(Path(each).name if each.startswith("/") else each for each in sys.argv[1:])
    for case in wanted:
        about = {"n": len(case.rows), "parameters": case.model.size, "model": type(case.model).__name__}
        if case.reference is not None:
            exact = fit_gaussian(case.model, case.rows)
            about["kl_reference_draws_to_exact"] = float(kl_divergence(case.reference, exact))
        problems.setdefault(case.name, about | {"cells": {}})
    waiting = [task for task in (remaining(task, problems) for task in tasks(wanted, options)) if task.methods]
    if waiting:
        runs.append(provenance(device=torch.device("cpu")) | {"command": command})
    measure = Measurement(options.posteriordb, options.peer, options.limit, options.score_draws)
    signal.signal(signal.SIGTERM, end)

    def write() -> None:
        for problem in problems.values():
            judge(problem)
        write_json(options.out, record | {"missing": missing, "summary": summary(problems)})

    write()
    written = time.monotonic()
    try:
        with spread(options.jobs) as mapper:
            for cell in itertools.chain.from_iterable(mapper(measure, waiting)):
                by_method = problems[cell.problem]["cells"].setdefault(cell.side, {}).setdefault(cell.method, {})
                by_seed = by_method.setdefault(str(cell.size), {})
                by_seed[str(cell.seed)] = cell.found | {"run": len(runs) - 1}
                print(*cell[:5], cell.found["kl"], cell.found.get("returned", ""), flush=True)
                if time.monotonic() - written > WRITE_SECONDS:
                    write()
                    written = time.monotonic()
    finally:
        write()
    print(json.dumps(summary(problems), indent=2))


if __name__ == "__main__":
    main()
