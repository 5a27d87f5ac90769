"""The tensors being learned, their optimiser, and what was recorded on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.coreset import Coreset
from pseudocoresets.methods import Method, Problem

ADAM_DECAYS = (0.9, 0.99)
AVERAGING_DELAY = 10
CARRIED = "carried."
SMALLEST_EXTRA = 1e-8
"""Numbers that a method learns stay positive."""
DIVERGED_ENERGY = 1e4
"""Energy per datum (nats) above which a construction is called diverged; a uniform guess has log(classes)."""


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
            raise Diverged
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


def _learns_weights(method: Method, settings: ConstructionSettings) -> bool:
    if settings.learn_weights is None:
        return method.learns_weights
    return settings.learn_weights


def _label_logits(start: Coreset) -> Tensor:
    """Logits whose softmax puts about 99 % on the hard label, or that of soft labels already there."""
    if start.labels.is_floating_point():
        return start.labels.clamp_min(1e-6).log()
    classes = len(start.classes)
    return torch.nn.functional.one_hot(start.labels, classes).float() * float(
        torch.tensor(99.0 * max(1, classes - 1)).log()
    )


class Diverged(Exception):
    """The energy left what is sensible."""
