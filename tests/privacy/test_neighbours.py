"""Nearest neighbours against brute force, and what the tests say of copies and of strangers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pseudocoresets.core.seeds import generator_for
from pseudocoresets.privacy import neighbours
from pseudocoresets.privacy.neighbours import nearest, nearness


def vectors(count: int, purpose: str, size: int = 6) -> Tensor:
    return torch.randn(count, size, generator=generator_for(0, purpose))


def same(images: Tensor) -> Tensor:
    return images


@pytest.mark.parametrize("at_once", [7, 1000])
def test_the_nearest_are_those_of_brute_force(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(neighbours, "NEIGHBOURS_AT_ONCE", at_once)
    points, images = vectors(40, "points"), vectors(300, "images")
    found = nearest(points, images, same)
    distances = (points.double()[:, None] - images.double()).norm(dim=-1)
    assert torch.equal(found.indices, distances.argmin(1))
    torch.testing.assert_close(found.distances, distances.min(1).values, rtol=1e-5, atol=0)


def test_distances_of_near_copies_do_not_drown_in_rounding() -> None:
    images = 100 + vectors(200, "far from the origin")
    points = images[:20] + 1e-3
    found = nearest(points, images, same)
    assert torch.equal(found.indices, torch.arange(20))
    expected = (points.double() - images[:20].double()).norm(dim=1)
    torch.testing.assert_close(found.distances, expected, rtol=0.01, atol=0)


def test_copies_are_told_from_strangers() -> None:
    training, held_out, strangers = vectors(400, "training"), vectors(200, "held out"), vectors(50, "strangers")
    ranked = torch.arange(100)
    copies, unknown = nearness([training[:50] + 0.01, strangers], training, held_out, ranked, same)
    assert copies.from_training.value == 1.0
    assert copies.expected == pytest.approx(2 / 3)
    assert copies.share_p_value == pytest.approx((2 / 3) ** 50, rel=1e-9)
    assert copies.p_value < 1e-10
    # Both tests are exact or nearly so: of strangers, p is below 0.001 in one of a thousand.
    assert min(unknown.p_value, unknown.share_p_value) > 1e-3
    assert unknown.from_training.low < 2 / 3 < unknown.from_training.high
