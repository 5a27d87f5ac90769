"""Predictions of corrupted images: scored as they are, and corrupted once where there are many."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.data.corruptions import corrupt
from pseudocoresets.evaluation.scores import scores
from pseudocoresets.evaluation.shift import evaluate_shift
from pseudocoresets.workflows.reproduce import corrupted
from pseudocoresets.workflows.reproduce.corrupted import corrupted_images


def test_each_corruption_is_scored_at_each_severity(coreset: pc.Coreset, digits: pc.Dataset) -> None:
    samples = pc.sample_posterior(coreset, chains=2, steps=20, samples=2, device="cpu")
    part = digits.test.subset(torch.arange(50))
    found = evaluate_shift(samples, part, ["brightness", "zoom_blur"], [1, 5])
    assert list(found) == ["brightness", "zoom_blur"]
    for name, by_severity in found.items():
        alone = [scores(samples.predict(corrupt(part.images, name, each)), part.labels) for each in (1, 5)]
        assert [each.ensemble for each in by_severity] == [each.ensemble for each in alone]
    assert found["zoom_blur"][0].ensemble != found["zoom_blur"][1].ensemble


def test_many_images_are_corrupted_once(tmp_path: Path, digits: pc.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    part = digits.test.subset(torch.arange(20))
    for name, few in {"KEPT_FROM": 10, "SHIFT_CORRUPTIONS": ("contrast",), "SEVERITIES": (1, 2)}.items():
        monkeypatch.setattr(corrupted, name, few)
    monkeypatch.setattr(corrupted, "cores", lambda: 1)
    images = corrupted_images(part, tmp_path)
    monkeypatch.setattr(corrupted, "corrupt", None)
    for found in (images, corrupted_images(part, tmp_path)):
        assert torch.equal(found("contrast", 2), corrupt(part.images, "contrast", 2))
