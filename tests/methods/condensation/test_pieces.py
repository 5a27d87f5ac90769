"""The pieces of condensation that a device captures: the same work with other tensors and draws, decided beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from condensation_problems import hard_points, problem_with
from methods_problems import network_points

from pseudocoresets.backends import PlainBackend
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods import FeatureAlignment, GradientMatching, GradientMethod, Points

iteration: Any = pytest.importorskip("pseudocoresets.backends.fused.iteration", exc_type=ImportError)
T = TypeVar("T")


class WithoutHost(PlainBackend):
    """Work is repeated as a captured graph is: what the host draws is given to it, and it may decide nothing there."""

    captures = True

    def __init__(self) -> None:
        self.kept: list[object] = []

    def repeated(self, work: Callable[[Randomness], T]) -> Callable[[Randomness], T]:
        self.kept.append(work)
        slots: list[Any] = []

        def run(randomness: Randomness) -> T:
            if not slots:
                work(iteration.RecordedRandomness(random.Random(0), torch.Generator(), slots))
            for slot in slots:
                slot.tensor.copy_(slot.draw(randomness.host))
            return work(iteration.CapturedRandomness(iteration.NoDecisions(), randomness.device, iter(slots)))

        return run


@pytest.mark.parametrize(
    ("method", "pieces"),
    [
        (GradientMatching(matches=3, epochs=2), 2),
        (GradientMatching(matches=1), 1),
        (GradientMatching(matches=3, epochs=2, gradient="differences:radius=0.1"), 2),
        (FeatureAlignment(settled=0.0, moved=0.05, most_epochs=14), 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [hard_points, network_points])
def test_captured_pieces_give_the_losses_and_gradients_of_the_plain_path(
    method: GradientMethod, pieces: int, given: Callable[[], Points]
) -> None:
    """With hard labels and with soft ones that are learned; points move between iterations, as in a construction."""
    found: list[list[torch.Tensor]] = []
    backend = WithoutHost()
    for each in (PlainBackend(), backend):
        problem, points, randomness = replace(problem_with(), backend=each), given(), Randomness.for_purpose(0)
        found.append([])
        for number in range(5):
            randomness.reseed(number)
            points = replace(points, x=points.x.detach().requires_grad_())
            loss = method.loss(points, problem, randomness)
            (gradient,) = torch.autograd.grad(loss.value, points.x)
            found[-1] += [loss.value.detach()[None], gradient.flatten()]
            points = replace(points, x=points.x - 0.1 * gradient, state=loss.state)
    torch.testing.assert_close(torch.cat(found[1]), torch.cat(found[0]), rtol=1e-12, atol=1e-12)
    assert len(backend.kept) == pieces
