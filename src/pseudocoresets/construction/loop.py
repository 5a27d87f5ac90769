"""The one loop: ask the method for a loss, step the points against its gradient, checkpoint."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocoresets._io.files import read_tensors, remove_leftovers, write_tensors
from pseudocoresets.core.devices import PeakMemory, device_memory_error, resolve_device
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.errors import DivergenceError, FileFormatError, InputError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.coreset import Coreset, require_same_shape
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods import METHODS, Method, Points, Problem, RealData
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, NetworkSpec, build_network
from pseudocoresets.sources.experts import Experts, require_experts_for

OPTIMISERS = ("sgd", "adam")
ADAM_DECAYS = (0.9, 0.99)
AVERAGING_DELAY = 10
CHECK_INTERVAL = 10
CHECKPOINT_SECONDS = 5.0
CARRIED = "carried."
SMALLEST_EXTRA = 1e-8
"""Numbers that a method learns stay positive."""
DIVERGED_ENERGY = 1e4
"""Energy per datum (nats) above which a construction is called diverged; a uniform guess has log(classes)."""


@dataclass(frozen=True)
class ConstructionSettings:
    """How the points are learned: by SGD, x <- x - learning_rate * grad (with momentum), or by Adam.

    With ``averaging`` b > 0 the coreset is the average of its iterates x_t with weights that fall by b an iteration,
    a_t = b_t a_{t-1} + (1 - b_t) x_t,  b_t = min(b, t / (t + 10)),  which takes the noise of the last ones out.
    With ``annealing`` c > 0 all learning rates are multiplied by min(1, (n - t) / (c n)) in iteration t = 0 .. n-1:
    they fall towards zero over the last part c of the iterations.
    """

    ipc: int = 1
    iterations: int = 1000
    learning_rate: float = 100.0
    momentum: float = 0.0
    optimiser: str = "sgd"
    averaging: float = 0.0
    annealing: float = 0.0
    initialisation: str = "random"
    augment: bool = True
    mixed_kinds: bool = False
    """Whether each image draws its own kind of augmentation, rather than all of a step the same."""
    weights: str = "full"
    """``full``: weights sum to the size of the full data; ``unit``: each point counts once, as the paper prints."""
    learn_labels: bool = False
    learn_weights: bool | None = None
    """None: as the method has it, which is no for all but PSVI."""
    label_learning_rate: float = 1.0
    weight_learning_rate: float = 0.1
    temperature: float = 1.0
    prior_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ipc < 1:
            raise InputError(f"Images per class must be at least 1; got {self.ipc}.")
        if self.iterations < 1 or not self.learning_rate > 0:
            raise InputError("A construction needs at least one iteration and a positive learning rate.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"The momentum must lie between 0 and below 1; got {self.momentum}.")
        if not 0 <= self.averaging < 1:
            raise InputError(f"The averaging must lie between 0 and below 1; got {self.averaging}.")
        if not 0 <= self.annealing <= 1:
            raise InputError(f"The annealing is a part of the iterations, from 0 to 1; got {self.annealing}.")
        if self.optimiser not in OPTIMISERS:
            raise InputError(f"The optimiser must be one of {', '.join(OPTIMISERS)}; got '{self.optimiser}'.")
        if self.weights not in ("full", "unit"):
            raise InputError(f"Weights must be 'full' or 'unit'; got '{self.weights}'.")


@dataclass(frozen=True)
class Construction:
    """A finished construction: the coreset, what it started from, and what was recorded on the way."""

    coreset: Coreset
    initial: Coreset
    history: list[dict[str, float]]
    seconds_per_iteration: float = 0.0
    peak_memory: int = 0
    """Bytes: allocated on the device, or resident on the host where there is none."""
    checkpoint: Path | None = None
    """Where a later process would find this construction; it stays until ``discard_checkpoint``."""
    before: Construction | None = None
    """The construction whose coreset this one started from, if it belongs to the same job."""

    def discard_checkpoint(self) -> None:
        """Remove the checkpoint, and that of the construction before, once the coreset itself is safe."""
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)
        if self.before is not None:
            self.before.discard_checkpoint()


def construct(
    data: Dataset,
    experts: Experts | None,
    method: str | Method = "cd",
    ipc: int = 1,
    *,
    network: str | Network | None = None,
    method_options: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Coreset:
    """A pseudo-coreset of ``data`` with ``ipc`` images per class.

    ``method`` is a name (with ``method_options``) or any object with a ``loss``. ``settings`` are those of
    ``ConstructionSettings``. A method that needs no experts (``bptt``) takes None for them, and a ``network``. With
    ``checkpoint``, written every ``checkpoint_seconds``, a killed run goes on from there; ``initial`` continues from a
    saved coreset.
    """
    name = method if isinstance(method, str) else type(method).__name__
    built = build_method(method, method_options or {}) if isinstance(method, str) else method
    chosen = _settings(ipc, settings)
    made = run_construction(
        data,
        experts,
        name,
        built,
        chosen,
        network=network,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        initial=initial,
        device=device,
        progress=progress,
    )
    made.discard_checkpoint()
    return made.coreset


def run_construction(
    data: Dataset,
    experts: Experts | None,
    name: str,
    method: Method,
    settings: ConstructionSettings,
    *,
    network: str | Network | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    rescue: str | os.PathLike[str] | None = None,
    initial: Coreset | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> Construction:
    """The same with everything spelt out, and with the start, the history and the cost in the answer.

    The checkpoint stays until the caller, having saved the coreset, discards it. If the energy diverges, the last
    good coreset is written to ``rescue`` and takes the checkpoint's place.
    """
    if experts is not None:
        require_experts_for(experts, data.name)
    elif needs_experts(method):
        raise InputError(f"The method '{name}' needs experts; train some with 'bpc experts'.")
    used = network_for(experts, network, data)
    device = resolve_device(device)
    recorded = configuration(method, settings)
    if initial is None:
        start = real_coreset(data, settings, used.spec, name, recorded)
    else:
        start = _continued(initial, used.spec, name, settings.seed, recorded)
    require_same_shape(start, data)
    problem = _problem(data, experts, used, settings, device)
    learner = Learner(start, method, settings, device)
    fingerprint = _fingerprint(data, experts, used, name, method, settings, start)
    keeper = _CheckpointKeeper(checkpoint, checkpoint_seconds, fingerprint)
    keeper.restore(learner, settings.iterations)
    first, began = learner.iteration, time.monotonic()
    with PeakMemory(device) as memory:
        try:
            _learn(learner, method, problem, settings, keeper, progress or Silent(), name)
        except _Diverged:
            advice = _divergence_advice(learner, settings, name)
            raise DivergenceError(advice + _rescue(learner, start, rescue, keeper)) from None
    seconds = (time.monotonic() - began) / max(1, learner.iteration - first)
    return Construction(learner.coreset(start), start, learner.history(), seconds, memory.bytes, keeper.path)


def needs_experts(method: Method) -> bool:
    """Whether a method draws from experts; it does unless its ``needs_experts`` says otherwise."""
    return bool(getattr(method, "needs_experts", True))


def network_for(experts: Experts | None, network: str | Network | None, data: Dataset) -> Network:
    """The experts' network, or the one that is named where there are none."""
    if experts is not None:
        return experts.network
    if network is None:
        raise InputError("Without experts, say which network the coreset is for, such as network='convnet'.")
    return build_network(network, data.shape, len(data.classes)) if isinstance(network, str) else network


def real_coreset(
    data: Dataset,
    settings: ConstructionSettings,
    network: NetworkSpec | None,
    method: str,
    recorded: Mapping[str, Any] | None = None,
) -> Coreset:
    """Real images chosen by ``settings.initialisation``: where a construction starts, and the control."""
    index = SELECTIONS[settings.initialisation](data.train, settings.ipc, settings.seed)
    size = len(data.train)
    weights = uniform_weights(len(index), size) if settings.weights == "full" else torch.ones(len(index))
    return Coreset(
        images=data.transform(data.train.images[index]),
        labels=data.train.labels[index],
        weights=weights,
        transform=data.transform,
        classes=data.classes,
        data_size=size,
        source=data.name,
        method=method,
        seed=settings.seed,
        network=network,
        configuration=recorded or {"settings": asdict(settings)},
        flippable=data.flippable,
    )


def _continued(initial: Coreset, network: NetworkSpec, method: str, seed: int, recorded: Mapping[str, Any]) -> Coreset:
    """The points of ``initial`` as the start of another construction, which remembers how they were made."""
    origin = {"method": initial.method, "configuration": dict(initial.configuration)}
    return replace(initial, network=network, method=method, seed=seed, configuration={**recorded, "initial": origin})


def configuration(method: Method, settings: ConstructionSettings) -> dict[str, Any]:
    """What a coreset file records of how it was made."""
    options: dict[str, Any] = asdict(method) if is_dataclass(method) and not isinstance(method, type) else {}
    return {"settings": asdict(settings), "method": options}


def build_method(method: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with these options."""
    build = METHODS[method]
    _check_option_types(method, build, options)
    try:
        return build(**options)
    except TypeError as error:
        raise InputError(f"The method '{method}' does not take these options: {error}.") from None


def _check_option_types(name: str, build: Callable[..., Method], options: Mapping[str, Any]) -> None:
    """A whole number must not be given as anything else; it would fail only when it is used."""
    for option, parameter in inspect.signature(build).parameters.items():
        default, value = parameter.default, options.get(option)
        if type(default) is int and option in options and type(value) is not int:
            raise InputError(f"The option '{option}' of the method '{name}' is a whole number; got {value!r}.")


def _settings(ipc: int, settings: Mapping[str, Any]) -> ConstructionSettings:
    known = {entry.name for entry in fields(ConstructionSettings)}
    unknown = set(settings) - known
    if unknown:
        raise InputError(f"Unknown settings: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(known))}.")
    return ConstructionSettings(ipc=ipc, **settings)


def _problem(
    data: Dataset, experts: Experts | None, network: Network, settings: ConstructionSettings, device: torch.device
) -> Problem:
    model = Classifier(network, settings.prior_scale)

    @cache
    def real_data() -> RealData:
        return RealData(data.train.images.to(device), data.train.labels.to(device), data.transform.to(device))

    return Problem(
        energy=Energy(model, len(data.train), settings.temperature),
        experts=experts,
        real_data=real_data,
        augmentation=dsa(data.flippable, settings.mixed_kinds) if settings.augment else None,
    )


class _Snapshot(NamedTuple):
    """A learner at an iteration, with the number of record blocks it then had."""

    iteration: int
    records: int
    tensors: Mapping[str, Tensor]


class Learner:
    """The tensors being learned, their optimiser, and what was recorded."""

    def __init__(self, start: Coreset, method: Method, settings: ConstructionSettings, device: torch.device) -> None:
        self.iteration = 0
        self.device = device
        self._settings = settings
        self._weight_total = float(start.weights.sum())
        self._hard_labels = start.labels.to(device)
        self._fixed_weights = start.weights.to(device)
        self._leaves: dict[str, Tensor] = {"images": start.images.to(device).clone()}
        rates = {"images": settings.learning_rate}
        if settings.learn_labels:
            self._leaves["label_logits"] = _label_logits(start).to(device)
            rates["label_logits"] = settings.label_learning_rate
        if _learns_weights(method, settings):
            self._leaves["weight_logits"] = start.weights.clamp_min(1e-12).log().to(device)
            rates["weight_logits"] = settings.weight_learning_rate
        for name, extra in method.hyperparameters().items():
            self._leaves["extra." + name] = torch.tensor(extra.value, device=device)
            rates["extra." + name] = extra.learning_rate
        for leaf in self._leaves.values():
            leaf.requires_grad_()
        self._rates = list(rates.values())
        groups = [{"params": [leaf], "lr": rates[name]} for name, leaf in self._leaves.items()]
        self._optimiser = _optimiser(groups, settings)
        averaged = [name for name in self._leaves if settings.averaging and not name.startswith("extra.")]
        self._averages = {name: self._leaves[name].detach().clone() for name in averaged}
        self._carried: dict[str, Tensor] = {}
        self._record_names: list[str] = []
        self._records: list[Tensor] = []
        self._pending: list[Tensor] = []
        self._sound = self._snapshot()

    def points(self) -> Points:
        """The points as functions of what is learned: labels by a softmax, weights by one that keeps their sum."""
        return self._points_of(self._leaves)

    def _points_of(self, learned: Mapping[str, Tensor]) -> Points:
        labels, weights = self._hard_labels, self._fixed_weights
        if "label_logits" in learned:
            labels = learned["label_logits"].softmax(-1)
        if "weight_logits" in learned:
            weights = self._weight_total * learned["weight_logits"].softmax(0)
        hyperparameters = {
            name.removeprefix("extra."): leaf for name, leaf in learned.items() if name.startswith("extra.")
        }
        return Points(learned["images"], labels, weights, hyperparameters, self._carried)

    def step(self, method: Method, problem: Problem, randomness: Randomness) -> None:
        loss = method.loss(self.points(), problem, randomness)
        self._optimiser.zero_grad()
        loss.value.backward()
        self._carried = {name: tensor.detach() for name, tensor in loss.state.items()}
        self._anneal()
        self._optimiser.step()
        self._keep_extras_positive()
        self.iteration += 1
        self._average()
        terms = {"loss": loss.value.detach()} | dict(loss.terms)
        self._record_names = list(terms)
        self._pending.append(torch.stack([value.to(torch.float64) for value in terms.values()]))

    def _keep_extras_positive(self) -> None:
        with torch.no_grad():
            for name, leaf in self._leaves.items():
                if name.startswith("extra."):
                    leaf.clamp_(min=SMALLEST_EXTRA)

    def _anneal(self) -> None:
        iterations, part = self._settings.iterations, self._settings.annealing
        if part > 0:
            remaining = min(1.0, (iterations - self.iteration) / (part * iterations))
            for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
                group["lr"] = rate * remaining

    def _average(self) -> None:
        kept = min(self._settings.averaging, self.iteration / (self.iteration + AVERAGING_DELAY))
        for name, average in self._averages.items():
            average.lerp_(self._leaves[name].detach(), 1 - kept)

    def check(self) -> None:
        """Bring the pending records to the host and stop if the energy left what is sensible."""
        if not self._pending:
            return
        recorded = torch.stack(self._pending).cpu()
        self._pending.clear()
        self._records.append(recorded)
        finite = bool(torch.isfinite(recorded).all() and torch.isfinite(self._leaves["images"]).all())
        if not finite or float(recorded.abs().max()) > DIVERGED_ENERGY:
            raise _Diverged
        self._sound = self._snapshot()

    def return_to_sound(self) -> None:
        """Undo what was learned since the last check that passed."""
        self._put_back(self._sound)

    def state(self) -> dict[str, Tensor]:
        """Everything a later process needs to go on, on the host."""
        state = {name: tensor.cpu() for name, tensor in self._snapshot().tensors.items()}
        state["records"] = torch.cat(self._records) if self._records else torch.zeros(0, 0, dtype=torch.float64)
        return state

    def restore(self, state: Mapping[str, Tensor], iteration: int, record_names: list[str]) -> None:
        self._record_names = record_names
        self._records = [state["records"]] if iteration else []
        self._put_back(_Snapshot(iteration, len(self._records), state))
        self._sound = self._snapshot()

    def _snapshot(self) -> _Snapshot:
        """Copies of what is learned, of its averages, of what the method carries and of the optimiser's memory."""
        tensors = {"leaf." + name: leaf.detach().clone() for name, leaf in self._leaves.items()}
        tensors |= {"average." + name: average.clone() for name, average in self._averages.items()}
        tensors |= {CARRIED + name: carried.clone() for name, carried in self._carried.items()}
        for name, leaf in self._leaves.items():
            for key, value in self._optimiser.state[leaf].items():
                if value is not None:
                    tensors[f"optimiser.{key}.{name}"] = value.detach().clone()
        return _Snapshot(self.iteration, len(self._records), tensors)

    def _put_back(self, snapshot: _Snapshot) -> None:
        with torch.no_grad():
            for name, leaf in self._leaves.items():
                leaf.copy_(snapshot.tensors["leaf." + name])
                self._optimiser.state[leaf] = _optimiser_memory(snapshot.tensors, name, self.device)
            for name, average in self._averages.items():
                average.copy_(snapshot.tensors["average." + name])
        self._carried = {
            name.removeprefix(CARRIED): tensor.to(self.device, copy=True)
            for name, tensor in snapshot.tensors.items()
            if name.startswith(CARRIED)
        }
        self.iteration = snapshot.iteration
        del self._records[snapshot.records :]
        self._pending.clear()

    @property
    def record_names(self) -> list[str]:
        return self._record_names

    def history(self) -> list[dict[str, float]]:
        rows = torch.cat(self._records).tolist() if self._records else []
        return [{"iteration": i + 1} | dict(zip(self._record_names, row, strict=True)) for i, row in enumerate(rows)]

    def coreset(self, start: Coreset) -> Coreset:
        points = self._points_of(self._leaves | self._averages).detached()
        recorded = dict(start.configuration)
        if points.hyperparameters:
            recorded["learned"] = {name: float(value) for name, value in points.hyperparameters.items()}
        return Coreset(
            images=points.x.cpu(),
            labels=points.y.cpu(),
            weights=points.weights.cpu(),
            transform=start.transform,
            classes=start.classes,
            data_size=start.data_size,
            source=start.source,
            method=start.method,
            seed=start.seed,
            network=start.network,
            configuration=recorded,
            flippable=start.flippable,
        )


def _optimiser(groups: list[dict[str, Any]], settings: ConstructionSettings) -> torch.optim.Optimizer:
    if settings.optimiser == "adam":
        return torch.optim.Adam(groups, betas=ADAM_DECAYS)
    return torch.optim.SGD(groups, momentum=settings.momentum)


def _optimiser_memory(tensors: Mapping[str, Tensor], leaf: str, device: torch.device) -> dict[str, Tensor]:
    """What ``_snapshot`` kept of the optimiser for one leaf; Adam's counter stays on the host."""
    before, after = "optimiser.", "." + leaf
    kept = {
        name.removeprefix(before).removesuffix(after): tensor
        for name, tensor in tensors.items()
        if name.startswith(before) and name.endswith(after)
    }
    return {key: tensor.to("cpu" if key == "step" else device, copy=True) for key, tensor in kept.items()}


class _Diverged(Exception):
    pass


class _CheckpointKeeper:
    """Saves a learner's state every so often, and restores it, with the settings it belongs to."""

    def __init__(self, path: str | os.PathLike[str] | None, seconds: float, fingerprint: str) -> None:
        self.path = None if path is None else Path(path)
        self._seconds = seconds
        self._fingerprint = fingerprint
        self._saved = time.monotonic()

    def restore(self, learner: Learner, iterations: int) -> None:
        if self.path is None:
            return
        remove_leftovers(self.path)
        if not self.path.exists():
            return
        state, document = read_tensors(self.path)
        if document.get("settings") != self._fingerprint:
            raise FileFormatError(
                f"The checkpoint '{self.path}' belongs to a run with other settings; delete it, or repeat that run's "
                "arguments."
            )
        if document["iteration"] > iterations:
            raise InputError(
                f"The checkpoint '{self.path}' is already at iteration {document['iteration']}; ask for at least as "
                "many iterations, or delete it."
            )
        learner.restore(state, document["iteration"], document["records"])

    def save_if_due(self, learner: Learner) -> None:
        if time.monotonic() - self._saved >= self._seconds:
            self.save(learner)

    def save(self, learner: Learner) -> None:
        if self.path is not None:
            document = {
                "settings": self._fingerprint,
                "iteration": learner.iteration,
                "records": learner.record_names,
            }
            write_tensors(self.path, learner.state(), document)
        self._saved = time.monotonic()

    def discard(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _learn(
    learner: Learner,
    method: Method,
    problem: Problem,
    settings: ConstructionSettings,
    keeper: _CheckpointKeeper,
    progress: Progress,
    name: str,
) -> None:
    """Iterate to the end, checkpointing; an interrupted run keeps the last state that was found sound."""
    randomness = Randomness.for_purpose(settings.seed, "construct", device=learner.device)
    with task(progress, f"coreset by {name}", settings.iterations):
        progress.advance(learner.iteration)
        try:
            while learner.iteration < settings.iterations:
                randomness.reseed(settings.seed, "construct", learner.iteration)
                learner.step(method, problem, randomness)
                progress.advance()
                if learner.iteration % CHECK_INTERVAL == 0 or learner.iteration == settings.iterations:
                    learner.check()
                    keeper.save_if_due(learner)
        except KeyboardInterrupt:
            learner.return_to_sound()
            keeper.save(learner)
            raise
        except torch.OutOfMemoryError as error:
            learner.return_to_sound()
            keeper.save(learner)
            advice = "lower --ipc, the chains or the steps of the method; the same command goes on from its checkpoint"
            raise device_memory_error(f"an iteration of '{name}'", advice, error) from None
        keeper.save(learner)


def _rescue(learner: Learner, start: Coreset, path: str | os.PathLike[str] | None, keeper: _CheckpointKeeper) -> str:
    """Go back to the last state that was found sound, and keep it in a file if there is a place for one."""
    learner.return_to_sound()
    if path is None:
        return ""
    learner.coreset(start).save(path)
    keeper.discard()
    return f" The last good coreset, of iteration {learner.iteration}, is in '{path}'."


def _divergence_advice(learner: Learner, settings: ConstructionSettings, name: str) -> str:
    return (
        f"The energy diverged by iteration {learner.iteration} of '{name}'; lower the learning rate of the images "
        f"(now {settings.learning_rate:g}) or the step size of the chain."
    )


def _learns_weights(method: Method, settings: ConstructionSettings) -> bool:
    if settings.learn_weights is None:
        return bool(getattr(method, "learns_weights", False))
    return settings.learn_weights


def _label_logits(start: Coreset) -> Tensor:
    """Logits whose softmax puts about 99 % on the hard label, or that of soft labels already there."""
    if start.labels.is_floating_point():
        return start.labels.clamp_min(1e-6).log()
    classes = len(start.classes)
    return torch.nn.functional.one_hot(start.labels, classes).float() * float(
        torch.tensor(99.0 * max(1, classes - 1)).log()
    )


def _fingerprint(
    data: Dataset,
    experts: Experts | None,
    network: Network,
    name: str,
    method: Method,
    settings: ConstructionSettings,
    start: Coreset,
) -> str:
    """What must agree for a checkpoint to be continued; the number of iterations may grow."""
    chosen = {key: value for key, value in asdict(settings).items() if key != "iterations"}
    return json.dumps(
        {
            "dataset": data.name,
            "size": len(data.train),
            "experts": None if experts is None else asdict(experts.settings) | {"count": len(experts)},
            "network": network.spec.as_json(),
            "method": [name, configuration(method, settings)["method"]],
            "settings": chosen,
            "start": float(start.images.double().sum()),
        },
        sort_keys=True,
    )
