"""How the points of a coreset are learned."""

from __future__ import annotations

from dataclasses import dataclass

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.settings import RATE, SCALE, SEED, SHARE, TEMPERATURE, Range, check_ranges, counted, setting

OPTIMISERS = ("sgd", "adam")


@dataclass(frozen=True)
class ConstructionSettings:
    """How the points are learned: by SGD, x <- x - learning_rate * grad (with momentum), or by Adam.

    With ``averaging`` b > 0 the coreset is the average of its iterates x_t with weights that fall by b per iteration,
    a_t = b_t a_{t-1} + (1 - b_t) x_t,  b_t = min(b, t / (t + 10)),  which takes the noise of the last ones out.
    With ``annealing`` c > 0 all learning rates are multiplied by min(1, (n - t) / (c n)) in iteration t = 0 .. n-1:
    they fall towards zero over the last part c of the iterations.
    """

    ipc: int = setting(1, "Images per class.", within=counted(1e6))
    iterations: int = setting(1000, "Iterations of the construction.", within=counted(1e9))
    learning_rate: float = setting(100.0, "Learning rate of the images.", within=RATE)
    momentum: float = setting(0.0, "Momentum of SGD on the images.", within=SHARE)
    optimiser: str = setting("sgd", "Of the images: sgd or adam.")
    averaging: float = setting(
        0.0, "Return an average of the iterates that forgets at this rate, e.g. 0.99.", within=SHARE
    )
    annealing: float = setting(
        0.0, "Last part of the iterations, in which learning rates fall to zero, e.g. 0.5.", within=Range(0, 1)
    )
    initialisation: str = setting(
        "random", "Selection of real images that the construction starts from, or noise or faint-noise."
    )
    formation: int = setting(
        1,
        "Tiles along each side of a stored image: 2 keeps four images of half the side in one, enlarged when used.",
        within=counted(16),
    )
    augment: bool = setting(True, "Augment images, or see them as they are.")
    mixed_kinds: bool = setting(
        False,
        "Each image draws its own kind of augmentation, or all of a step the same.",
        option="--mixed-kinds/--one-kind",
    )
    weights: str = setting("full", "full: weights sum to the size of the full data; unit: each point counts once.")
    learn_labels: bool | None = setting(
        None, "Learn soft labels too; default: only ld does.", option="--learn-labels/--keep-labels"
    )
    learn_weights: bool | None = setting(
        None, "Learn the points' weights; default: only psvi does.", option="--learn-weights/--keep-weights"
    )
    label_learning_rate: float = setting(1.0, "Learning rate of the labels, where they are learned.", within=RATE)
    weight_learning_rate: float = setting(0.1, "Learning rate of the weights, where they are learned.", within=RATE)
    temperature: float = setting(
        1.0,
        "Posterior temperature; 1 is Bayes, less is colder.",
        within=TEMPERATURE,
        own_option="--construction-temperature",
    )
    prior_scale: float = setting(1.0, "Standard deviation of the Gaussian prior.", within=SCALE)
    seed: int = setting(0, "Seed of everything random.", within=SEED)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.optimiser not in OPTIMISERS:
            raise InputError(f"The optimiser must be one of {', '.join(OPTIMISERS)}; got '{self.optimiser}'.")
        if self.weights not in ("full", "unit"):
            raise InputError(f"Weights must be 'full' or 'unit'; got '{self.weights}'.")

    @property
    def iterations_at_full_rate(self) -> int:
        """How many iterations from the first on the learning rates have not begun to fall."""
        return int((1 - self.annealing) * self.iterations)
