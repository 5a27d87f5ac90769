"""DSA against a plain implementation that treats one image at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import KINDS, Augmentation, dsa

COUNT = 40
MIXED = ("color", "cutout", "flip")
SHAPES = [(3, 16, 16), (1, 9, 9), (2, 8, 12)]


def uniform_of(kind: str, count: int, seed: int) -> np.ndarray:
    """The three uniform numbers an image's parameters are made of."""
    return torch.rand(3, count, generator=torch.Generator().manual_seed(seed)).double().numpy()


def images_of(shape: tuple[int, int, int], count: int = COUNT, seed: int = 3) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain_color(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    image = image + (u[0] - 0.5) * 1.0
    grey = image.mean(0, keepdims=True)
    image = grey + (image - grey) * (2.0 * u[1])
    return image.mean() + (image - image.mean()) * (u[2] + 0.5)


def plain_crop(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    _, height, width = image.shape
    pads = [int(side * 0.125 + 0.5) for side in (height, width)]
    padded = np.pad(image, [(0, 0), (pads[0], pads[0]), (pads[1], pads[1])])
    top, left = (int(value * (2 * pad + 1)) for value, pad in zip(u, pads, strict=False))
    return padded[:, top : top + height, left : left + width]


def plain_cutout(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    _, height, width = image.shape
    image = image.copy()
    spans = []
    for side, value in ((height, u[0]), (width, u[1])):
        size = int(side * 0.5 + 0.5)
        start = int(value * (side + 1 - size % 2)) - size // 2
        spans.append(slice(max(0, start), max(0, start + size)))
    image[:, spans[0], spans[1]] = 0
    return image


def plain_flip(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    return image[:, :, ::-1] if u[0] < 0.5 else image


def resampled(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Output pixel (row, column) shows the input at ``matrix`` times its offset from the centre."""
    _, height, width = image.shape
    centre = np.array([(height - 1) / 2, (width - 1) / 2])
    offsets = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1) - centre
    positions = (offsets @ matrix.T + centre).transpose(2, 0, 1)
    return np.stack([map_coordinates(channel, positions, order=1, mode="grid-constant") for channel in image])


def plain_scale(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    across, down = 1 / 1.2 + u[:2] * (1.2 - 1 / 1.2)
    return resampled(image, np.diag([down, across]))


def plain_rotate(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    angle = (2 * u[0] - 1) * math.radians(15)
    cos, sin = math.cos(angle), math.sin(angle)
    return resampled(image, np.array([[cos, sin], [-sin, cos]]))


PLAIN = {
    "color": plain_color,
    "crop": plain_crop,
    "cutout": plain_cutout,
    "flip": plain_flip,
    "scale": plain_scale,
    "rotate": plain_rotate,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_agrees_with_a_plain_implementation(kind: str, shape: tuple[int, int, int]) -> None:
    images = images_of(shape)
    transformation = Augmentation().draw_kind(kind, COUNT, torch.Generator().manual_seed(7))
    uniform = uniform_of(kind, COUNT, 7)
    expected = np.stack([PLAIN[kind](image, uniform[:, i]) for i, image in enumerate(images.numpy())])
    # Angles and factors are drawn in float32; a position is off by at most their rounding times the side, and a pixel
    # by that times the steepest slope between neighbours (at most the range of the image). Copies are exact.
    spread = (images.max() - images.min()).item()
    exact = kind in ("crop", "cutout", "flip")
    bound = 0 if exact else 8 * float(torch.finfo(torch.float32).eps) * max(shape) * spread
    np.testing.assert_allclose(transformation(images).numpy(), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_differ_between_images_and_change_them(kind: str) -> None:
    images = images_of((3, 16, 16), 1).expand(COUNT, -1, -1, -1)
    changed = Augmentation().draw_kind(kind, COUNT, torch.Generator().manual_seed(0))(images)
    distinct = len({image.numpy().tobytes() for image in changed})
    # Crop has (2 * 2 + 1) ** 2 = 25 outcomes on a side of 16, of which 40 draws show 20 on average, give or take 2.
    assert distinct == 2 if kind == "flip" else distinct >= 12


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(kind: str) -> None:
    transformation = Augmentation().draw_kind(kind, 3, torch.Generator().manual_seed(1))
    images = images_of((2, 5, 6), 3).requires_grad_()
    assert torch.autograd.gradcheck(transformation, (images,))


@pytest.mark.parametrize("kind", KINDS)
def test_a_transformation_repeats_itself(kind: str) -> None:
    """Siamese: what is done to one batch is done to another, and again."""
    transformation = Augmentation().draw_kind(kind, 8, torch.Generator().manual_seed(2))
    images, others = images_of((3, 16, 16), 8), images_of((3, 16, 16), 8, seed=9)
    assert torch.equal(transformation(images), transformation(images))
    if kind != "color":  # linear in the images: the same map for both
        together = transformation(images + others)
        torch.testing.assert_close(together, transformation(images) + transformation(others))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_number_formats_are_kept(kind: str, dtype: torch.dtype) -> None:
    transformation = Augmentation().draw_kind(kind, 8, torch.Generator().manual_seed(2))
    images = images_of((3, 16, 16), 8)
    result = transformation(images.to(dtype))
    assert result.dtype == dtype
    # One rounding of each value of up to ~4, and up to nine operations in that format.
    tolerance = 9 * float(torch.finfo(dtype).eps) * images.abs().max().item() + 1e-5
    assert (result.double() - transformation(images)).abs().max() <= tolerance


def test_one_kind_a_batch_all_of_them_in_time() -> None:
    """Each of many draws on constant images shows one kind only; the kinds are equally likely."""
    augmentation = Augmentation()
    randomness = Randomness.for_purpose(0, "test")
    draws = 600
    images = images_of((3, 8, 8), 4)
    counts = dict.fromkeys(KINDS, 0)
    for _ in range(draws):
        generator = torch.Generator()
        generator.set_state(randomness.device.get_state())
        result = augmentation.draw(4, randomness)(images)
        matching = []
        for kind in KINDS:
            again = torch.Generator()
            again.set_state(generator.get_state())
            if torch.equal(Augmentation().draw_kind(kind, 4, again)(images), result):
                matching.append(kind)
        assert len(matching) == 1
        counts[matching[0]] += 1
    expected, deviation = draws / 6, math.sqrt(draws * 5 / 36)
    assert all(abs(count - expected) < 4 * deviation for count in counts.values())


def test_parameters_stay_within_the_literature_s_bounds() -> None:
    count = 4000
    ones = torch.ones(count, 1, 17, 17, dtype=torch.float64)
    draw = Augmentation().draw_kind
    generator = torch.Generator().manual_seed(5)
    # Colour on a constant image is brightness alone: uniform within half of 1 either way.
    shift = draw("color", count, generator)(ones)[:, 0, 0, 0] - 1
    assert -0.5 <= shift.min() < -0.49 and 0.49 < shift.max() <= 0.5
    # Crop: int(17 / 8 + 0.5) = 2 rows at most leave the image either way.
    rows = draw("crop", count, generator)(ones)[:, 0].amax(2).sum(1)
    assert set(rows.tolist()) == {15.0, 16.0, 17.0}
    # Cutout: int(17 / 2 + 0.5) = 9 on a side, less where it reaches beyond the border (centre on the border: 5).
    cut = (draw("cutout", count, generator)(ones)[:, 0] == 0).any(2).sum(1)
    assert (cut.min(), cut.max()) == (5, 9)
    flipped = draw("flip", count, generator)(torch.arange(2.0).expand(count, 1, 2, 2))[:, 0, 0, 0]
    assert abs(flipped.mean() - 0.5) < 4 * 0.5 / math.sqrt(count)


def test_digits_are_not_flipped() -> None:
    assert dsa(flippable=True).kinds == KINDS
    assert dsa(flippable=False).kinds == tuple(kind for kind in KINDS if kind != "flip")


@pytest.mark.parametrize("kinds", [(), ("blur",), ("flip", "blur")])
def test_unknown_kinds_are_refused(kinds: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="among color, crop"):
        Augmentation(kinds)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_can_be_captured_in_a_cuda_graph(kind: str) -> None:
    """Capture fails on any wait for the device; the replay must follow new parameters and images."""
    generator = torch.Generator("cuda").manual_seed(0)
    images = torch.randn(8, 3, 16, 16, device="cuda", requires_grad=True)

    def forward_and_backward() -> tuple[Tensor, Tensor]:
        result = Augmentation().draw_kind(kind, 8, generator)(images)
        return result, torch.autograd.grad(result.square().sum(), images)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        forward_and_backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result, gradient = forward_and_backward()
    graph.replay()
    first = result.clone()
    graph.replay()
    assert not torch.equal(first, result)
    assert gradient.isfinite().all()


def test_a_block_gives_each_step_its_kind_and_its_own_images() -> None:
    steps, augmentation = 12, Augmentation(("color", "cutout", "flip"))
    host = Randomness.for_purpose(0, "block").host
    kinds = [host.choice(augmentation.kinds) for _ in range(steps)]
    images = torch.randn(2, steps, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    draw = augmentation.draw_steps(steps, 2 * 3, Randomness.for_purpose(0, "block"))
    found = draw(images)
    assert torch.equal(draw(images), found)
    for step, kind in enumerate(kinds):
        before, after = images[:, step], found[:, step]
        if kind == "flip":
            same, mirrored = (((after == other).flatten(2).all(-1)) for other in (before, before.flip(-1)))
            assert (same | mirrored).all()
        if kind == "cutout":
            hidden = after == 0
            assert torch.equal(after, torch.where(hidden, 0.0, before))
            assert 0 < hidden.float().mean() < 1
    assert set(kinds) == set(augmentation.kinds)


def kinds_seen(before: Tensor, after: Tensor) -> list[str]:
    """Which of colour, cutout and flip changed each image; images without zeros and symmetry tell them apart."""

    def kind(image: Tensor, changed: Tensor) -> str:
        if (changed == 0).any():
            return "cutout"
        return "flip" if torch.equal(changed, image) or torch.equal(changed, image.flip(-1)) else "color"

    return [kind(image, changed) for image, changed in zip(before, after, strict=True)]


@given(count=st.integers(1, 25), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_mixed_images_are_dealt_out_evenly_to_the_kinds(count: int, seed: int) -> None:
    images = images_of((3, 8, 8), count)
    transformation = Augmentation(MIXED, mixed=True).draw(count, Randomness.for_purpose(seed, "mixed"))
    found = transformation(images)
    assert torch.equal(transformation(images), found)
    numbers = [kinds_seen(images, found).count(kind) for kind in MIXED]
    assert sum(numbers) == count and max(numbers) - min(numbers) <= 1


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_mixed_image_is_of_each_kind_equally_often(count: int) -> None:
    augmentation, randomness = Augmentation(MIXED, mixed=True), Randomness.for_purpose(0, "mixed")
    images, draws = images_of((3, 8, 8), count), 600
    first = [kinds_seen(images[:1], augmentation.draw(count, randomness)(images)[:1])[0] for _ in range(draws)]
    deviation = math.sqrt(draws * 2 / 9)
    assert all(abs(first.count(kind) - draws / 3) < 4 * deviation for kind in MIXED)


def test_mixed_images_pass_their_gradients_back() -> None:
    images = images_of((2, 5, 6), 7).requires_grad_()
    assert torch.autograd.gradcheck(Augmentation(mixed=True).draw(7, Randomness.for_purpose(1, "mixed")), (images,))


def test_a_mixed_block_is_the_mixed_draw_of_all_its_images() -> None:
    augmentation = Augmentation(mixed=True)
    images = torch.randn(2, 4, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    block = augmentation.draw_steps(4, 2 * 3, Randomness.for_purpose(0, "block"))(images)
    flat = augmentation.draw(2 * 4 * 3, Randomness.for_purpose(0, "block"))(images.flatten(0, 2))
    assert torch.equal(block.flatten(0, 2), flat)


def test_a_block_of_the_same_images_is_differentiable_in_them() -> None:
    images = torch.randn(3, 1, 8, 8, requires_grad=True)
    draw = Augmentation(("flip",)).draw_steps(5, 3, Randomness.for_purpose(0, "block"))
    draw(images.expand(1, 5, *images.shape)).sum().backward()
    torch.testing.assert_close(images.grad, torch.full_like(images, 5.0))


def test_strengths_of_nothing_change_nothing() -> None:
    none = {"brightness": 0, "saturation": 0, "contrast": 0, "crop": 0, "cutout": 0, "scale": 1, "rotate": 0}
    augmentation = dsa(flippable=False, strengths=none)
    images = images_of((3, 8, 8))
    for kind in augmentation.kinds:
        found = augmentation.draw_kind(kind, COUNT, torch.Generator().manual_seed(0))(images)
        torch.testing.assert_close(found, images, rtol=0, atol=1e-5)


def test_colour_can_be_changed_in_part() -> None:
    """Brightness alone is a shift; saturation alone keeps the grey of each pixel; contrast alone the mean."""
    images = images_of((3, 8, 8))

    def changed(**kept: float) -> Tensor:
        strengths = {"brightness": 0.0, "saturation": 0.0, "contrast": 0.0} | kept
        augmentation = dsa(True, kinds=("color",), strengths=strengths)
        return augmentation.draw(COUNT, Randomness.for_purpose(0, "colour"))(images)

    shift = changed(brightness=0.4) - images
    assert torch.allclose(shift, shift[:, :1, :1, :1].expand_as(shift)) and 0.15 < shift.abs().max() <= 0.2
    torch.testing.assert_close(changed(saturation=1).mean(1), images.mean(1))
    torch.testing.assert_close(changed(contrast=0.3).mean((1, 2, 3)), images.mean((1, 2, 3)))
    assert not torch.allclose(changed(saturation=1), images) and not torch.allclose(changed(contrast=0.3), images)


@pytest.mark.parametrize(
    "strengths", [{"scale": 0.5}, {"rotate": -1}, {"crop": 2}, {"brightness": math.nan}, {"blur": 1}]
)
def test_impossible_strengths_are_refused(strengths: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"[Ss]trength"):
        dsa(True, strengths=strengths)
