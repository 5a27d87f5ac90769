"""Calibration of averages: the scalar is the minimiser, accuracy stays, the control has its own, private data none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from small import Invoke
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.dp.guarantee import Guarantee
from pseudocoresets.evaluation import METRICS, all_metrics, pooled
from pseudocoresets.evaluation.calibration import (
    LARGEST_EXPONENT,
    calibration_split,
    fitted_exponent,
    fitted_exponents,
    sharpened,
)
from pseudocoresets.workflows.plan import make_plan

FEW: dict[str, Any] = {"steps": 20, "samples": 4, "chains": 3, "temperature": 0.1, "device": "cpu"}
PRIVATE = Guarantee(1.0, 1e-5, "pld", 1300, ())


def predicted(n: int, classes: int = 5, spread: float = 1.5, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), generator


@pytest.mark.parametrize("spread", [0.3, 1.5, 6.0])
def test_the_scalar_has_the_smallest_negative_log_likelihood(spread: float) -> None:
    """Against SciPy's minimiser, which is told nothing of slopes."""
    probabilities, generator = predicted(400, spread=spread)
    labels = torch.multinomial(probabilities.sqrt(), 1, generator=generator).squeeze(-1)

    def nll(exponent: float) -> float:
        return all_metrics(sharpened(probabilities, exponent), labels)["nll"]

    found = minimize_scalar(nll, bounds=(0.01, 20), method="bounded", options={"xatol": 1e-9})
    assert fitted_exponent(probabilities, labels) == pytest.approx(found.x, rel=1e-5)


@pytest.mark.parametrize("truth", [0.4, 1.0, 2.5])
def test_a_known_scalar_is_recovered(truth: float) -> None:
    """Labels drawn from p^s: within four deviations, of which the variance is 1 / (n times the Fisher information)."""
    probabilities, generator = predicted(20_000)
    true, logs = sharpened(probabilities, truth), probabilities.log()
    labels = torch.multinomial(true, 1, generator=generator).squeeze(-1)
    information = ((true * logs.square()).sum(-1) - (true * logs).sum(-1).square()).sum()
    assert abs(fitted_exponent(probabilities, labels) - truth) < 4 / float(information.sqrt())


def test_predictions_that_are_all_right_or_worse_than_chance_end_at_a_bound() -> None:
    sure = torch.tensor([[0.6, 0.4], [0.3, 0.7]])
    assert fitted_exponent(sure, torch.tensor([0, 1])) == LARGEST_EXPONENT
    assert fitted_exponent(sure, torch.tensor([1, 0])) == 1 / LARGEST_EXPONENT
    assert 0 < fitted_exponent(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])) < 1


@pytest.mark.parametrize("exponent", [1 / LARGEST_EXPONENT, 0.7, 3.0, LARGEST_EXPONENT])
def test_no_top_class_changes(exponent: float) -> None:
    probabilities = predicted(5000, classes=10, spread=0.2)[0].float()
    sharp = sharpened(probabilities, exponent)
    assert torch.equal(sharp.argmax(-1), probabilities.argmax(-1))
    assert torch.allclose(sharp.sum(-1), torch.ones(5000, dtype=torch.float64), atol=1e-12)


@pytest.fixture(scope="module")
def samples(coreset: pc.Coreset) -> pc.PosteriorSamples:
    return pc.sample_posterior(coreset, **FEW)


def test_a_report_has_both_averages_and_the_control_its_own_scalars(
    samples: pc.PosteriorSamples, digits: pc.Dataset
) -> None:
    """Redone by hand: the scalar from training images alone, the scores of the average raised to it."""
    report = pc.evaluate(samples, digits.test, control=True, control_draws=2, calibration=digits.train)
    found = report.calibrated
    assert found is not None and found.images == len(digits.train) == 1300
    train, test = (samples.predict(split.images).mean((0, 1)) for split in (digits.train, digits.test))
    exponent = fitted_exponent(train, digits.train.labels)
    assert found.exponent.values == pytest.approx((exponent,), rel=1e-4)
    expected = all_metrics(sharpened(test, exponent), digits.test.labels)
    assert dict(found.scores.ensemble) == pytest.approx(expected, rel=1e-4)
    assert found.scores.ensemble["accuracy"] == report.ensemble["accuracy"]
    assert found.scores.chains["accuracy"] == report.accuracy
    assert len(found.chain_exponent.values) == 3
    assert dict(report.ensemble) == pytest.approx(dict(pc.evaluate(samples, digits.test).ensemble))
    control = report.control.calibrated if report.control is not None else None
    assert control is not None and control.images == 1290, "the control's own ten images do not count"
    assert len(control.exponent.values) == 2 and exponent not in control.exponent.values
    assert "NLL of the average, calibrated" in report._repr_html_()
    document = report.as_json()
    assert document["calibrated"]["ensemble"] == dict(found.scores.ensemble)
    assert document["control"]["calibrated"]["exponent"]["values"] == list(control.exponent.values)
    assert "calibrated" not in pc.evaluate(samples, digits.test).as_json()


def test_evaluations_taken_together_keep_every_scalar(samples: pc.PosteriorSamples, digits: pc.Dataset) -> None:
    half = len(digits.test) // 2
    parts = [
        pc.evaluate(samples, digits.test.subset(part), calibration=digits.train, calibration_images=50)
        for part in torch.arange(2 * half).split(half)
    ]
    together = pooled(parts).calibrated
    own = [part.calibrated for part in parts if part.calibrated is not None]
    assert together is not None and together.images == 50
    assert together.exponent.values == own[0].exponent.values + own[1].exponent.values
    for name in METRICS:
        mean = sum(part.scores.ensemble[name] for part in own) / 2
        assert together.scores.ensemble[name] == pytest.approx(mean)
        runs = [value for part in own for value in part.scores.chains[name].values]
        assert list(together.scores.chains[name].values) == runs


def test_so_many_images_are_drawn_and_always_the_same(samples: pc.PosteriorSamples, digits: pc.Dataset) -> None:
    some = calibration_split(samples, digits.train, digits.test, 40)
    assert len(some) == 40
    again = calibration_split(samples, digits.train, digits.test, 40)
    assert torch.equal(some.images, again.images)
    assert fitted_exponents(samples, some).images == 40


def test_what_cannot_calibrate_is_refused(samples: pc.PosteriorSamples, digits: pc.Dataset) -> None:
    def refused(match: str, **given: Any) -> None:
        with pytest.raises(InputError, match=match):
            pc.evaluate(given.pop("samples", samples), digits.test, **given)

    refused("other images than those", calibration=digits.test)
    refused("calibration=data.train", calibration=True)
    refused("at least one image", calibration=digits.train, calibration_images=0)
    refused("at least one image", calibration=digits.train.subset(torch.arange(0)))
    refused("same data set", calibration=replace(digits.train, images=digits.train.images[..., :4]))
    refused("have seen the training images", samples=replace(samples, protocol="expert"), calibration=digits.train)
    assert samples.coreset is not None
    private = replace(samples.coreset, guarantee=PRIVATE)
    refused("differential privacy", samples=replace(samples, coreset=private), calibration=digits.train)


def test_the_preset_best_calibrates_and_no_other_does() -> None:
    for name, images in {"quick": 0, "paper": 0, "best": 5000, "published": 0}.items():
        assert make_plan(dataset="cifar10", ipc=10, preset=name).calibration == images
    assert make_plan(dataset="cifar10", preset="best", protocol="expert").calibration == 0
    assert make_plan(dataset="cifar10", preset="best", calibration=0).calibration == 0
    with pytest.raises(InputError, match="have seen the training images"):
        make_plan(dataset="cifar10", protocol="expert", calibration=10)
    with pytest.raises(InputError, match="0 or more"):
        make_plan(dataset="cifar10", calibration=-1)


COMMAND = ("--sampling-steps", 20, "--samples", 4, "--chains", 2, "--controls", 1, "--device", "cpu")


def test_the_command_says_both_averages_and_what_chose_the_scalar(bpc: Invoke, coreset_file: Path) -> None:
    asked = bpc("evaluate", coreset_file, *COMMAND, "--calibration", 100, "--json")
    assert asked.exit_code == 0, asked.stderr
    document = json.loads(asked.stdout)
    for block in (document, document["control"]):
        assert block["calibrated"]["images"] == 100
        assert block["calibrated"]["ensemble"]["accuracy"] == block["ensemble"]["accuracy"]
    assert document["calibrated"]["exponent"] != document["control"]["calibrated"]["exponent"]
    shown = bpc("evaluate", coreset_file, *COMMAND, "--calibration", 100).stdout
    assert "BMA ECE" in shown and "calibrated NLL" in shown
    assert f"coreset {document['calibrated']['exponent']['mean']:.2f}" in shown
    assert "100 training images" in " ".join(shown.split())
    assert "calibrated" not in bpc("evaluate", coreset_file, *COMMAND).stdout


def test_the_command_never_calibrates_on_private_images(bpc: Invoke, coreset: pc.Coreset, tmp_path: Path) -> None:
    replace(coreset, guarantee=PRIVATE).save(tmp_path / "private.safetensors")
    refused = bpc("evaluate", "private.safetensors", *COMMAND, "--calibration", 100)
    assert refused.exit_code == 2
    assert "differential privacy" in " ".join(refused.stderr.split()) and "Traceback" not in refused.stderr
    left_out = bpc("evaluate", "private.safetensors", *COMMAND, "--preset", "best", "--json")
    assert left_out.exit_code == 0, left_out.stderr
    assert "calibrated" not in json.loads(left_out.stdout)


def test_a_run_of_the_preset_best_is_calibrated_and_its_page_says_so(bpc: Invoke, tmp_path: Path) -> None:
    few = ("--method", "random", "--network", "mlp:width=8", "--sampling-steps", 8, "--samples", 2, "--chains", 2)
    made = bpc("run", "--preset", "best", *few, "--calibration", 200, "--out", "r", "--device", "cpu", "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["calibrated"]["images"] == 200
    page = (tmp_path / "r" / "report.html").read_text()
    assert "chosen on 200 training images" in page and "for control and coreset and calibrated coreset" in page
    assert json.loads((tmp_path / "r" / "config.json").read_text())["calibration"] == 200
