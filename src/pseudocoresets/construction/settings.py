"""How the points of a coreset are learned."""

from __future__ import annotations

from dataclasses import dataclass

from pseudocoresets.core.errors import InputError

OPTIMISERS = ("sgd", "adam")


@dataclass(frozen=True)
class ConstructionSettings:
    """How the points are learned: by SGD, x <- x - learning_rate * grad (with momentum), or by Adam.

    With ``averaging`` b > 0 the coreset is the average of its iterates x_t with weights that fall by b per iteration,
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

    @property
    def iterations_at_full_rate(self) -> int:
        """How many iterations from the first on the learning rates have not begun to fall."""
        return int((1 - self.annealing) * self.iterations)
