"""The paper's tables and figures, and which of our cells stand beside each of its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pseudocoresets.core.registry import Registry, parse_value
from pseudocoresets.evaluation.paper import PaperFigure, paper_figures
from pseudocoresets.workflows.reproduce.cells import Made, ReproductionCell, network_for

Way = tuple[str, str, str | None]
"""Variant, protocol and sampler."""
CD_WAYS: Sequence[Way] = (
    ("published", "expert", None),
    ("published", "point", None),
    ("published", "cold", None),
    ("best", "cold", None),
    ("best", "point", None),
)
WAYS: Mapping[str, Sequence[Way]] = {
    "bpc-cd": CD_WAYS,
    "bpc-fkl (hmc)": (("fkl", "cold", "hmc"),),
    **{
        f"bpc-{name}{sampler}": ((ours, "cold", "sghmc"),)
        for name, ours in (("fkl", "fkl"), ("rkl", "rkl"), ("w", "wasserstein"))
        for sampler in ("", " (sghmc)")
    },
    "fkl by hmc": (("fkl-hmc", "cold", None),),
    "fkl by kfl": (("fkl-kfl", "cold", None),),
    **{
        name: ((name.replace("+", "-"), "point", None), (name.replace("+", "-"), "cold", None))
        for name in (
            "herding", "k-center", "forgetting", "dd", "ld", "gm", "dsa", "dm", "cafe", "cafe+dsa", "kip", "mtt",
        )
    },
}  # fmt: skip
"""How each of the paper's rows is made and judged here; its names in brackets are samplers of the evaluation."""
CROSS_NETWORKS = {"convnet": None, "resnet": "resnet18", "vgg": "vgg11", "alexnet": "alexnet"}
NETWORKS = {
    "convnet-d3w128 (320010)": "convnet:depth=3,width=128",
    "convnet-d3w256 (1229834)": "convnet:depth=3,width=256",
    "convnet-d5w128 (596490)": "convnet:depth=5,width=128",
    "alexnet (1872202)": "alexnet",
    "vgg11 (9231114)": "vgg11",
    "resnet18 (11173962)": "resnet18",
}
PICTURED_DATASETS = ("mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "tiny-imagenet")
PICTURED_SIZES = (1, 10)
ABLATED = {"sigma": "sigma", "k": "steps"}
PUBLISHED = {"sigma": 0.001, "steps": 100.0}


@dataclass(frozen=True)
class Place:
    """A row or column of a table: what the paper judges there, with all its metrics."""

    dataset: str
    ipc: int
    method: str
    variant: str
    figures: Mapping[str, PaperFigure]
    """By metric."""


@dataclass(frozen=True)
class Entry:
    """What of ours stands at a place: a cell with its first seed, and what stands beside it."""

    cell: ReproductionCell
    beside: tuple[ReproductionCell, ...] = ()
    """Control and starts."""


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    metrics: tuple[str, ...]
    places: Callable[[], Sequence[Place]]
    cell: Callable[[Place, ReproductionCell], ReproductionCell | None]
    """From the plain cell of a way to the one of this table; None where the way has no meaning here."""
    note: str = ""
    controlled: bool = False
    """Whether controls and starts belong to it."""
    joined: bool = False
    """Whether the protocols of a coreset stand in one row, with what the construction cost."""

    def entries(self, place: Place) -> list[Entry]:
        """Ours at a place, the paper's own method first."""
        found: list[Entry] = []
        for variant, protocol, sampler in WAYS[place.method]:
            made = Made(_plain(place.dataset), place.ipc, variant, network_for(_plain(place.dataset)))
            cell = self.cell(place, ReproductionCell(made, protocol, sampler=sampler))
            if cell is not None and cell not in (entry.cell for entry in found):
                found.append(Entry(cell, self._beside(cell)))
        return found

    def cells(self) -> list[ReproductionCell]:
        """Every cell of the table once, with its first seed."""
        entries = [entry for place in self.places() for entry in self.entries(place)]
        return list(dict.fromkeys(cell for entry in entries for cell in (entry.cell, *entry.beside)))

    def _beside(self, cell: ReproductionCell) -> tuple[ReproductionCell, ...]:
        if not self.controlled or cell.made.variant not in ("published", "best"):
            return ()
        starts = cell.made.variant == "published" and cell.test == "clean"
        return (cell.as_role("control"), *([cell.as_role("starts")] if starts else []))


def _plain(dataset: str) -> str:
    """The data set whose coreset is judged; corrupted images are test data only."""
    return dataset.removesuffix("-c")


def _same(place: Place, cell: ReproductionCell) -> ReproductionCell:
    return cell


def _judged_by(test: str) -> Callable[[Place, ReproductionCell], ReproductionCell]:
    return lambda place, cell: replace(cell, test=test)


def _unsampled(test: str) -> Callable[[Place, ReproductionCell], ReproductionCell]:
    """What needs the coreset alone, by whatever protocol it is judged elsewhere."""
    return lambda place, cell: ReproductionCell(cell.made, test=test)


def _other_network(place: Place, cell: ReproductionCell) -> ReproductionCell | None:
    """Chains of another network cannot start from experts of this one."""
    network = CROSS_NETWORKS[place.variant]
    return None if network and cell.protocol == "expert" else replace(cell, network=network)


def _own_network(place: Place, cell: ReproductionCell) -> ReproductionCell:
    return replace(cell, made=replace(cell.made, network=NETWORKS[place.variant]))


def _ablation(place: Place, cell: ReproductionCell) -> ReproductionCell | None:
    if cell.made.variant != "published":
        return None
    name, text = place.variant.split("=")
    option, value = ABLATED[name], parse_value(text)
    changed = () if isinstance(value, str) or value == PUBLISHED[option] else ((option, value),)
    return replace(cell, made=replace(cell.made, options=changed))


def _no_augmentation(place: Place, cell: ReproductionCell) -> ReproductionCell:
    return replace(cell, made=replace(cell.made, augment=False))


def _places(table: str) -> Callable[[], Sequence[Place]]:
    @cache
    def places() -> Sequence[Place]:
        found: dict[tuple[str, int, str, str], dict[str, PaperFigure]] = {}
        for figure in paper_figures(table):
            variant = "" if table == "adversarial" else figure.variant
            found.setdefault((figure.dataset, figure.ipc, figure.method, variant), {})[figure.metric] = figure
        return tuple(Place(*key, figures) for key, figures in found.items())

    return places


def _pictured() -> Sequence[Place]:
    """The paper's method on all its data sets, and whatever else is made for a table, at one and ten images."""
    own = [(dataset, ipc, "bpc-cd") for dataset in PICTURED_DATASETS for ipc in PICTURED_SIZES]
    figures = (figure for table in ("bpc", "coresets", "condensation") for figure in paper_figures(table))
    made = [(each.dataset, each.ipc, each.method) for each in figures if each.ipc in PICTURED_SIZES]
    return tuple(Place(*key, "", {}) for key in dict.fromkeys(own + made))


_COST = ("gpu memory (GB)", "seconds per iteration")
_JUDGED_AND_COST = ("accuracy", "nll", "ece", "iterations", "construction seconds", "gpu memory (GB)")
_PROTOCOLS = (
    "`point` is the protocol of the literature: networks trained on the coreset from scratch, the mean of single ones, "
    "as each publication does: gm, cafe and the selections for 300 epochs on images as they are, ld and kip for 1,000 "
    "such epochs, dd by its own learned steps, the others for 1,000 epochs with augmentation. Weight decay is that of "
    "the prior, 2e-5 on CIFAR-10, where they have 5e-4. "
    "Settings are the publications', on nine tenths of the training data, one construction each; where fewer "
    "iterations were run than they have, the column says so."
)
_TABLES = (
    Table("main", "Pseudo-coresets on six data sets", ("accuracy", "nll"), _places("bpc"), _same, controlled=True,
          note="The paper's NLL is another quantity than the mean of -log p(label) here (1.36 at 98.9 % accuracy), so "
               "that nobody is ahead in it."),
    Table("calibration", "Calibration", ("ece", "brier"), _places("calibration"), _same,
          note="Of predictions as they are; those of our best method raised to the power that held-out images choose "
               "are in the cell's details."),
    Table("shift", "Ten corruptions of CIFAR-10", ("accuracy", "nll"), _places("ood"), _judged_by("shift"),
          controlled=True,
          note="Ours are means over the five severities; the paper does not name its own."),
    Table("attack", "l-inf attacks", ("clean accuracy", "robust accuracy"), _places("adversarial"),
          _judged_by("attack"), controlled=True,
          note="The paper names neither attack nor epsilon. Ours beside it is the attack in the manner of AutoAttack "
               "at 8/255, RobustBench's; the cell's details have PGD and smaller epsilons too."),
    Table("cross-architecture", "Coresets of ConvNet, judged by other networks", ("accuracy",),
          _places("cross-architecture"), _other_network),
    Table("no-augmentation", "Without augmentation", ("accuracy",), _places("no-dsa"), _no_augmentation),
    Table("sigma-k", "Noise of the start and length of the chain", ("accuracy", "nll"), _places("ablation"), _ablation),
    Table("mcmc", "Direct HMC and Kronecker-factored Laplace", ("accuracy", *_COST), _places("mcmc"), _same),
    Table("coresets", "Coresets of real images", _JUDGED_AND_COST, _places("coresets"), _same, joined=True,
          note=_PROTOCOLS + " The paper's 23.3 for herding at 50 images of CIFAR-10 is its figure for forgetting, an "
               "error; others report 40.4."),
    Table("condensation", "Dataset condensation", _JUDGED_AND_COST, _places("condensation"), _same, joined=True,
          note=_PROTOCOLS),
    Table("networks", "Six networks, each with its own coreset", ("accuracy",), _places("parameters"), _own_network),
    Table("efficiency", "Memory and time of an iteration", _COST, _places("efficiency"), _unsampled("cost"),
          note="The paper's device is an RTX A6000. Ours is in the cell's details; memory is the peak of the process. "
               "An iteration of gm and dsa is one network, as the paper counts them, with an update of the images for "
               "each image per class."),
    Table("pictures", "Pictures of the coresets", (), _pictured, _unsampled("pictures")),
    Table("memory-time", "Memory and time against images per class", _COST, _places("efficiency"), _unsampled("cost")),
)  # fmt: skip
TABLES: Registry[Table] = Registry("table", {table.name: table for table in _TABLES})
"""In the order of their worth for a reader who has time for a few."""
FIGURES = ("pictures", "memory-time")
CORRUPTION_NAMES = {"impulsive noise": "impulse_noise"}
"""Where the paper's name of a corruption is not CIFAR-10-C's with spaces."""
