"""The public Python interface, as the documentation prints it."""

from __future__ import annotations

import inspect
import statistics
from pathlib import Path

import pytest
import torch
from PIL import Image

import pseudocoresets as pc
from pseudocoresets.evaluation import METRICS


def test_the_documented_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line by line with the names of the documentation, at settings so small that nothing good is learned."""
    monkeypatch.chdir(tmp_path)
    data = pc.load_dataset("digits", root="data")
    assert (len(data.train), len(data.test), len(data.classes), data.shape) == (1300, 497, 10, (1, 8, 8))

    experts = pc.train_experts(data, network="convnet", count=2, epochs=2, out="experts/")
    assert len(experts) == 2
    assert len(pc.load_experts("experts/")) == 2

    coreset = pc.construct(data, experts, method="cd", ipc=1, iterations=2, method_options={"steps": 2})
    coreset.save("c10.safetensors")
    loaded = pc.Coreset.load("c10.safetensors")
    assert torch.equal(loaded.images, coreset.images)
    coreset.show("c10.png")
    with Image.open("c10.png") as picture:
        assert picture.format == "PNG"

    samples = pc.sample_posterior(coreset, sampler="langevin", start="cold", chains=5, steps=40)
    report = pc.evaluate(samples, data.test)
    for name in METRICS:
        summary = getattr(report, name)
        assert len(summary.values) == 5
        assert summary.mean == pytest.approx(sum(summary.values) / 5)
        assert summary.std == pytest.approx(statistics.stdev(summary.values), abs=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c10.png", "c10.safetensors", "experts"]


def test_importing_a_part_does_not_hide_the_front_door() -> None:
    """``pc.construct`` stays the function after the modules behind it were imported."""
    import pseudocoresets.construction.front

    assert pc.construct is pseudocoresets.construction.front.construct


def test_every_public_name_exists_and_is_documented() -> None:
    for name in pc.__all__:
        assert inspect.getdoc(getattr(pc, name)), name


@pytest.mark.parametrize(
    "error",
    [pc.InputError, pc.FileFormatError, pc.DataUnavailableError, pc.DivergenceError, pc.DeviceMemoryError],
)
def test_one_exception_catches_all(error: type[Exception]) -> None:
    assert issubclass(error, pc.PseudocoresetsError)


def test_the_session_in_the_package_documentation_is_the_documented_one() -> None:
    for call in ("load_dataset", "train_experts", "construct", "sample_posterior", "evaluate"):
        assert f"pc.{call}(" in (pc.__doc__ or "")
