"""Corruptions: what each does to images whose answer is known, sizes and channels, seeds, errors."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.data import CIFAR10_C_CORRUPTIONS
from pseudocoresets.data.corruptions import (
    AT_ONCE,
    CORRUPTIONS,
    SEVERITIES,
    SHIFT_CORRUPTIONS,
    corrupt,
    disk,
    edges,
    equalised,
    moved,
    plasma,
    zoom_matrix,
)

RANDOM = set(CORRUPTIONS) - {
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "saturate",
    "jpeg_compression",
    "pixelate",
}
SPATIAL = ("gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate", "elastic_transform")


def pictures(n: int, channels: int, height: int, width: int) -> Tensor:
    """Smooth random pictures with all levels and some edges."""
    rng = np.random.default_rng(0)
    waves = ndimage.gaussian_filter(rng.normal(size=(n, channels, height, width)), (0, 0, 1.5, 1.5))
    waves = 128 + 90 * waves / waves.std()
    waves[:, :, height // 4 : height // 2, width // 4 : width // 2] = 230
    return torch.from_numpy(np.clip(waves, 0, 255).astype(np.uint8))


def grey_level(level: int, n: int = 4, side: int = 32) -> Tensor:
    return torch.full((n, 3, side, side), level, dtype=torch.uint8)


def change(before: Tensor, after: Tensor) -> float:
    return (after.float() - before.float()).abs().mean().item()


def test_the_names_are_those_of_the_official_files() -> None:
    assert set(CORRUPTIONS) == set(CIFAR10_C_CORRUPTIONS)
    assert len(SHIFT_CORRUPTIONS) == 10
    assert set(SHIFT_CORRUPTIONS) <= set(CORRUPTIONS)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 70, 45)])
@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_every_corruption_changes_images_of_any_size_and_depends_on_the_seed_alone(
    name: str, shape: tuple[int, int, int]
) -> None:
    if name == "saturate" and shape[0] == 1:
        pytest.skip("grey images have no colour")
    images = pictures(16, *shape)
    before = images.clone()
    for severity in (1, 5):
        corrupted = corrupt(images, name, severity, seed=3)
        assert corrupted.shape == images.shape
        assert corrupted.dtype == torch.uint8
        assert torch.equal(images, before)
        assert torch.equal(corrupt(images, name, severity, seed=3), corrupted)
        assert torch.equal(corrupt(images, name, severity, seed=4), corrupted) == (name not in RANDOM)
    assert change(images, corrupted) > 0.5


@pytest.mark.parametrize("name", SHIFT_CORRUPTIONS)
def test_severity_five_is_worse_than_three_is_worse_than_one(name: str) -> None:
    images = pictures(30, 3, 32, 32)
    first, third, fifth = (change(images, corrupt(images, name, severity)) for severity in (1, 3, 5))
    assert first < third < fifth


@pytest.mark.parametrize("name", SPATIAL)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_a_flat_image_stays_flat_where_only_places_change(name: str, severity: int) -> None:
    flat = grey_level(100)
    assert (corrupt(flat, name, severity).int() - 100).abs().max() <= 1


@pytest.mark.parametrize(("severity", "deviation"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1)))
def test_gaussian_noise_has_the_published_deviation(severity: int, deviation: float) -> None:
    noise = (corrupt(grey_level(128, n=20), "gaussian_noise", severity).double() - 128).numpy()
    expected = math.sqrt((255 * deviation) ** 2 + 1 / 12)
    within = 5 * expected / math.sqrt(2 * noise.size)
    assert noise.std() == pytest.approx(expected, abs=within)
    assert noise.mean() == pytest.approx(-0.5, abs=5 * expected / math.sqrt(noise.size))


def test_speckle_noise_grows_with_the_level_and_shot_noise_with_its_root() -> None:
    def deviation(name: str, level: int) -> float:
        return corrupt(grey_level(level, n=20), name, 1).double().std().item()

    # The error of a ratio of deviations over 61,440 values is 0.4 %; cutting off to whole levels adds less.
    assert deviation("speckle_noise", 160) / deviation("speckle_noise", 80) == pytest.approx(2, rel=0.03)
    assert deviation("shot_noise", 160) / deviation("shot_noise", 40) == pytest.approx(2, rel=0.03)
    assert deviation("shot_noise", 160) == pytest.approx(255 * math.sqrt(160 / 255 / 500), rel=0.03)


def test_impulse_noise_hits_the_published_fraction_half_black_half_white() -> None:
    corrupted = corrupt(grey_level(100, n=20), "impulse_noise", 5)
    count = corrupted.numel()
    error = 5 * math.sqrt(0.035 * 0.965 / count)
    for level in (0, 255):
        assert (corrupted == level).double().mean().item() == pytest.approx(0.035, abs=error)
    assert set(corrupted.unique().tolist()) == {0, 100, 255}


def test_gaussian_blur_spreads_a_point_as_a_gaussian() -> None:
    point = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    point[0, 0, 16, 16] = 255
    blurred = corrupt(point, "gaussian_blur", 5)[0, 0].double()
    levels = 255 / (2 * math.pi) * torch.exp(-(torch.arange(3).double() ** 2) / 2)
    assert (blurred[16, 16:19] - levels).abs().max() <= 1
    assert torch.equal(blurred, blurred.T)
    assert torch.equal(blurred[16, 10:16], blurred[16, 17:23].flip(0))


@pytest.mark.parametrize("radius", [0.3, 1.0, 1.5, 4.2, 9.0])
def test_a_disk_has_sum_one_and_its_radius(radius: float) -> None:
    kernel = disk(radius, 0.1)
    assert kernel.sum() == pytest.approx(1, abs=1e-5)
    assert np.allclose(kernel, kernel.T)
    inside = sum(math.hypot(i, j) <= radius for i in range(-9, 10) for j in range(-9, 10))
    assert (kernel > 0.5 * kernel.max()).sum() == inside


def test_motion_blur_is_half_a_gaussian_along_the_angle() -> None:
    point = np.zeros((2, 1, 32, 32), np.float32)
    point[:, 0, 16, 16] = 1
    along_rows, along_columns = moved(point, 6, 2.0, np.array([0.0, 90.0]))[:, 0]
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    expected = np.rint(255 * weights / weights.sum())
    assert np.array_equal(np.rint(255 * along_rows[16, 16:3:-1]), expected)
    assert np.array_equal(np.rint(255 * along_columns[16:3:-1, 16]), expected)
    assert np.count_nonzero(along_rows) == np.count_nonzero(expected)


@settings(max_examples=40, deadline=None)
@given(side=st.integers(8, 70), percent=st.integers(100, 250))
def test_zooming_is_the_interpolation_of_scipy(side: int, percent: int) -> None:
    factor = percent / 100
    line = np.random.default_rng(side).random(side)
    cropped = math.ceil(side / factor)
    top = (side - cropped) // 2
    # With its usual mode, scipy's rounding can put the last point outside the line.
    enlarged = ndimage.zoom(line[top : top + cropped], factor, order=1, mode="nearest")
    skipped = (len(enlarged) - side) // 2
    assert np.allclose(zoom_matrix(side, factor) @ line, enlarged[skipped : skipped + side])


def in_hsv(images: Tensor, change_hsv: object) -> np.ndarray:
    """Each pixel changed by the standard library's colour conversion, cut off to whole levels."""
    flat = images.permute(0, 2, 3, 1).reshape(-1, 3).double().numpy() / 255
    changed = [colorsys.hsv_to_rgb(*change_hsv(*colorsys.rgb_to_hsv(*pixel))) for pixel in flat]  # type: ignore[operator]
    return np.asarray(changed) * 255


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_and_saturation_change_the_hsv_colour(severity: int) -> None:
    images = torch.randint(0, 256, (1, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[0, :, 0, :4] = torch.tensor([0, 10, 128, 255], dtype=torch.uint8)
    amount = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    factor, offset = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    expected = {
        "brightness": in_hsv(images, lambda h, s, v: (h, s, min(v + amount, 1))),
        "saturate": in_hsv(images, lambda h, s, v: (h, min(s * factor + offset, 1), v)),
    }
    for name, levels in expected.items():
        ours = corrupt(images, name, severity).permute(0, 2, 3, 1).reshape(-1, 3).double().numpy()
        assert (levels - ours).max() < 1 + 1e-2
        assert (levels - ours).min() > -1e-2, "cut off, not rounded"


def test_contrast_keeps_the_mean_and_shrinks_the_rest() -> None:
    images = pictures(3, 3, 32, 32)
    flat = corrupt(images, "contrast", 5).double()
    assert (flat.mean((2, 3)) - (images.double().mean((2, 3)) - 0.5)).abs().max() < 0.1
    ratio = flat.std((2, 3)) / images.double().std((2, 3))
    assert ratio.sub(0.15).abs().max() < 0.002


def test_pixelate_makes_blocks() -> None:
    images = pictures(1, 3, 64, 64)
    coarse = corrupt(images, "pixelate", 5)[0, 0]
    assert len({tuple(row.tolist()) for row in coarse}) <= int(64 * 0.65)


def test_fog_is_a_map_between_zero_and_one_and_rougher_with_less_decay() -> None:
    rough, soft = (plasma(20, 32, decay, np.random.default_rng(0)) for decay in (1.75, 3.0))
    for maps in (rough, soft):
        assert np.allclose(maps.min((1, 2)), 0)
        assert np.allclose(maps.max((1, 2)), 1)
    assert np.abs(np.diff(rough)).mean() > 1.3 * np.abs(np.diff(soft)).mean()


def test_edges_of_a_square_are_its_outline_in_each_image_alone() -> None:
    images = np.zeros((2, 20, 20), np.int32)
    images[0, 5:15, 5:15] = 200
    found = edges(images)
    assert not found[1].any()
    assert not found[0, 8:12, 8:12].any()
    assert not found[0, :3].any()
    assert found[0, 10].sum() == 2
    assert found[0, :, 10].sum() == 2


def test_a_weak_edge_counts_only_beside_a_strong_one() -> None:
    faint = np.zeros((1, 20, 20), np.int32)
    faint[0, :, 10:] = 25
    assert not edges(faint).any()
    faint[0, :3, 10:] = 200
    found = edges(faint)
    assert found[0, 12].any()


def test_equalising_spreads_levels_evenly() -> None:
    image = np.array([[10, 10, 11], [11, 12, 12]], np.uint8)
    assert equalised(image).tolist() == [[0, 0, 128], [128, 255, 255]]
    assert equalised(np.full((2, 2), 7, np.uint8)).tolist() == [[7, 7], [7, 7]]


def test_every_piece_of_a_large_set_has_noise_of_its_own() -> None:
    images = torch.full((AT_ONCE + 2, 1, 8, 8), 128, dtype=torch.uint8)
    corrupted = corrupt(images, "gaussian_noise", 1)
    assert corrupted.shape == images.shape
    assert not torch.equal(corrupted[0], corrupted[AT_ONCE])


def test_no_images_give_no_images() -> None:
    assert corrupt(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "snow", 1).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    ("images", "name", "severity", "message"),
    [
        (grey_level(0), "gaussian_blurr", 1, "Did you mean 'gaussian_blur'"),
        (grey_level(0), "snow", 0, "from 1 to 5; got 0"),
        (grey_level(0), "snow", 6, "from 1 to 5; got 6"),
        (grey_level(0), "snow", 2.5, "whole number"),
        (grey_level(0).float(), "snow", 1, "uint8"),
        (grey_level(0)[0], "snow", 1, "uint8"),
        (grey_level(0)[:, :2], "snow", 1, "1 or 3"),
        (grey_level(0, side=7), "snow", 1, "at least 8 x 8"),
        (grey_level(0)[:, :1], "saturate", 1, "needs colour images"),
    ],
)
def test_a_wrong_request_says_what_is_right(images: Tensor, name: str, severity: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        corrupt(images, name, severity)


def test_hyphens_and_underscores_are_the_same_name() -> None:
    images = pictures(2, 3, 32, 32)
    assert torch.equal(corrupt(images, "gaussian-noise", 2), corrupt(images, "gaussian_noise", 2))
