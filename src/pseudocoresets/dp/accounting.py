"""How much privacy noisy sums cost together, by Google's ``dp-accounting``.

It composes the distributions of the privacy loss numerically, and rounds them up: what it says is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.extras import installed_by
from pseudocoresets.dp.guarantee import EPSILON, Budget, Guarantee, Release

PACKAGE = "dp-accounting"
NOISE_TOLERANCE = 1e-3
"""Relative, of the noise that a budget allows."""
LOSS_STEP = 1e-4
"""Of the grid of privacy losses, for each unit of the budget's epsilon; a coarser one gives a larger epsilon."""


def spent(releases: Sequence[Release], delta: float, step: float = LOSS_STEP) -> float:
    """The smallest epsilon that the accountant can vouch for, of all releases together."""
    accounting = _accounting()
    relation = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = accounting.pld.PLDAccountant(relation, value_discretization_interval=step)
    for release in releases:
        noisy_sum = accounting.GaussianDpEvent(release.noise_multiplier)
        rate = release.sampling_rate
        event = noisy_sum if rate == 1 else accounting.PoissonSampledDpEvent(rate, noisy_sum)
        accountant.compose(event, release.steps)
    return float(accountant.get_epsilon(delta))


def calibrated(budget: Budget, examples: int, plan: Callable[[float], Release]) -> Guarantee:
    """The guarantee of ``plan(noise_multiplier)`` with the least noise that keeps to the budget."""
    budget.require_for(examples)

    def keeps(noise: float) -> bool:
        return spent([plan(noise)], budget.delta, LOSS_STEP * max(1.0, budget.epsilon)) <= budget.epsilon

    # Enough for all steps without sampling, by the textbook bound; searched from above, where the accountant is quick.
    textbook = math.sqrt(2 * math.log(1.25 / budget.delta)) / min(1.0, budget.epsilon)
    enough = textbook * math.sqrt(plan(textbook).steps)
    if not keeps(enough):
        raise InputError(f"No noise keeps so many steps to epsilon = {budget.epsilon:g}; take fewer, or a larger one.")
    while keeps(enough / 2):
        enough /= 2
    too_little = enough / 2
    while enough - too_little > NOISE_TOLERANCE * enough:
        middle = (enough + too_little) / 2
        enough, too_little = (middle, too_little) if keeps(middle) else (enough, middle)
    return Guarantee(budget.epsilon, budget.delta, accountant_name(), examples, (plan(enough),))


def combined(guarantees: Sequence[Guarantee]) -> Guarantee:
    """What holds for a result that was computed from several; a release that they share is counted once."""
    first = guarantees[0]
    releases = {release.identity: release for guarantee in guarantees for release in guarantee.releases}
    if len(releases) == len(first.releases):
        return first
    delta, every = max(guarantee.delta for guarantee in guarantees), tuple(releases.values())
    examples = max(guarantee.examples for guarantee in guarantees)
    epsilon = spent(every, delta)
    if epsilon not in EPSILON:
        raise InputError(
            f"Private results with epsilons of {', '.join(f'{each.epsilon:g}' for each in guarantees)} have one of "
            f"{epsilon:g} together, which must lie {EPSILON}; start from noise, or from a result of smaller epsilon."
        )
    return Guarantee(epsilon, delta, accountant_name(), examples, every)


def accountant_name() -> str:
    return f"{PACKAGE} {version(PACKAGE)}, privacy loss distributions"


def _accounting() -> Any:
    with installed_by("privacy", "Privacy is accounted for by the package dp-accounting"):
        import dp_accounting
        import dp_accounting.pld
    return dp_accounting
