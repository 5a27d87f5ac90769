"""The tensors being learned, their optimiser, and what was recorded on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocoresets._io.schema import Mismatch
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods import GradientMethod, Problem
from pseudocoresets.methods.method import StateShape

ADAM_DECAYS = (0.9, 0.99)
AVERAGING_DELAY = 10
SMALLEST_HYPERPARAMETER = 1e-8
"""Numbers that a method learns stay positive."""
DIVERGED_ENERGY = 1e4
"""Energy per datum (nats) above which a construction is called diverged; a uniform guess has log(classes)."""
HYPERPARAMETER = "hyperparameter "
SEPARATOR = "/"


class Diverged(Exception):
    """The energy left what is sensible."""


@dataclass(frozen=True)
class LearnerState:
    """All that a later process needs to go on from an iteration."""

    leaves: Mapping[str, Tensor]
    """What is learned: the free tensors of the points, and hyper-parameters."""
    averages: Mapping[str, Tensor]
    optimiser: Mapping[str, Mapping[str, Tensor]]
    """The optimiser's memory of each leaf."""
    method: Mapping[str, Tensor]
    """What the method carries from one iteration to the next."""
    records: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    """A row of terms for each iteration."""

    @property
    def iteration(self) -> int:
        return len(self.records)

    def tensors(self) -> dict[str, Tensor]:
        """The same as one flat mapping, on the host."""
        flat: dict[str, Tensor] = {"records": self.records}
        for name in ("leaves", "averages", "method"):
            flat |= {f"{name}{SEPARATOR}{key}": tensor.cpu() for key, tensor in getattr(self, name).items()}
        for leaf, memory in self.optimiser.items():
            flat |= {SEPARATOR.join(("optimiser", leaf, key)): tensor.cpu() for key, tensor in memory.items()}
        return flat

    @classmethod
    def from_tensors(cls, flat: Mapping[str, Tensor]) -> LearnerState:
        """The state whose ``tensors()`` these are."""
        parts: dict[str, Any] = {entry.name: {} for entry in fields(cls)} | {"records": flat["records"]}
        for name, tensor in flat.items():
            part, *keys = name.split(SEPARATOR)
            if part == "optimiser":
                parts[part].setdefault(keys[0], {})[keys[1]] = tensor
            elif keys:
                parts[part][keys[0]] = tensor
        return cls(**parts)


class Evaluated(NamedTuple):
    """What one iteration finds: a gradient for each leaf, None for one that the loss does not see, and its record."""

    gradients: tuple[Tensor | None, ...]
    record: Tensor


class Learner:
    """Steps the free tensors of the points against the gradient of a method's loss.

    With learning rates r, annealed in the last part c of n iterations, iteration t = 0 .. n-1 uses
    r min(1, (n - t) / (c n)).
    """

    def __init__(
        self, form: Parameterisation, method: GradientMethod, settings: ConstructionSettings, device: torch.device
    ) -> None:
        self.device = device
        self._settings = settings
        self._form = replace(
            form, start=_on(form.start, device), scale=None if form.scale is None else form.scale.to(device)
        )
        free = {name: tensor.detach().clone() for name, tensor in self._form.initial().items()}
        learned = method.hyperparameters()
        self._leaves = free | {
            HYPERPARAMETER + name: self._form.start.x.new_tensor(each.value) for name, each in learned.items()
        }
        for leaf in self._leaves.values():
            leaf.requires_grad_()
        rates = {
            "x": settings.learning_rate,
            "y": settings.label_learning_rate,
            "weights": settings.weight_learning_rate,
        }
        rates |= {HYPERPARAMETER + name: each.learning_rate for name, each in learned.items()}
        self._rates = [rates[name] for name in self._leaves]
        self._optimiser = _optimiser(list(self._leaves.values()), self._rates, settings)
        self._averages = {name: tensor.clone() for name, tensor in free.items()} if settings.averaging else {}
        self._method_state: dict[str, Tensor] = {}
        self._evaluate: Callable[[Randomness], Evaluated] | None = None
        self._records = torch.zeros(0, 0, dtype=torch.float64)
        self._pending: list[Tensor] = []
        self._energies: tuple[int, ...] = ()
        self.record_names: list[str] = []
        self.sound = self.state()
        """The last state that was found finite and sensible."""
        self.before_annealing: LearnerState | None = None
        """The last sound state before learning rates began to fall; a longer run goes on from there."""

    @property
    def iteration(self) -> int:
        return len(self._records) + len(self._pending)

    def learned_points(self) -> Points:
        """The answer, as it is stored: the points, or the average of their iterates, without a graph."""
        leaves = self._leaves | self._averages
        return self._with_own(self._form.stored(leaves), leaves).detached()

    def _with_own(self, points: Points, leaves: Mapping[str, Tensor]) -> Points:
        """With the method's hyper-parameters and state."""
        hyperparameters = {
            name.removeprefix(HYPERPARAMETER): leaf for name, leaf in leaves.items() if name.startswith(HYPERPARAMETER)
        }
        return replace(points, hyperparameters=hyperparameters, state=self._method_state)

    def step(self, method: GradientMethod, problem: Problem, randomness: Randomness) -> None:
        if self._evaluate is None:
            work = partial(self._differentiated, method, problem)
            self._evaluate = problem.backend.repeated(work) if method.repeats else work
        evaluated = self._evaluate(randomness)
        for leaf, gradient in zip(self._leaves.values(), evaluated.gradients, strict=True):
            leaf.grad = gradient
        self._anneal()
        self._optimiser.step()
        self._keep_hyperparameters_positive()
        self._pending.append(evaluated.record.clone())
        self._average()

    def _differentiated(self, method: GradientMethod, problem: Problem, randomness: Randomness) -> Evaluated:
        """The loss's gradients and record at the points as they are; the method's state is moved on."""
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in self._leaves.items()}
        loss = method.loss(self._with_own(self._form.points(leaves), leaves), problem, randomness)
        gradients = torch.autograd.grad(loss.value, list(leaves.values()), allow_unused=True)
        self._keep_state({name: tensor.detach() for name, tensor in loss.state.items()})
        terms = {"loss": loss.value.detach()} | dict(loss.terms)
        self.record_names = list(terms)
        self._energies = tuple(index for index, name in enumerate(terms) if name in loss.energies)
        return Evaluated(gradients, torch.stack([value.to(torch.float64) for value in terms.values()]))

    def _keep_state(self, state: dict[str, Tensor]) -> None:
        """In the tensors that hold it already, where they are of the same kinds: the iteration may be captured."""
        kinds = [
            {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in each.items()}
            for each in (state, self._method_state)
        ]
        if kinds[0] != kinds[1]:
            self._method_state = {name: tensor.clone() for name, tensor in state.items()}
            return
        for name, tensor in state.items():
            self._method_state[name].copy_(tensor)

    def _keep_hyperparameters_positive(self) -> None:
        with torch.no_grad():
            for name, leaf in self._leaves.items():
                if name.startswith(HYPERPARAMETER):
                    leaf.clamp_(min=SMALLEST_HYPERPARAMETER)

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
        self._records = torch.cat([self._records, recorded]) if len(self._records) else recorded
        finite = all(bool(torch.isfinite(values).all()) for values in (recorded, *self._leaves.values()))
        energies = recorded[:, list(self._energies)]
        if not finite or (energies.numel() and float(energies.abs().max()) > DIVERGED_ENERGY):
            raise Diverged
        self.sound = self.state()
        if self.iteration <= self._settings.iterations_at_full_rate:
            self.before_annealing = self.sound

    def state(self) -> LearnerState:
        """A copy of all that is learned, averaged, kept as state and recorded."""
        return LearnerState(
            leaves={name: leaf.detach().clone() for name, leaf in self._leaves.items()},
            averages={name: average.clone() for name, average in self._averages.items()},
            optimiser={
                name: {
                    key: value.detach().clone()
                    for key, value in self._optimiser.state[leaf].items()
                    if value is not None
                }
                for name, leaf in self._leaves.items()
            },
            method={name: tensor.clone() for name, tensor in self._method_state.items()},
            records=self._records,
        )

    def restore(self, state: LearnerState) -> None:
        """Go on, or back, to a state."""
        with torch.no_grad():
            for name, leaf in self._leaves.items():
                leaf.copy_(state.leaves[name])
                memory = state.optimiser.get(name, {})
                self._optimiser.state[leaf] = {
                    key: tensor.to("cpu" if key == "step" else self.device, copy=True) for key, tensor in memory.items()
                }
            for name, average in self._averages.items():
                average.copy_(state.averages[name])
        self._method_state = {name: tensor.to(self.device, copy=True) for name, tensor in state.method.items()}
        self._evaluate = None
        self._records = state.records
        self._pending.clear()
        self.sound = self.state()

    def require_own(self, state: LearnerState, method_shapes: Mapping[str, StateShape] | None = None) -> None:
        """Refuse a state of other tensors than this learner's, or than its method says it has."""
        own = self.state()
        _require_alike("learned", own.leaves, state.leaves)
        _require_alike("averaged", own.averages, state.averages)
        for name, leaf in own.leaves.items():
            memory = state.optimiser.get(name, {})
            if set(memory) not in (set(), set(self._memory_names)):
                raise Mismatch(f"its optimiser remembers something else of '{name}'")
            _require_alike("remembered", {key: torch.zeros(()) if key == "step" else leaf for key in memory}, memory)
        if method_shapes is None:
            return
        for name, tensor in state.method.items():
            shape, known = tuple(tensor.shape), method_shapes.get(name)
            if known is None:
                raise Mismatch(f"the method has no '{name}'")
            sides = zip(shape, known, strict=False)
            if len(shape) != len(known) or any(wanted not in (side, None) for side, wanted in sides):
                raise Mismatch(f"the method's '{name}' is {shape}, not {known}")

    @property
    def _memory_names(self) -> tuple[str, ...]:
        """What the optimiser remembers of each leaf once it has made a step."""
        if self._settings.optimiser == "adam":
            return ("step", "exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self._settings.momentum else ()

    def history(self) -> list[dict[str, float]]:
        """What was recorded, one mapping for each iteration."""
        rows = self._records.tolist()
        return [{"iteration": i + 1} | dict(zip(self.record_names, row, strict=True)) for i, row in enumerate(rows)]


def _require_alike(what: str, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    if set(own) != set(given):
        raise Mismatch(f"it has other {what} tensors than this run")
    for name, tensor in own.items():
        if (tensor.shape, tensor.dtype) != (given[name].shape, given[name].dtype):
            raise Mismatch(
                f"the {what} '{name}' is {tuple(given[name].shape)} {given[name].dtype}, not {tuple(tensor.shape)} "
                f"{tensor.dtype}"
            )


def _on(points: Points, device: torch.device) -> Points:
    return replace(points, x=points.x.to(device), y=points.y.to(device), weights=points.weights.to(device))


def _optimiser(leaves: list[Tensor], rates: list[float], settings: ConstructionSettings) -> torch.optim.Optimizer:
    groups = [{"params": [leaf], "lr": rate} for leaf, rate in zip(leaves, rates, strict=True)]
    if settings.optimiser == "adam":
        return torch.optim.Adam(groups, betas=ADAM_DECAYS)
    return torch.optim.SGD(groups, momentum=settings.momentum)
