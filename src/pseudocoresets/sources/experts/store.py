"""Expert trajectories on disk: one safetensors file each, read a snapshot at a time.

A folder holds ``store.json`` (what the experts are) and ``expert-0000.safetensors``, ... with a tensor ``snapshots`` of
shape (epochs + 1, parameters). Files are memory-mapped, so memory does not grow with the number of experts.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pseudocoresets._io import display
from pseudocoresets._io.files import TensorFile, make_folder, naming, read_json, write_json, write_tensors
from pseudocoresets._io.schema import (
    ANY_OBJECT,
    ANY_SIZE,
    HASH,
    NAME,
    PLAIN,
    Array,
    Constant,
    Object,
    check_headers,
)
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.settings import RATE, SEED, SHARE, build_settings, check_ranges, counted, setting
from pseudocoresets.core.source import Draw
from pseudocoresets.data.dataset import Dataset, require_public
from pseudocoresets.dp import GUARANTEE_KIND, Budget, Guarantee
from pseudocoresets.models.networks import NETWORK_KIND, AnyNetwork, Network, as_network, from_spec, spec_from_json

FORMAT = "expert store"
FORMAT_VERSION = 2
"""Version 1 knew data and network by name only."""
DESCRIPTION = Object(
    {
        "format": Constant((FORMAT,)),
        "version": Constant((FORMAT_VERSION,)),
        "dataset": NAME,
        "data": HASH,
        "network": Object({**NETWORK_KIND.required, "fingerprint": HASH}),
        "settings": Object(others=PLAIN),
    },
    optional={"budget": Object(others=PLAIN), "guarantee": GUARANTEE_KIND},
)
EXPERT_DOCUMENT = Object({"expert": ANY_SIZE})
EXPERT_ARRAYS = {"snapshots": Array(["(epochs + 1, parameters) float32"])}
_EXPERT_FILE = re.compile(r"expert-(\d{4,})\.safetensors")


@dataclass(frozen=True)
class ExpertSettings:
    """How an expert is trained: SGD on the full data with differentiable augmentation."""

    epochs: int = setting(50, "Epochs of an expert.", within=counted(1e6))
    batch_size: int | None = setting(
        None,
        "Images in a batch of an expert's SGD; default: 256, or a sixteenth of fewer data.",
        within=counted(1e9),
        option="--expert-batch-size",
    )
    learning_rate: float = setting(
        0.01, "Learning rate of an expert's SGD.", within=RATE, option="--expert-learning-rate"
    )
    momentum: float = setting(0.0, "Momentum of an expert's SGD.", within=SHARE, option="--expert-momentum")
    augment: bool = setting(
        True, "Augment images, or see them as they are.", own_option="--expert-augment/--no-expert-augment"
    )
    seed: int = setting(0, "Seed of everything random.", within=SEED)

    def __post_init__(self) -> None:
        check_ranges(self)


class TrainedOn(NamedTuple):
    """The data of experts: their name, for people, and the fingerprint of their content, which decides."""

    name: str
    fingerprint: str
    """Of private data, only of what may be known of them: a hash of the data would tell who is in them."""

    @classmethod
    def of(cls, data: Dataset, private: bool = False) -> TrainedOn:
        return cls(data.name, data.public_fingerprint if private else data.fingerprint)


class PrivateTraining(NamedTuple):
    """What private experts may spend, and what they promise together."""

    budget: Budget
    clipping: float
    """The norm that the gradient of one example is clipped to."""
    guarantee: Guarantee


class Snapshots(Protocol):
    """Snapshots of one expert: at the start and after each epoch."""

    def __len__(self) -> int: ...

    def __getitem__(self, epoch: int) -> Tensor: ...


@dataclass(frozen=True, eq=False, repr=False)
class Experts:
    """Trajectories of one network on one data set, from which constructions draw."""

    network: Network
    trained_on: TrainedOn
    settings: ExpertSettings
    trajectories: Sequence[Snapshots]
    guarantee: Guarantee | None = None
    """Of differential privacy, for all of them together."""
    _moved: set[tuple[int, int, int]] = field(default_factory=set, init=False)
    _resident: dict[torch.device, ResidentSnapshots] = field(default_factory=dict, init=False)

    @property
    def fingerprint(self) -> str:
        """What these experts are: data, network, training and how many."""
        return fingerprint(
            self.trained_on.fingerprint, self.network.fingerprint, asdict(self.settings), len(self.trajectories)
        )

    def __len__(self) -> int:
        return len(self.trajectories)

    def __repr__(self) -> str:
        return f"Experts({len(self)} of {self.epochs} epochs, '{self.network.spec}' on '{self.trained_on.name}')"

    def _repr_html_(self) -> str:
        settings = [(name.replace("_", " "), str(value)) for name, value in asdict(self.settings).items()]
        about = [("experts", str(len(self))), ("parameters of each", f"{self.network.size:,}")]
        return display.shown(repr(self), display.facts([*about, *settings]))

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def snapshot(self, expert: int, epoch: int) -> Tensor:
        """The parameters of one expert after ``epoch`` epochs; negative epochs count from the end."""
        return self.trajectories[expert][range(self.epochs + 1)[epoch]]

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        """``count`` random experts at a random epoch up to ``max_start_epoch``, and ``expert_epochs`` epochs later."""
        last = self.epochs - expert_epochs
        if last < 0:
            raise InputError(
                f"The experts have {self.epochs} epochs, fewer than expert_epochs = {expert_epochs}; "
                "train longer or lower it."
            )
        last = last if max_start_epoch is None else min(last, max_start_epoch)
        epochs_later = sorted({0, expert_epochs})

        def pairs(host: random.Random) -> Tensor:
            picks = [(host.randrange(len(self)), host.randint(0, last)) for _ in range(count)]
            return self._snapshots(picks, epochs_later, randomness.device.device)

        drawn = randomness.tensor(pairs)
        return Draw(drawn[0], drawn[-1])

    def _snapshots(self, picks: Sequence[tuple[int, int]], epochs_later: Sequence[int], device: torch.device) -> Tensor:
        """Those of (expert, epoch), each so many epochs later: (len(epochs_later), len(picks), parameters)."""
        if device not in self._resident:
            self._resident[device] = ResidentSnapshots(device)
        wanted = [(expert, epoch + later) for later in epochs_later for expert, epoch in picks]
        for expert, epoch in picks:
            self._require_moved(expert, epoch, epoch + epochs_later[-1])
        return self._resident[device].of(wanted, self.snapshot).view(len(epochs_later), len(picks), -1)

    def _require_moved(self, expert: int, epoch: int, later: int) -> None:
        """Refuse two equal snapshots on the host; each pair is looked at once, those on a device never."""
        if epoch == later or (expert, epoch, later) in self._moved:
            return
        one, other = self.snapshot(expert, epoch), self.snapshot(expert, later)
        if not one.is_cuda and torch.equal(one, other):
            raise InputError(
                "An expert did not move between the two snapshots; draw them further apart with 'expert_epochs'."
            )
        self._moved.add((expert, epoch, later))


class ResidentSnapshots:
    """Snapshots that were drawn before, kept on a GPU while a quarter of its free memory holds them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._room = torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 0
        self._kept: dict[tuple[int, int], Tensor] = {}

    def of(self, wanted: Sequence[tuple[int, int]], snapshot: Callable[[int, int], Tensor]) -> Tensor:
        """Those of (expert, epoch), one after another, on the device."""
        return torch.stack([self._one(each, snapshot) for each in wanted])

    def _one(self, wanted: tuple[int, int], snapshot: Callable[[int, int], Tensor]) -> Tensor:
        """The copy to a GPU goes on while the host does something else."""
        if wanted in self._kept:
            return self._kept[wanted]
        found = snapshot(*wanted)
        if self._device.type != "cuda" or found.is_cuda:
            return found.to(self._device)
        brought = found.pin_memory().to(self._device, non_blocking=True)
        if self._room >= brought.nbytes:
            self._room -= brought.nbytes
            self._kept[wanted] = brought
        return brought


class StoredSnapshots:
    """One expert's file, memory-mapped."""

    def __init__(self, path: Path, snapshots: int, size: int) -> None:
        self._path = path
        try:
            with naming(path):
                file = TensorFile.open(path)
                EXPERT_DOCUMENT.check(file.document, "its metadata")
                check_headers(file.headers, EXPERT_ARRAYS, {"epochs + 1": snapshots, "parameters": size})
            self._slice = safe_open(path, framework="pt").get_slice("snapshots")
        except (FileFormatError, SafetensorError, OSError) as error:
            reason = str(error).rstrip(".")
            raise FileFormatError(f"An expert cannot be used ({reason}); delete its file and train it again.") from None

    def __len__(self) -> int:
        length: int = self._slice.get_shape()[0]
        return length

    def __getitem__(self, epoch: int) -> Tensor:
        snapshot: Tensor = self._slice[epoch]
        if not math.isfinite(float(snapshot.sum())):
            raise FileFormatError(
                f"The expert '{self._path}' holds values that are not finite; delete its file and train it again."
            )
        return snapshot


@dataclass(eq=False)
class ExpertStore:
    """A folder of experts that can be added to."""

    folder: Path
    network: Network
    trained_on: TrainedOn
    settings: ExpertSettings
    private: PrivateTraining | None = None
    inherited: Guarantee | None = None
    """Of data that have one."""

    @property
    def guarantee(self) -> Guarantee | None:
        """That of private training, or that of the data."""
        return self.inherited if self.private is None else self.private.guarantee

    @classmethod
    def create_or_open(
        cls,
        folder: str | os.PathLike[str],
        network: Network,
        trained_on: TrainedOn,
        settings: ExpertSettings,
        private: PrivateTraining | None = None,
        inherited: Guarantee | None = None,
    ) -> ExpertStore:
        """The store in ``folder``, which must be of this kind of expert if it already is one.

        Private experts that are already there keep their guarantee; more of them than it is for would break it.
        """
        folder = make_folder(folder)
        store = cls(folder, network, trained_on, settings, private, inherited)
        path = folder / "store.json"
        if path.exists():
            found = _read_description(folder)
            if "budget" in found and "guarantee" not in found:
                raise FileFormatError(f"'{path}' has a budget but no guarantee; restore it, or train them anew.")
            _require_same(folder, found, store._description())
            if private is not None:
                kept = Guarantee.from_json(found["guarantee"])
                return cls(folder, network, trained_on, settings, private._replace(guarantee=kept))
        else:
            write_json(path, store._description())
        return store

    def renew_release(self) -> None:
        """Call the release of private experts another one than before: some of its noise is about to be drawn anew."""
        if self.private is not None:
            self.private = self.private._replace(guarantee=self.private.guarantee.renewed())
            write_json(self.folder / "store.json", self._description())

    @classmethod
    def open(cls, folder: str | os.PathLike[str], network: AnyNetwork | None = None) -> ExpertStore:
        """An existing store; ``network`` is needed for one that no registered name builds again."""
        folder = Path(folder)
        description = _read_description(folder)
        recorded = description["network"]
        spec = spec_from_json(recorded)
        trained_on = TrainedOn(description["dataset"], description["data"])
        try:
            settings = build_settings(ExpertSettings, description["settings"], "The training of experts")
        except InputError as error:
            raise FileFormatError(f"'{folder}/store.json' cannot be used: {error}") from None
        found = from_spec(spec) if network is None else as_network(network, spec.shape, spec.classes)
        if found.fingerprint != recorded["fingerprint"]:
            raise InputError(
                f"The experts in '{folder}' are of another network than '{found.spec}' is now; give the network that "
                "they were trained with."
            )
        recorded_guarantee = description.get("guarantee")
        guarantee = None if recorded_guarantee is None else Guarantee.from_json(recorded_guarantee)
        return cls(folder, found, trained_on, settings, inherited=guarantee)

    def present(self) -> list[int]:
        """Numbers of the experts that are here."""
        names = (_EXPERT_FILE.fullmatch(path.name) for path in self.folder.glob("expert-*.safetensors"))
        return sorted(int(name[1]) for name in names if name)

    def missing(self, count: int) -> list[int]:
        """Numbers of the experts still to be trained to have the first ``count``."""
        present = set(self.present())
        return [number for number in range(count) if number not in present]

    def add(self, number: int, snapshots: Tensor) -> None:
        """Store the trajectory (epochs + 1, parameters) of one expert."""
        write_tensors(self._path(number), {"snapshots": snapshots}, {"expert": number})

    def experts(self, count: int | None = None) -> Experts:
        """The stored experts (the first ``count`` of them), for drawing."""
        numbers = self.present()[:count]
        if not numbers:
            raise FileFormatError(
                f"The experts folder '{self.folder}' is empty; train some with 'bpc experts --out {self.folder}'."
            )
        snapshots, size = self.settings.epochs + 1, self.network.size
        trajectories = [StoredSnapshots(self._path(number), snapshots, size) for number in numbers]
        return Experts(self.network, self.trained_on, self.settings, trajectories, self.guarantee)

    def _path(self, number: int) -> Path:
        return self.folder / f"expert-{number:04d}.safetensors"

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "dataset": self.trained_on.name,
            "data": self.trained_on.fingerprint,
            "network": self.network.spec.as_json() | {"fingerprint": self.network.fingerprint},
            "settings": asdict(self.settings),
            **(
                {}
                if self.private is None
                else {"budget": asdict(self.private.budget) | {"clipping": self.private.clipping}}
            ),
            **({} if self.guarantee is None else {"guarantee": self.guarantee.as_json()}),
        }


def load_experts(folder: str | os.PathLike[str], network: AnyNetwork | None = None) -> Experts:
    """Experts for drawing, from a folder.

    Args:
        folder: Where ``train_experts`` put them.
        network: The network that they were trained with, if it is not one that a registered name builds.
    """
    return ExpertStore.open(folder, network).experts()


def require_experts_for(experts: Experts, data: Dataset, network: Network | None = None) -> None:
    """Experts of other data or of another network cannot stand for this posterior."""
    private = experts.guarantee is not None and data.guarantee is None
    if private:
        require_public(data)
    if experts.trained_on.fingerprint != TrainedOn.of(data, private).fingerprint:
        raise InputError(
            f"These experts were trained on other data ('{experts.trained_on.name}') than the training data of "
            f"'{data.name}' given here; train experts on exactly these data. Experts of all data would leak what a "
            "held-out split hides."
        )
    if network is not None and experts.network.fingerprint != network.fingerprint:
        raise InputError(
            f"These experts are of the network '{experts.network.spec}', not '{network.spec}'; "
            "give experts of that network, or name no network."
        )


def _read_description(folder: Path) -> dict[str, Any]:
    if not (folder / "store.json").is_file():
        raise FileFormatError(f"There are no experts in '{folder}'; train some with 'bpc experts --out {folder}'.")
    description: dict[str, Any] = read_json(folder / "store.json", ANY_OBJECT)
    if description.get("format") != FORMAT or description.get("version") != FORMAT_VERSION:
        raise FileFormatError(
            f"'{folder}/store.json' does not describe experts that this version can read; delete the folder, or choose "
            "another, and train them again."
        )
    with naming(folder / "store.json"):
        DESCRIPTION.check(description, "it")
    return description


def _require_same(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    defaults = {"settings": asdict(ExpertSettings())}
    for key in ("data", "network", "settings", "budget"):
        there, asked = found.get(key), wanted.get(key)
        if key in defaults and isinstance(there, Mapping):
            there = {**defaults[key], **there}  # an older store lacks what was a setting only later
        if there != asked:
            raise InputError(
                f"The experts in '{folder}' were trained with another {key} ({there}, not {asked}); "
                "use another folder, or the same settings to add to this one."
            )
    if "budget" in wanted and _spending(found) != _spending(wanted):
        raise InputError(
            f"The budget of the private experts in '{folder}' is for another number of them, and more would break "
            "their guarantee; use another folder, or ask for as many as before."
        )


def _spending(description: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What the releases of a private store are, and how many steps each has."""
    return [(release["what"], release["steps"]) for release in description["guarantee"]["releases"]]
