"""The product: a few weighted synthetic points, and all that is needed to use them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import safetensors
import torch
from markupsafe import Markup
from torch import Tensor
from torch.utils.data import TensorDataset

from pseudocoresets._io import display, exports
from pseudocoresets._io.files import TensorFile, naming, write_tensors
from pseudocoresets._io.pictures import Panel, image_grid, save_class_rows
from pseudocoresets._io.schema import (
    ANY_OBJECT,
    FLAG,
    HASH,
    NAME,
    SEED,
    SIZE,
    Array,
    Constant,
    ListOf,
    Mismatch,
    Nullable,
    Number,
    Object,
    Row,
    Text,
)
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.formation import spread_out, tiled
from pseudocoresets.core.points import Points
from pseudocoresets.core.settings import POSITIVE, Range
from pseudocoresets.data.catalogue import DatasetEntry
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.data.download import fetch_by_hash
from pseudocoresets.data.restoring import MissingWhitening, with_origin, without_matrices
from pseudocoresets.data.transforms import InputTransform, WhiteningOrigin
from pseudocoresets.data.zca_cache import cache_folder, is_kept
from pseudocoresets.dp.guarantee import GUARANTEE_KIND, Guarantee
from pseudocoresets.models.networks import NETWORK_KIND, NetworkSpec, spec_from_json

FORMAT = "pseudocoreset"
FORMAT_VERSION = 1
COMPACT_VERSION = 2
"""Of files without whitening matrices, or with images in float16: what reads version 1 only must refuse them."""
ROWS_VERSION = 3
"""Of files whose points are rows of a table."""
FORMATION_VERSION = 4
"""Of files whose images are mosaics of several, with or without whitening matrices."""
CORESET_FILE = "coreset.safetensors"
"""Its name in a folder."""
IMAGES_SHOWN = 100
"""In a notebook."""
TRANSFORM_PREFIX = "transform."
LABEL_SLACK = 1e-3
"""How far the sum of a label's probabilities may be from one."""
WEIGHTS = Range(0, 1e30)
FLATTENED = "channels*height*width"

DOCUMENT = Object(
    {
        "format": Constant((FORMAT,)),
        "version": Constant((FORMAT_VERSION, COMPACT_VERSION, ROWS_VERSION, FORMATION_VERSION)),
        "dataset": NAME,
        "data_size": SIZE,
        "method": NAME,
        "configuration": Object(optional={"settings": Object(optional={"weights": Text(100)})}),
        "seed": SEED,
        "classes": ListOf(Text(200), 10_000),
        "flippable": FLAG,
        "transform": Constant(("normalise", "zca", None)),
        "network": Nullable(NETWORK_KIND),
    },
    optional={
        "whitening": Nullable(
            Object(
                {
                    "fingerprint": HASH,
                    "epsilon": Number(Range(1e-12, 1e12)),
                    "held_out": ListOf(Row((Number(Range(0, 1, above=True, below=True)), SEED)), 10),
                }
            )
        ),
        "formation": Number(Range(1, 16), whole=True),
        "libraries": ANY_OBJECT,
        "guarantee": GUARANTEE_KIND,
    },
)
IMAGE_ARRAYS = {
    "images": Array(["(m, channels, height, width) float32"]),
    "labels": Array(["(m,) int64", "(m, C) float32"]),
    "weights": Array(["(m,) float32"], within=WEIGHTS),
    "transform.mean": Array(["(channels,) float32"]),
    "transform.std": Array(["(channels,) float32"], within=POSITIVE),
    "transform.span": Array(["(2,) int64 or float32 or float64"], optional=True),
    "transform.whitening": Array([f"({FLATTENED}, {FLATTENED}) float32"], optional=True),
    "transform.unwhitening": Array([f"({FLATTENED}, {FLATTENED}) float32"], optional=True),
    "transform.whitening_mean": Array([f"({FLATTENED},) float32"], optional=True),
}
COMPACT_ARRAYS = {
    **IMAGE_ARRAYS,
    "images": Array(["(m, channels, height, width) float16 or float32"]),
    "transform.probe_whitened": Array([f"({FLATTENED},) float32"], optional=True),
    "transform.probe_unwhitened": Array([f"({FLATTENED},) float32"], optional=True),
}
ROW_ARRAYS = {
    "x": Array(["(m, features) float32 or float64"]),
    "y": Array(["(m,) int64 or float32 or float64", "(m, k) float32 or float64"]),
    "weights": Array(["(m,) float32 or float64"], within=WEIGHTS),
    "indices": Array(["(m,) int64"], optional=True),
}
ARRAYS = {
    FORMAT_VERSION: IMAGE_ARRAYS,
    COMPACT_VERSION: COMPACT_ARRAYS,
    ROWS_VERSION: ROW_ARRAYS,
    FORMATION_VERSION: COMPACT_ARRAYS,
}


@dataclass(frozen=True, repr=False)
class Coreset:
    """Weighted points in a model's input space, and all that is needed to use them.

    ``x`` holds images (m, channels, height, width) as float32, with the ``transform`` that leads from pixels to them
    and back, or rows of a table (m, features). ``y`` holds a target for each: classes (m,) as int64, class
    probabilities (m, classes), or numbers. ``weights`` (m,) sum to about ``data_size``, the number of points that the
    coreset stands for. Rows are kept in double precision, which their models compute in.
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    data_size: int
    source: str
    """Name of the data set that the coreset stands for."""
    method: str
    transform: InputTransform | None = None
    """Of images; rows have none."""
    classes: tuple[str, ...] = ()
    seed: int = 0
    network: NetworkSpec | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    flippable: bool = True
    """Whether a mirrored image keeps its label, which augmentation needs to know."""
    indices: Tensor | None = None
    """Positions in the full data, of rows that are real points."""
    formation: int = 1
    """Tiles along each side of an image of ``x`` that are points of their own, enlarged when they are used."""
    guarantee: Guarantee | None = None
    """Of differential privacy for each example of the full data, where it was made with one."""

    def __post_init__(self) -> None:
        if not self.holds_images:
            for name in ("x", "y", "weights"):
                object.__setattr__(self, name, getattr(self, name).to(torch.float64))

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        kind = "images" if self.holds_images else "rows"
        return f"Coreset({len(self)} {kind} for {self.data_size:,} of '{self.source}', by '{self.method}')"

    def _repr_html_(self) -> str:
        """In a notebook: the images, or the first rows, with their weights."""
        if self.holds_images and self.is_whole:
            most = max(1, IMAGES_SHOWN // max(1, len(self.classes)))
            kept = [place for label in range(len(self.classes)) for place in self._of_class(label)[:most]]
            grid = image_grid([Panel("", self.to_pixels()[kept], self.hard_labels[kept])], self.classes)
            parts = [display.picture(grid, "one row of images per class")]
            if len(kept) < len(self):
                parts.append(Markup("<p>and {:,} more images</p>").format(len(self) - len(kept)))
        else:
            columns = [f"x{number + 1}" for number in range(min(display.MOST_ROWS, self.x[:1].numel()))]
            flat, count = self.x.flatten(1)[:, : len(columns)], min(display.MOST_ROWS, len(self))
            rows = [
                [*(f"{value:.4g}" for value in flat[place].tolist()), _target(self.y[place]), f"{weight:.4g}"]
                for place, weight in enumerate(self.weights[:count].tolist())
            ]
            parts = [display.table((*columns, "y", "weight"), rows, len(self) - count)]
        return display.shown(repr(self), *parts)

    def _of_class(self, label: int) -> list[int]:
        return (self.hard_labels == label).nonzero().flatten().tolist()

    @property
    def points(self) -> Points:
        """The weighted points, as a model sees them."""
        return spread_out(self.stored, self.formation)

    @property
    def stored(self) -> Points:
        """The same as they are stored, where several images may be one."""
        return Points(self.x, self.y, self.weights, indices=self.indices)

    @property
    def holds_images(self) -> bool:
        return self.transform is not None

    @property
    def images(self) -> Tensor:
        """``x``, where it holds images."""
        self.require_images()
        return self.x

    @property
    def labels(self) -> Tensor:
        """``y``, where it holds the labels of images."""
        self.require_images()
        return self.y

    def require_images(self) -> InputTransform:
        """The transform of a coreset of images; an error for one of rows."""
        if self.transform is None:
            raise InputError("This coreset holds rows of a table, not images; read its x, y and weights.")
        return self.transform

    @property
    def images_per_class(self) -> float:
        return len(self) / max(1, len(self.classes))

    @property
    def hard_labels(self) -> Tensor:
        """The class of each point; of class probabilities, the most probable one."""
        return _classes_of(self.y)

    @property
    def labels_learned(self) -> bool:
        """Whether the labels of its images are class probabilities that were learned; those of real images are hard."""
        return self.holds_images and self.y.is_floating_point()

    def dataset(self) -> TensorDataset:
        """Points and targets for an ordinary PyTorch loop, in the model's input space."""
        return TensorDataset(self.points.x, self.points.y)

    def as_data(self, test: Split | None = None) -> Dataset:
        """Its images as a data set with the same guarantee, from which anything may be learned by any method."""
        points, transform = self.points, self.require_images()
        pixels, labels = transform.to_pixels(points.x), _classes_of(points.y)
        return Dataset(
            self.source,
            Split(pixels, labels),
            Split(pixels[:0], labels[:0]) if test is None else test,
            self.classes,
            replace(transform, span=torch.tensor([0.0, 1.0])),
            self.flippable,
            guarantee=self.guarantee,
            made_by={"method": self.method, "configuration": dict(self.configuration)},
        )

    def to_pixels(self) -> Tensor:
        """The stored images as pixels; 0 to 1 is black to white, and synthetic images may go beyond."""
        pixels = self.require_images().to_pixels(self.points.x)
        return pixels if self.formation == 1 else tiled(pixels, self.formation)

    def show(self, path: str | os.PathLike[str]) -> None:
        """Write a picture: one row per class, its name at the side, in true pixel space."""
        save_class_rows(path, self.to_pixels(), self.hard_labels, self.classes)

    @property
    def is_whole(self) -> bool:
        """Whether ``transform`` can be applied; of a compact file of whitened data it may still have to be fitted."""
        return not isinstance(self.transform, MissingWhitening)

    def restored(self, data: Dataset) -> Coreset:
        """The same coreset with all that is to be known of its whitening, from the data that it was made from.

        Whitening that a compact file left out is fitted again on the same training images, and must be the same to
        rounding. Whitening of unknown origin is recognised, so that a compact file can leave it out.
        """
        if isinstance(self.transform, MissingWhitening):
            return replace(self, transform=self.transform.fitted_again(data))
        transform = self.require_images()
        if transform.kind == "zca" and transform.origin is None:
            return replace(self, transform=with_origin(transform, data))
        return self

    def columns(self) -> exports.Columns:
        """Rows as columns by name: the features, the target ``y`` (y0, y1, ... of several) and ``weight``."""
        if self.holds_images:
            raise InputError("This coreset holds images, which are no columns of a table; use dataset().")
        names = self.configuration.get("columns", ())
        known = isinstance(names, list | tuple) and len(names) == self.x.shape[1]
        return exports.weighted_columns(self.x, self.y, self.weights, [str(name) for name in names] if known else ())

    def to_frame(self) -> Any:
        """Rows as a pandas frame with a column ``weight``."""
        try:
            import pandas
        except ImportError:
            raise InputError("Frames need pandas: pip install pandas.") from None
        return pandas.DataFrame(self.columns())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write rows as CSV with a column ``weight``."""
        exports.write_csv(path, self.columns())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write rows as Parquet with a column ``weight``."""
        exports.write_parquet(path, self.columns())

    def to_stan(self, path: str | os.PathLike[str]) -> None:
        """Write rows as JSON for Stan: N, K, x, y and weight."""
        self.columns()
        exports.write_stan_data(path, self.x, self.y, self.weights)

    def program(self, tool: str, data_file: str) -> str:
        """A program of ``stan``, ``numpyro``, ``pymc`` or ``sklearn`` that fits ``data_file``, the rows as written."""
        recorded = self.configuration.get("model")
        if not isinstance(recorded, Mapping):
            raise InputError("This coreset does not say for which model it was made; export csv instead.")
        return exports.program(tool, recorded, data_file)

    def save(self, path: str | os.PathLike[str], compact: bool = False, large_whitening: bool = True) -> None:
        """Write a safetensors file that any safetensors reader opens.

        A ``compact`` file holds the images as float16 (float32 if that would lose more than its rounding), and instead
        of whitening matrices the record of what they were fitted on. Without ``large_whitening`` only matrices that the
        user's cache keeps are left out, if it is known what they were fitted on, and images stay as they are; so the
        commands write what they make. A coreset that lacks its whitening is written without it in any case.
        """
        if self.transform is None:
            tensors = {"x": self.x, "y": self.y, "weights": self.weights}
            tensors |= {} if self.indices is None else {"indices": self.indices}
            write_tensors(path, tensors, self._document(ROWS_VERSION))
            return
        transform = self.transform
        if compact or (is_kept(transform) and not large_whitening):
            transform = without_matrices(transform, self.source)
        images = half_if_exact(self.x) if compact else self.x.float()
        tensors = {"images": images, "labels": self.y, "weights": self.weights.float()}
        tensors |= {TRANSFORM_PREFIX + name: tensor for name, tensor in transform.tensors().items()}
        whole = not isinstance(transform, MissingWhitening)
        version = FORMAT_VERSION if whole and not compact else COMPACT_VERSION
        write_tensors(path, tensors, self._document(version if self.formation == 1 else FORMATION_VERSION))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        data_dir: str | os.PathLike[str] | None = None,
    ) -> Coreset:
        """Read a coreset file, or that of a run folder or an address, checking that it is whole and consistent.

        An address comes with the hash of its file: ``https://.../coreset.safetensors#sha256=HASH``.

        The whitening of a compact file comes from the user's cache, or is fitted again on the data set if ``data_dir``
        holds it. Else the coreset has all but that: it can be trained on and sampled from, and ``restored`` brings it.
        """
        path = coreset_path(path)
        file = TensorFile.open(path)
        document = file.document
        _check_format(path, document)
        with naming(path):
            DOCUMENT.check(document, "its metadata")
        tensors = file.tensors(ARRAYS[document["version"]], {"C": len(document["classes"])}, device)
        with naming(path):
            _check_points(document, tensors)
            coreset = cls._from_file(document, tensors)
        if isinstance(coreset.transform, MissingWhitening):
            return replace(coreset, transform=coreset.transform.found(data_dir))
        return coreset

    @classmethod
    def _from_file(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Coreset:
        rows, network = document["version"] == ROWS_VERSION, document["network"]
        return cls(
            x=tensors["x"] if rows else tensors["images"].float(),
            y=tensors["y" if rows else "labels"],
            weights=tensors["weights"],
            transform=None if rows else _read_transform(tensors, document),
            indices=tensors.get("indices"),
            classes=tuple(document["classes"]),
            data_size=document["data_size"],
            source=document["dataset"],
            method=document["method"],
            seed=document["seed"],
            network=None if network is None else spec_from_json(network),
            configuration=document["configuration"],
            flippable=document["flippable"],
            formation=document.get("formation", 1),
            guarantee=Guarantee.from_json(document["guarantee"]) if "guarantee" in document else None,
        )

    def _document(self, version: int) -> dict[str, Any]:
        origin = None if self.transform is None else self.transform.origin
        return {
            "format": FORMAT,
            "version": version,
            "dataset": self.source,
            "method": self.method,
            "configuration": dict(self.configuration),
            "seed": self.seed,
            "classes": list(self.classes),
            "data_size": self.data_size,
            "flippable": self.flippable,
            "transform": None if self.transform is None else self.transform.kind,
            "whitening": None if origin is None else origin.as_json(),
            "network": None if self.network is None else self.network.as_json(),
            **({} if self.formation == 1 else {"formation": self.formation}),
            "libraries": library_versions(),
            **({} if self.guarantee is None else {"guarantee": self.guarantee.as_json()}),
        }


def coreset_path(path: str | os.PathLike[str]) -> Path:
    """The file itself, the coreset of a folder that ``bpc run`` or ``bpc share`` wrote, or a copy from an address."""
    if str(path).startswith(("https://", "http://")):
        return _from_address(str(path))
    path = Path(path)
    if not path.is_dir():
        return path
    if not (path / CORESET_FILE).is_file():
        raise InputError(f"The folder '{path}' holds no {CORESET_FILE}; name a coreset file, or a run's folder.")
    return path / CORESET_FILE


def _from_address(address: str) -> Path:
    """The file at ``ADDRESS#sha256=HASH``, from the user's cache if it was fetched before."""
    plain, _, digest = address.partition("#sha256=")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise InputError(
            f"Say which file '{plain}' should be: ADDRESS#sha256=HASH, as the README of a shared coreset has it."
        )
    place = cache_folder() / f"coreset-{digest}.safetensors"
    if not place.is_file():
        fetch_by_hash(plain, digest, place)
    return place


def require_same_shape(coreset: Coreset, data: Dataset | DatasetEntry) -> None:
    """A coreset can only be judged on data like that it was made from."""
    shape = tuple(coreset.x.shape[1:])
    if shape != data.shape or len(coreset.classes) != len(data.classes):
        raise InputError(
            f"The coreset (from '{coreset.source}') has images of {shape} in {len(coreset.classes)} classes, but "
            f"'{data.name}' has {data.shape} in {len(data.classes)}; choose the data set that it was made from."
        )


def _classes_of(y: Tensor) -> Tensor:
    return y.argmax(-1) if y.is_floating_point() else y


def _target(y: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in y.flatten().tolist())


def half_if_exact(images: Tensor) -> Tensor:
    """Images as float16 if no value errs by more than that type's relative rounding of the largest, else as float32.

    Values beyond 65504 would become infinite, and images of very small values would lose their digits.
    """
    images = images.detach().float()
    if images.numel() == 0:
        return images.half()
    error = (images.half().float() - images).abs().max()
    return images.half() if error <= 0.5 * torch.finfo(torch.float16).eps * images.abs().max() else images


def library_versions() -> dict[str, str]:
    """What wrote a file, for the reader who must repeat it."""
    try:
        own = version("pseudocoresets")
    except PackageNotFoundError:
        own = "source tree"
    return {
        "pseudocoresets": own,
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
    }


def _check_format(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    if document.get("format") != FORMAT:
        raise FileFormatError(f"'{path}' is not a coreset file; make one with 'bpc construct'.")
    if document.get("version") not in tuple(ARRAYS):
        raise FileFormatError(
            f"'{path}' has format version {document.get('version')}, but this library reads versions {min(ARRAYS)} "
            f"to {max(ARRAYS)}; use the release that wrote it."
        )


def _read_transform(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> InputTransform:
    """The transform of a file, whose whitening a compact file only describes."""
    own = {
        name.removeprefix(TRANSFORM_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(TRANSFORM_PREFIX)
    }
    span = own.get("span")
    if span is not None and not bool(span[0] < span[1]):
        raise Mismatch("its span of pixels does not go from a smaller number to a larger one")
    recorded = document.get("whitening")
    origin = None if recorded is None else WhiteningOrigin.from_json(recorded)
    if document["transform"] == "zca" and "whitening" not in own:
        if origin is None:
            raise Mismatch("it has neither the whitening of its data nor what it was fitted on")
        return MissingWhitening.from_record(own, origin, document["dataset"])
    return InputTransform.from_tensors(own, origin)


def _check_points(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """What shapes and ranges alone do not say: labels within the classes, positions within the data, a positive sum."""
    if not float(tensors["weights"].sum()) > 0:
        raise Mismatch("its weights are all zero")
    if "indices" in tensors:
        _check_within(tensors["indices"], document["data_size"], "positions", "data points")
    if document["version"] == ROWS_VERSION:
        return
    formation = document.get("formation", 1)
    if (document["version"] == FORMATION_VERSION) != (formation > 1):
        raise Mismatch(f"format version {document['version']} does not go with formation {formation}")
    if any(side % formation for side in tensors["images"].shape[-2:]):
        raise Mismatch(f"its images cannot be cut into {formation} x {formation} tiles")
    labels, classes = tensors["labels"], len(document["classes"])
    if not labels.is_floating_point():
        _check_within(labels, classes, "labels", "classes")
    elif bool((labels < -LABEL_SLACK).any()) or bool(((labels.sum(1) - 1).abs() > LABEL_SLACK).any()):
        raise Mismatch("its labels are no probabilities: each row must be from 0 on and sum to one")


def _check_within(values: Tensor, count: int, what: str, whole: str) -> None:
    low, high = (int(end) for end in values.aminmax())
    if not 0 <= low <= high < count:
        raise Mismatch(f"its {what} go from {low} to {high}, and it has {count:,} {whole}")
