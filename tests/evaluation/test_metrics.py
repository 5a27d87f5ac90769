"""Metrics against torchmetrics and scikit-learn, and reports over several chains."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from pseudocoresets.core.errors import InputError
from pseudocoresets.evaluation import METRICS, Summary, all_metrics, pooled, reliability, score
from pseudocoresets.evaluation.metrics import ECE_BINS, SMALLEST_PROBABILITY


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Random probabilities, from nearly uniform to nearly certain, and random labels."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    points, classes = draw(st.integers(1, 200)), draw(st.integers(2, 12))
    sharpness = draw(st.floats(0.01, 8))
    logits = torch.randn(points, classes, generator=generator, dtype=torch.float64) * sharpness
    return logits.softmax(-1), torch.randint(classes, (points,), generator=generator)


@given(predictions())
@settings(max_examples=60, deadline=None)
def test_accuracy_agrees_with_torchmetrics(case: tuple[Tensor, Tensor]) -> None:
    probabilities, labels = case
    reference = multiclass_accuracy(probabilities, labels, probabilities.shape[1], average="micro")
    assert all_metrics(probabilities, labels)["accuracy"] == pytest.approx(float(reference), abs=1e-6)


@given(predictions())
@settings(max_examples=60, deadline=None)
def test_calibration_error_agrees_with_torchmetrics(case: tuple[Tensor, Tensor]) -> None:
    """Where no confidence lies on an edge between two bins, which the two libraries give to different sides."""
    probabilities, labels = case
    on_scale = probabilities.max(-1).values * ECE_BINS
    assume(float((on_scale - on_scale.round()).abs().min()) > 1e-4)
    reference = multiclass_calibration_error(
        probabilities.float(), labels, probabilities.shape[1], n_bins=ECE_BINS, norm="l1"
    )
    assert all_metrics(probabilities, labels)["ece"] == pytest.approx(float(reference), abs=1e-5)


@given(predictions())
@settings(max_examples=60, deadline=None)
def test_likelihood_and_brier_score_agree_with_scikit_learn(case: tuple[Tensor, Tensor]) -> None:
    probabilities, labels = case
    assume(float(probabilities.min()) > SMALLEST_PROBABILITY)
    classes = list(range(probabilities.shape[1]))
    found = all_metrics(probabilities, labels)
    assert found["nll"] == pytest.approx(log_loss(labels, probabilities.numpy(), labels=classes), rel=1e-6, abs=1e-9)
    assert found["brier"] == pytest.approx(multiclass_brier(probabilities, labels), abs=1e-9)


def multiclass_brier(probabilities: Tensor, labels: Tensor) -> float:
    """Scikit-learn's Brier score of one class against the rest, summed over classes."""
    from sklearn.metrics import brier_score_loss

    columns = enumerate(probabilities.numpy().T)
    return float(sum(brier_score_loss((labels == c).numpy(), column, pos_label=True) for c, column in columns))


def test_known_values() -> None:
    """Two predictions worked out by hand."""
    found = all_metrics(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]), torch.tensor([0, 2]))
    assert found["accuracy"] == 0.5
    assert found["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.1)) / 2, rel=1e-6)
    assert found["ece"] == pytest.approx((abs(1 - 0.7) + abs(0 - 0.6)) / 2, rel=1e-6)
    assert found["brier"] == pytest.approx((0.09 + 0.04 + 0.01 + 0.09 + 0.36 + 0.81) / 2, rel=1e-6)


def test_certain_and_wrong_is_finite() -> None:
    found = all_metrics(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert found["nll"] == pytest.approx(-math.log(SMALLEST_PROBABILITY))
    assert found["ece"] == 1.0
    assert found["brier"] == 2.0


def test_bins_hold_every_prediction_once() -> None:
    probabilities = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])
    bins = reliability(probabilities, torch.tensor([0, 0, 0]))
    assert int(bins.count.sum()) == 3
    assert int(bins.count[-1]) == 1, "certainty belongs to the last bin"
    document = bins.as_json()
    assert document["confidence"][0] is None, "an empty bin has no confidence"
    assert len(document["edges"]) == ECE_BINS + 1


def random_probabilities(chains: int, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(chains, samples, 40, 5, generator=generator, dtype=torch.float64).softmax(-1)
    return probabilities, torch.randint(5, (40,), generator=generator)


def test_a_report_scores_each_chain_and_all_together() -> None:
    probabilities, labels = random_probabilities(chains=3, samples=4)
    report = score(probabilities, labels, "cold", {"chains": 3})
    for name in METRICS:
        each = [all_metrics(probabilities[chain].mean(0), labels)[name] for chain in range(3)]
        assert list(getattr(report, name).values) == pytest.approx(each)
    assert dict(report.ensemble) == pytest.approx(all_metrics(probabilities.mean((0, 1)), labels))
    assert report.protocol == "cold"


def test_a_summary_has_mean_and_sample_deviation() -> None:
    summary = Summary((0.5, 0.7, 0.9))
    assert summary.mean == pytest.approx(0.7)
    assert summary.std == pytest.approx(0.2)
    assert Summary((0.5,)).std == 0.0
    assert summary.as_json() == {"mean": summary.mean, "std": summary.std, "values": [0.5, 0.7, 0.9]}


def test_pooled_reports_hold_every_run() -> None:
    parts = [score(*random_probabilities(2, 3, seed), "cold", {}) for seed in range(4)]
    together = pooled(parts)
    assert len(together.accuracy.values) == 8
    assert together.nll.mean == pytest.approx(sum(part.nll.mean for part in parts) / 4)
    assert together.ensemble["nll"] == pytest.approx(sum(part.ensemble["nll"] for part in parts) / 4)
    assert int(together.reliability.count.sum()) == 4 * 40


def test_pooled_diagnostics_are_those_of_all_draws_of_the_control() -> None:
    """Chains that agree in the first evaluation and not in the second: the warning must not get lost."""
    agreeing, labels = random_probabilities(4, 40, seed=0)
    apart = agreeing.clone()
    apart[0] = torch.tensor([0.9, 0.025, 0.025, 0.025, 0.025]) + 0.01 * (apart[0] - apart[0].mean(-1, keepdim=True))
    first, second = (score(each, labels, "cold", {}) for each in (agreeing, apart))
    assert first.diagnostics is not None and second.diagnostics is not None
    assert first.diagnostics.warning is None
    assert second.diagnostics.warning is not None
    together = pooled([first, second]).diagnostics
    assert together is not None
    assert together.warning == second.diagnostics.warning
    assert together.r_hat_max == max(first.diagnostics.r_hat_max, second.diagnostics.r_hat_max)
    assert together.r_hat_median == pytest.approx(
        (first.diagnostics.r_hat_median + second.diagnostics.r_hat_median) / 2
    )


def test_the_gain_is_over_the_control() -> None:
    own, other = (score(*random_probabilities(2, 3, seed), "cold", {}) for seed in (0, 1))
    beside = replace(own, control=other)
    assert beside.gain == {name: getattr(own, name).mean - getattr(other, name).mean for name in METRICS}
    assert beside.as_json()["gain"] == beside.gain
    with pytest.raises(InputError, match="control=True"):
        own.gain  # noqa: B018
