"""The product: a few weighted synthetic points, and all that is needed to use them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import safetensors
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.data.catalogue import DatasetEntry
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.restoring import MissingWhitening, with_origin, without_matrices
from pseudocoresets.data.transforms import InputTransform, WhiteningOrigin
from pseudocoresets.models.networks import NetworkSpec, spec_from_json

FORMAT = "pseudocoreset"
FORMAT_VERSION = 1
COMPACT_VERSION = 2
"""Of files without whitening matrices, or with images in float16: what reads version 1 only must refuse them."""
TRANSFORM_PREFIX = "transform."


@dataclass(frozen=True)
class Coreset:
    """Weighted points in a model's input space, with the transform that leads there and back.

    ``images`` (m, channels, height, width) float32; ``labels`` (m,) int64 or (m, classes) float32; ``weights`` (m,),
    which sum to about ``data_size``, the number of points that the coreset stands for.
    """

    images: Tensor
    labels: Tensor
    weights: Tensor
    transform: InputTransform
    classes: tuple[str, ...]
    data_size: int
    source: str
    """Name of the data set that the coreset stands for."""
    method: str
    seed: int = 0
    network: NetworkSpec | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    flippable: bool = True
    """Whether a mirrored image keeps its label, which augmentation needs to know."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def images_per_class(self) -> float:
        return len(self) / len(self.classes)

    @property
    def hard_labels(self) -> Tensor:
        """The class of each point; of soft labels, the most probable one."""
        return self.labels.argmax(-1) if self.labels.is_floating_point() else self.labels

    def dataset(self) -> TensorDataset:
        """Images and labels for an ordinary PyTorch loop, in the model's input space."""
        return TensorDataset(self.images, self.labels)

    def to_pixels(self) -> Tensor:
        """The images as pixels; 0 to 1 is black to white, and synthetic images may go beyond."""
        return self.transform.to_pixels(self.images)

    def show(self, path: str | os.PathLike[str]) -> None:
        """Write a picture: one row a class, its name at the side, in true pixel space."""
        from pseudocoresets._io.pictures import save_class_rows

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
        if self.transform.kind == "zca" and self.transform.origin is None:
            return replace(self, transform=with_origin(self.transform, data))
        return self

    def save(self, path: str | os.PathLike[str], compact: bool = False) -> None:
        """Write a safetensors file that any safetensors reader opens.

        A ``compact`` file holds the images as float16 (float32 if that would lose more than its rounding), and instead
        of whitening matrices the record of what they were fitted on. A coreset that lacks its whitening is written
        without it in any case.
        """
        transform = without_matrices(self.transform, self.source) if compact else self.transform
        images = half_if_exact(self.images) if compact else self.images.float()
        tensors = {"images": images, "labels": self.labels, "weights": self.weights.float()}
        tensors |= {TRANSFORM_PREFIX + name: tensor for name, tensor in transform.tensors().items()}
        version = FORMAT_VERSION if self.is_whole and not compact else COMPACT_VERSION
        write_tensors(path, tensors, self._document(version))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        data_dir: str | os.PathLike[str] | None = None,
    ) -> Coreset:
        """Read a coreset file, checking that it is whole and consistent.

        The whitening of a compact file comes from the user's cache, or is fitted again on the data set if ``data_dir``
        holds it. Else the coreset has all but that: it can be trained on and sampled from, and ``restored`` brings it.
        """
        tensors, document = read_tensors(path, device)
        _check_format(path, document)
        try:
            network = document["network"]
            coreset = cls(
                images=tensors["images"].float(),
                labels=tensors["labels"],
                weights=tensors["weights"],
                transform=_read_transform(tensors, document),
                classes=tuple(document["classes"]),
                data_size=document["data_size"],
                source=document["dataset"],
                method=document["method"],
                seed=document["seed"],
                network=None if network is None else spec_from_json(network),
                configuration=document["configuration"],
                flippable=document["flippable"],
            )
        except KeyError as missing:
            raise FileFormatError(f"'{path}' lacks {missing}; it is not a whole coreset file.") from None
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"'{path}' is not a coreset file that can be read ({error}).") from None
        _check_tensors(path, coreset)
        if isinstance(coreset.transform, MissingWhitening):
            return replace(coreset, transform=coreset.transform.found(data_dir))
        return coreset

    def _document(self, version: int) -> dict[str, Any]:
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
            "transform": self.transform.kind,
            "whitening": None if self.transform.origin is None else self.transform.origin.as_json(),
            "network": None if self.network is None else self.network.as_json(),
            "libraries": library_versions(),
        }


def require_same_shape(coreset: Coreset, data: Dataset | DatasetEntry) -> None:
    """A coreset can only be judged on data like that it was made from."""
    shape = tuple(coreset.images.shape[1:])
    if shape != data.shape or len(coreset.classes) != len(data.classes):
        raise InputError(
            f"The coreset (from '{coreset.source}') has images of {shape} in {len(coreset.classes)} classes, but "
            f"'{data.name}' has {data.shape} in {len(data.classes)}; choose the data set that it was made from."
        )


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
    if document.get("version") not in (FORMAT_VERSION, COMPACT_VERSION):
        raise FileFormatError(
            f"'{path}' has format version {document.get('version')}, but this library reads versions {FORMAT_VERSION} "
            f"and {COMPACT_VERSION}; use the release that wrote it."
        )


def _read_transform(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> InputTransform:
    """The transform of a file, whose whitening a compact file only describes."""
    own = {
        name.removeprefix(TRANSFORM_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(TRANSFORM_PREFIX)
    }
    recorded = document.get("whitening")
    origin = None if recorded is None else WhiteningOrigin.from_json(recorded)
    if document["transform"] == "zca" and "whitening" not in own:
        if origin is None:
            raise FileFormatError("The file has neither the whitening of its data nor what it was fitted on.")
        return MissingWhitening.from_record(own, origin, document["dataset"])
    return InputTransform.from_tensors(own, origin)


def _check_tensors(path: str | os.PathLike[str], coreset: Coreset) -> None:
    images, labels, weights = coreset.images, coreset.labels, coreset.weights
    if images.dim() != 4 or labels.shape[:1] != images.shape[:1] or weights.shape != images.shape[:1]:
        raise FileFormatError(
            f"'{path}' is inconsistent: images {tuple(images.shape)}, labels {tuple(labels.shape)}, "
            f"weights {tuple(weights.shape)}."
        )
    if labels.is_floating_point() and labels.shape[1:] != (len(coreset.classes),):
        raise FileFormatError(f"'{path}' has soft labels {tuple(labels.shape)} for {len(coreset.classes)} classes.")
    if not all(torch.isfinite(values).all() for values in (images, labels, weights)):
        raise FileFormatError(f"'{path}' holds values that are not finite.")
    hard = coreset.hard_labels
    if len(hard) and not 0 <= int(hard.min()) <= int(hard.max()) < len(coreset.classes):
        raise FileFormatError(f"'{path}' has labels outside its {len(coreset.classes)} classes.")
