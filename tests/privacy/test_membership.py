"""LiRA where its power has a closed form, and where there is nothing to find."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from pseudocoresets.core.seeds import generator_for
from pseudocoresets.privacy.membership import (
    attack_each_shadow,
    attack_file,
    likelihood_ratio,
    loss_threshold,
    sureness,
)
from pseudocoresets.privacy.shadows import half

IMAGES = 2000


def memberships(shadows: int) -> Tensor:
    labels = torch.arange(IMAGES) % 2
    return torch.stack([half(labels, number, 0) for number in range(shadows)])


def gaussian_shadows(shadows: int, effect: float, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """phi = a_i + effect [in] + N(0, 1) with a_i of each image, and a shift of each shadow as a whole."""
    inside, generator = memberships(shadows), generator_for(0, "shadows", shadows)
    difficulty = 5 * torch.randn(IMAGES, generator=generator)
    noise = torch.randn(shadows, IMAGES, generator=generator)
    return difficulty + effect * inside + noise + shift * torch.randn(shadows, 1, generator=generator), inside


def deviation(members: int, others: int) -> float:
    """Of an AUC where the two are alike: sqrt((m + n + 1) / (12 m n))."""
    return math.sqrt((members + others + 1) / (12 * members * others))


@pytest.mark.parametrize("effect", [0.0, 1.0, 2.0])
def test_lira_has_the_power_of_the_likelihood_ratio(effect: float) -> None:
    """For equal variances the best attack knows a_i and has AUC = Phi(effect / sqrt 2); a threshold alone does not."""
    values, inside = gaussian_shadows(401, effect)
    sure, members = values[-1].double(), inside[-1]
    found = attack_file(sure, members, values[:-1].double(), inside[:-1])
    error = 4 * deviation(IMAGES // 2, IMAGES // 2)
    # With 200 shadows on each side the means err by 0.07 deviations, which costs less than the error of the AUC itself.
    assert found.auc.value == pytest.approx(norm.cdf(effect / math.sqrt(2)), abs=error)
    # The difficulties have deviation 5: Phi(effect / sqrt(2 (1 + 25))).
    assert loss_threshold(sure, members).auc.value == pytest.approx(norm.cdf(effect / math.sqrt(52)), abs=error)


def test_scores_are_the_ratio_of_the_densities() -> None:
    values, inside = gaussian_shadows(64, 1.0)
    scores = likelihood_ratio(values[0], values, inside)
    column, within = values[:, 7].double().numpy(), inside[:, 7].numpy()
    parts = [norm.logpdf(column[0], part.mean(), part.std(ddof=1)) for part in (column[within], column[~within])]
    assert float(scores[7]) == pytest.approx(parts[0] - parts[1], rel=1e-4)


@pytest.mark.parametrize("shadows", [6, 16])
def test_each_shadow_in_turn_gives_a_coin_where_nothing_leaks(shadows: int) -> None:
    """Also where shadows differ as a whole, as small coresets do; counting them in and out unevenly would not."""
    values, inside = gaussian_shadows(shadows, 0.0, shift=3.0)
    found = attack_each_shadow(values, inside)
    assert (found.members, found.others) == (shadows * IMAGES // 2,) * 2
    assert found.auc.low - 0.02 < 0.5 < found.auc.high + 0.02
    assert found.auc.value == pytest.approx(0.5, abs=4 * deviation(IMAGES // 2, IMAGES // 2))


def test_each_shadow_in_turn_finds_a_leak() -> None:
    """With k shadows a side, phi less the mean of both means has variance 1 + 1 / (2 k), and the difference of the
    means errs by sqrt(2 / k); at k = 15 and effect 2 it has the right sign."""
    values, inside = gaussian_shadows(32, 2.0)
    expected = norm.cdf(2 / math.sqrt(2 * (1 + 1 / 30)))
    assert attack_each_shadow(values, inside).auc.value == pytest.approx(expected, abs=0.02)


def test_sureness_is_the_logit_also_of_predictions_that_are_nearly_certain() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -40.0]])
    labels = torch.tensor([0, 1, 2])
    expected = torch.tensor([40 - math.log(2), 1 - math.log(2), -40 - math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(sureness(logits.softmax(1), labels), expected, rtol=1e-5, atol=1e-5)
