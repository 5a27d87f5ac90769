"""Agreement of predictive averages: by hand, against SciPy, in files and by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy.spatial.distance import cdist
from small import Invoke
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.errors import FileFormatError, InputError


def probabilities(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


def test_known_values() -> None:
    """The first input has the same top class at distance 0.2, the second another at 0.5."""
    first = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
    second = torch.tensor([[0.5, 0.4, 0.1], [0.6, 0.1, 0.3]])
    found = pc.agreement(first, second)
    assert found.top_class == 0.5
    assert found.total_variation == pytest.approx((0.2 + 0.5) / 2, rel=1e-6)


def test_each_side_is_averaged_over_its_own_chains_and_samples_first() -> None:
    """Half the distance of the sums of absolute differences (SciPy's cityblock) of the averages."""
    first, second = probabilities(2, 5, 30, 4), probabilities(3, 7, 30, 4, seed=1)
    means = [each.flatten(0, 1).mean(0).numpy() for each in (first, second)]
    found = pc.agreement(first, second)
    assert found.total_variation == pytest.approx(cdist(*means, metric="cityblock").diagonal().mean() / 2, rel=1e-12)
    assert found.top_class == (means[0].argmax(-1) == means[1].argmax(-1)).mean()
    itself = pc.agreement(first, first.flatten(0, 1).mean(0))
    assert (itself.top_class, itself.total_variation) == (1.0, pytest.approx(0, abs=1e-15))
    certain = torch.eye(4, dtype=torch.float64)
    assert pc.agreement(certain, certain.roll(1, 0)) == pc.Agreement(0.0, 1.0)


def test_other_inputs_or_classes_are_refused(digits: pc.Dataset) -> None:
    with pytest.raises(InputError, match="same inputs and classes"):
        pc.agreement(probabilities(5, 3), probabilities(5, 4))
    known = pc.Predictions.from_probabilities(probabilities(len(digits.test), 10), digits.test, {})
    assert pc.agreement(known, known, digits.test) == pc.Agreement(1.0, 0.0)
    with pytest.raises(InputError, match="which data"):
        pc.agreement(known, known)
    with pytest.raises(InputError, match="other images"):
        pc.agreement(known, known, digits.test.subset(torch.arange(10)))


def test_a_file_of_predictions_is_read_back_and_checked(tmp_path: Path, digits: pc.Dataset) -> None:
    path, about = tmp_path / "p.safetensors", {"sampler": "hmc", "chains": 4}
    saved = pc.Predictions.from_probabilities(probabilities(2, len(digits.test), 10), digits.test, about)
    saved.save(path)
    again = pc.Predictions.load(path)
    assert torch.equal(again.probabilities, saved.probabilities)
    assert (again.inputs, again.about) == (digits.test.fingerprint, about)
    pc.Predictions(2 * saved.probabilities, saved.inputs, about).save(path)
    with pytest.raises(FileFormatError, match="no probabilities"):
        pc.Predictions.load(path)


def test_a_coreset_file_is_no_reference(coreset_file: Path) -> None:
    with pytest.raises(FileFormatError, match="holds no predictions"):
        pc.Predictions.load(coreset_file)


def test_the_command_compares_with_predictions_that_it_wrote(bpc: Invoke, coreset_file: Path, tmp_path: Path) -> None:
    """The same samples predict alike, and the control, other images, less so; the table has both figures."""
    few = ("--sampling-steps", 20, "--samples", 5, "--chains", 2, "--device", "cpu")
    written = bpc("evaluate", coreset_file, *few, "--predictions", "p.safetensors", "--json")
    assert written.exit_code == 0, written.stderr
    assert "agreement" not in json.loads(written.stdout)
    again = bpc("evaluate", coreset_file, *few, "--reference", "p.safetensors", "--json")
    assert again.exit_code == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["agreement"] == {"top_class": 1.0, "total_variation": 0.0}
    assert document["control"]["agreement"]["total_variation"] > 0.01
    shown = bpc("evaluate", coreset_file, *few, "--reference", "p.safetensors").stdout
    assert "total variation" in shown
    assert pc.Predictions.load(tmp_path / "p.safetensors").about["chains"] == 2
