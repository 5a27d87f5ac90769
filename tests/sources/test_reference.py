"""Reference posteriors: checked, and cached by content."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocoresets.core.points import Rows
from pseudocoresets.models import FunctionModel, GaussianMean, LogisticRegression
from pseudocoresets.sources import reference
from pseudocoresets.sources.reference import reference_posterior

SHORT = {"draws": 150, "warmup": 100}


def rows() -> Rows:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chance = torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Rows(x, (chance < torch.sigmoid(x.sum(1))).double())


def test_reference_is_checked_and_cached_by_content(tmp_path: Path) -> None:
    first = reference_posterior(rows(), LogisticRegression(2), **SHORT, cache=tmp_path)
    assert first.r_hat < 1.01
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    second = reference_posterior(rows(), LogisticRegression(2), **SHORT, cache=tmp_path)
    assert torch.equal(first.parameters, second.parameters)
    assert file.stat().st_mtime_ns == written
    reference_posterior(rows(), LogisticRegression(2, prior_scale=3.0), **SHORT, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    file.write_bytes(b"broken")
    again = reference_posterior(rows(), LogisticRegression(2), **SHORT, cache=tmp_path)
    assert torch.equal(first.parameters, again.parameters)


def test_exact_posteriors_are_used_where_they_exist() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = reference_posterior(Rows(x, torch.zeros(50)), GaussianMean(dimension=3), **SHORT)
    assert found.exact
    torch.testing.assert_close(found.gaussian.mean, x.sum(0) / 51)
    error = found.gaussian.standard_deviation / math.sqrt(found.ess)
    assert bool(((found.draws.mean(0) - found.gaussian.mean).abs() < 5 * error).all())


SCALE = "SCALE = {value}\ndef prior(theta):\n    return -theta.square().sum() / SCALE\n"
DEFAULT = "def prior(theta, scale={value}):\n    return -theta.square().sum() / scale\n"
NESTED = (
    "def prior(theta):\n"
    "    def squared(values):\n        return values.square() / {value}\n"
    "    return -squared(theta).sum()\n"
)
BOUND = (
    "class Prior:\n"
    "    def __init__(self, scale):\n        self.scale = scale\n"
    "    def log(self, theta):\n        return -theta.square().sum() / self.scale\n"
    "prior = Prior({value}).log\n"
)


def likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return -(y - x @ theta).square()


def model_of(source: str, value: float) -> FunctionModel:
    """The model whose log-prior is defined by this source, as a user's script or notebook would."""
    scope: dict[str, Any] = {"__name__": "users_script"}
    exec(source.format(value=value), scope)
    return FunctionModel(likelihood, scope["prior"], 2)


@pytest.mark.parametrize("source", [SCALE, DEFAULT, NESTED, BOUND], ids=["global", "default", "nested", "bound object"])
def test_a_cached_reference_is_never_served_for_another_model(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrow model and the wide one differ where their functions refer to, not in their code."""
    monkeypatch.setattr(reference, "LARGEST_R_HAT", math.inf)  # whose draws they are is asked, not how good they are
    few = Rows(rows().x[:20], rows().y[:20])
    narrow, wide, again = (
        reference_posterior(few, model_of(source, value), 40, 40, 2, cache=tmp_path) for value in (0.01, 100.0, 0.01)
    )
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(narrow.parameters, again.parameters)
    assert float(wide.gaussian.standard_deviation.min()) > 1.5 * float(narrow.gaussian.standard_deviation.max())
