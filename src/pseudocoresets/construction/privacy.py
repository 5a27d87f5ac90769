"""What a construction promises of the examples that it is made from, and what it may therefore ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pseudocoresets.core.errors import InputError
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.augmentation import AnyAugmentation
from pseudocoresets.data.dataset import Dataset, require_public
from pseudocoresets.dp import Budget, Guarantee, Release, calibrated, combined
from pseudocoresets.methods import GradientMethod
from pseudocoresets.sources.experts import Experts

NO_PRIVATE_SELECTION = "A selection of real images is not private, whatever the budget; use 'dm'."


def private_settings(budget: Budget | None) -> dict[str, Any]:
    """Settings of a private construction that are not given: a start from noise and, of a noisy release, Adam."""
    start = {"initialisation": "noise"}
    return start if budget is None else start | {"optimiser": "adam", "learning_rate": 0.05, "annealing": 0.5}


def are_secret(data: Dataset, experts: Experts | None, budget: Budget | None) -> bool:
    """Whether a construction has to protect the data that it is given."""
    promised = budget is not None or (experts is not None and experts.guarantee is not None)
    return promised and data.guarantee is None


@dataclass(frozen=True)
class Terms:
    """A guarantee, or none, and whether the data it protects may still be read by a method."""

    guarantee: Guarantee | None = None
    data_are_secret: bool = False
    """Whether the data are what the guarantee protects; synthetic data that were made with it may be read by all."""
    method_releases: bool = False
    """Whether the method's own reading of the data is paid for."""

    def require_readable(self) -> None:
        """Refuse a method that asks for the data themselves where only private experts may."""
        if self.data_are_secret and not self.method_releases:
            raise InputError(
                "This method reads the training data themselves, which would break the guarantee of the private "
                "experts; use one that learns from experts alone, such as cd, fkl, wasserstein or mtt."
            )

    def going_on_from(self, initial: Coreset) -> Guarantee | None:
        """What holds for a coreset that starts from another."""
        if self.guarantee is None:
            return None
        if initial.guarantee is None:
            raise InputError("The coreset to go on from was made without differential privacy; start from noise.")
        return combined([self.guarantee, initial.guarantee])


NOTHING_PROMISED = Terms()


def private_terms(
    data: Dataset,
    experts: Experts | None,
    method: GradientMethod,
    budget: Budget | None,
    augmentation: AnyAugmentation | None = None,
) -> tuple[Terms, GradientMethod]:
    """The terms of a construction, and the method in the form that keeps them.

    Data with a guarantee pass it on. Else a budget is spent by the method's own release; without one, private experts
    bring their guarantee with them.
    """
    if data.guarantee is not None:
        if budget is not None:
            raise InputError("These data are private already, and so is all that is learned from them; give no budget.")
        return Terms(data.guarantee), method
    inherited = None if experts is None else experts.guarantee
    if budget is None and inherited is None:
        return NOTHING_PROMISED, method
    require_public(data)
    if budget is None:
        return Terms(inherited, data_are_secret=True), method
    if augmentation is not None:
        raise InputError("Private images are read with the library's own augmentation, which never mixes them.")
    method.private(1.0)  # before the accountant is asked
    what, size = f"class sums of features, for {method.name}", len(data.train)
    spent = calibrated(budget, size, lambda noise: Release(what, noise))
    terms = Terms(spent, data_are_secret=True, method_releases=True)
    return terms, method.private(spent.releases[0].noise_multiplier)
