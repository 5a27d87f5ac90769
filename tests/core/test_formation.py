"""Several smaller images in one: the map, its gradient, what is stored, and its use from start to file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small import NETWORK, Invoke

import pseudocoresets as pc
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.formation import enlarged, spread_out, tiled
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points


def mosaics(count: int = 3, side: int = 8) -> torch.Tensor:
    return torch.randn(count, 2, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def points() -> Points:
    return Points(mosaics(), torch.tensor([2, 0, 1]), torch.tensor([4.0, 8.0, 12.0], dtype=torch.float64))


def test_tiles_are_enlarged_as_pillow_does_it() -> None:
    """Pillow's bilinear resampling to a larger size is the same interpolation, computed by other hands."""
    images = mosaics(1)
    found = enlarged(images, 2).view(2, 2, 2, 8, 8)
    for row in range(2):
        for column in range(2):
            tile = images[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            for channel in range(2):
                picture = Image.fromarray(tile[channel].float().numpy(), mode="F")
                expected = torch.from_numpy(np.array(picture.resize((8, 8), Image.Resampling.BILINEAR)))
                torch.testing.assert_close(found[row, column, channel].float(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("formation", [2, 4])
def test_tiling_goes_back_where_images_are_flat(formation: int) -> None:
    """Averages of constant tiles are the tiles, in the same places."""
    levels = torch.arange(2.0 * formation**2)
    flat = levels.view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    mosaic = tiled(flat, formation)
    assert mosaic.shape == (2, 1, 8, 8)
    assert torch.equal(enlarged(mosaic, formation), flat)
    assert torch.equal(mosaic[0, 0, 0, :: 8 // formation], levels[:formation])


def test_points_keep_labels_and_total_weight() -> None:
    stored = points()
    used = spread_out(stored, 2)
    assert used.x.shape == (12, 2, 8, 8)
    assert used.y.tolist() == [2] * 4 + [0] * 4 + [1] * 4
    assert used.weights.tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert spread_out(stored, 1) is stored


def test_the_gradient_in_what_is_stored_is_that_of_finite_differences() -> None:
    form = Parameterisation(points(), "simplex", True, classes=3, formation=2)
    free = {name: tensor.double().requires_grad_() for name, tensor in form.initial().items()}
    assert free["x"].shape == form.start.x.shape

    def value(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        made = form.points({"x": x, "y": y, "weights": weights})
        scores = made.x.flatten(1).sin().unflatten(1, (4, 32)).sum(-1)[:, :3]
        return (made.weights[:, None] * scores * made.y).sum()

    assert torch.autograd.gradcheck(value, tuple(free.values()))


def test_images_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be cut into 3 x 3 tiles"):
        enlarged(mosaics(), 3)


@pytest.fixture(scope="module")
def formed(digits: pc.Dataset) -> pc.Coreset:
    options = {"steps": 4, "chains": 1, "batch_size": 32, "horizon": 8}
    return pc.construct(
        *(digits, None, "bptt", 1),
        network=NETWORK,
        method_options=options,
        formation=2,
        iterations=5,
        optimiser="adam",
        learning_rate=0.05,
        device="cpu",
    )


def test_a_construction_starts_from_four_real_images_in_one_and_learns_what_is_stored(
    formed: pc.Coreset, digits: pc.Dataset
) -> None:
    start = pc.construct(digits, method="random", ipc=1, network=NETWORK, formation=2)
    whole = pc.construct(digits, method="random", ipc=4, network=NETWORK)
    assert torch.equal(start.x, tiled(whole.x, 2))
    assert start.y.tolist() == list(range(10))
    assert (len(formed), formed.images_per_class, len(formed.points)) == (10, 1.0, 40)
    assert not torch.equal(formed.x, start.x)
    assert float(formed.points.weights.sum()) == pytest.approx(len(digits.train), rel=1e-6)
    assert len(formed.dataset()) == 40
    assert formed.to_pixels().shape == formed.x.shape


def test_the_file_is_no_larger_and_carries_it(formed: pc.Coreset, digits: pc.Dataset, tmp_path: Path) -> None:
    path, plain = tmp_path / "c.safetensors", tmp_path / "plain.safetensors"
    formed.save(path)
    pc.construct(digits, method="random", ipc=1, network=NETWORK).save(plain)
    own, other = load_file(path), load_file(plain)
    assert {name: tensor.shape for name, tensor in own.items()} == {name: each.shape for name, each in other.items()}
    again = pc.Coreset.load(path)
    assert again.formation == 2
    assert torch.equal(again.points.x, formed.points.x)
    formed.save(path, compact=True)
    assert (pc.Coreset.load(path).formation, load_file(path)["images"].dtype) == (2, torch.float16)
    replace(formed, formation=3).save(path)
    with pytest.raises(FileFormatError, match="cannot be cut"):
        pc.Coreset.load(path)


def test_its_posterior_is_that_of_the_images_as_they_are_used(formed: pc.Coreset) -> None:
    used = formed.points
    spread = replace(formed, x=used.x, y=used.y, weights=used.weights, formation=1)
    settings = {"steps": 6, "samples": 2, "chains": 1, "device": "cpu"}
    first, second = (pc.sample_posterior(each, **settings) for each in (formed, spread))
    assert torch.equal(first.parameters, second.parameters)


def test_another_formation_cannot_go_on(formed: pc.Coreset, digits: pc.Dataset) -> None:
    with pytest.raises(InputError, match="go on with --formation 2"):
        pc.construct(digits, None, "bptt", 1, network=NETWORK, initial=formed, iterations=1, device="cpu")


def test_classes_without_enough_images_are_refused(digits: pc.Dataset) -> None:
    few = replace(digits, train=digits.train.subset(torch.arange(45)), transform=digits.transform)
    with pytest.raises(InputError, match="takes 4 images of its class"), pytest.warns(UserWarning, match="fewer"):
        pc.construct(few, method="random", ipc=2, network=NETWORK, formation=2)


def test_the_command_marks_it_beside_a_control_of_whole_images(bpc: Invoke, tmp_path: Path) -> None:
    small = ("--network", NETWORK, "--device", "cpu", "--sampling-steps", 10, "--samples", 2, "--chains", 1)
    made = bpc("run", "--method", "random", "--formation", 2, *small, "--out", "r")
    assert made.exit_code == 0, made.stderr
    assert "random (4 images in one)" in made.stdout
    assert pc.Coreset.load(tmp_path / "r").formation == 2
    assert pc.Coreset.load(tmp_path / "r" / "control.safetensors").formation == 1
    assert json.loads((tmp_path / "r" / "metrics.json").read_text())["formation"] == 2
    assert "4 images in one" in (tmp_path / "r" / "report.html").read_text()
