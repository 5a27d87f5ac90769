"""The common corruptions of CIFAR-10-C in five severities, generated for any images.

The constants are those published with CIFAR-10-C for images of 32 x 32. Blurs and displacements are lengths: they
grow with larger images, so that the same picture at a higher resolution is corrupted alike, and are kept for
smaller ones, where a part of a pixel would blur nothing. Every function here takes images (n, channels, height,
width) in [0, 1], the constants of one severity and a random generator.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.seeds import derive_seed

Array = NDArray[Any]
Apply = Callable[[Array, Any, np.random.Generator], Array]

SEVERITIES = range(1, 6)
REFERENCE_SIDE = 32
SMALLEST_SIDE = 8
AT_ONCE = 500
"""Images in one piece of work, which bounds the memory."""

SHIFT_CORRUPTIONS = (
    "gaussian_blur",
    "gaussian_noise",
    "jpeg_compression",
    "snow",
    "impulse_noise",
    "zoom_blur",
    "pixelate",
    "speckle_noise",
    "defocus_blur",
    "motion_blur",
)
"""The ten of the paper's table on distribution shift."""


@dataclass(frozen=True)
class Corruption:
    """A corruption and its constants for the five severities."""

    apply: Apply
    levels: tuple[Any, Any, Any, Any, Any]


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Images (n, channels, height, width) in uint8, corrupted; the same seed gives the same result."""
    name = name.replace("-", "_")
    corruption = CORRUPTIONS[name]
    _check(images, severity)
    pieces = []
    for index, start in enumerate(range(0, len(images), AT_ONCE)):
        rng = np.random.default_rng(derive_seed(seed, "corruption", name, severity, index))
        piece = images[start : start + AT_ONCE].cpu().numpy().astype(np.float32) / 255
        pieces.append(to_bytes(corruption.apply(piece, corruption.levels[severity - 1], rng)))
    return torch.from_numpy(np.concatenate(pieces)) if pieces else images.clone()


def _check(images: Tensor, severity: int) -> None:
    if severity not in SEVERITIES:
        raise InputError(f"The severity of a corruption is a whole number from 1 to 5; got {severity}.")
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise InputError(
            "Corruptions take grey or colour images (n, 1 or 3, height, width) in uint8; "
            f"got {tuple(images.shape)} in {images.dtype}."
        )
    if min(images.shape[2:]) < SMALLEST_SIDE:
        raise InputError(
            f"Corruptions take images of at least {SMALLEST_SIDE} x {SMALLEST_SIDE}; got {tuple(images.shape[2:])}."
        )


def to_bytes(images: Array) -> Array:
    """[0, 1] to whole levels, cut off as CIFAR-10-C does; the small amount keeps whole levels whole."""
    return (np.clip(images, 0, 1) * 255 + 1e-3).astype(np.uint8)


def scale_of(images: Array) -> float:
    """How many pixels here are one pixel of a 32 x 32 image, at least one."""
    return max(1.0, min(images.shape[2:]) / REFERENCE_SIDE)


# Noise


def gaussian_noise(images: Array, deviation: float, rng: np.random.Generator) -> Array:
    return images + deviation * rng.standard_normal(images.shape, np.float32)


def shot_noise(images: Array, photons: float, rng: np.random.Generator) -> Array:
    counts: Array = rng.poisson(images * photons)
    return counts / photons


def impulse_noise(images: Array, fraction: float, rng: np.random.Generator) -> Array:
    """A fraction of all values becomes 0 or 1, each channel on its own."""
    hit = rng.random(images.shape, np.float32) <= fraction
    return np.where(hit, rng.integers(0, 2, images.shape), images)


def speckle_noise(images: Array, deviation: float, rng: np.random.Generator) -> Array:
    return images * (1 + deviation * rng.standard_normal(images.shape, np.float32))


# Blur


def gaussian_blur(images: Array, sigma: float, rng: np.random.Generator) -> Array:
    return smooth(images, sigma * scale_of(images))


def glass_blur(images: Array, level: tuple[float, int, int], rng: np.random.Generator) -> Array:
    """Blur, let each inner pixel take the value of a random neighbour (several times), blur."""
    sigma, reach, times = level[0] * scale_of(images), max(1, round(level[1] * scale_of(images))), level[2]
    images = to_bytes(smooth(images, sigma)).astype(np.float32) / 255
    n, _, height, width = images.shape
    inner = np.s_[:, reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    for _ in range(times):
        rows, columns = np.broadcast_arrays(*np.ogrid[:height, :width])
        rows, columns = np.tile(rows, (n, 1, 1)), np.tile(columns, (n, 1, 1))
        rows[inner] += rng.integers(-reach, reach, rows[inner].shape)
        columns[inner] += rng.integers(-reach, reach, columns[inner].shape)
        images = pixels_at(images, rows, columns)
    return smooth(images, sigma)


def defocus_blur(images: Array, level: tuple[float, float], rng: np.random.Generator) -> Array:
    kernel = disk(level[0] * scale_of(images), level[1] * scale_of(images))
    return np.asarray(ndimage.correlate(images, kernel[None, None], mode="mirror"))


def motion_blur(images: Array, level: tuple[float, float], rng: np.random.Generator) -> Array:
    angles: Array = rng.uniform(-45, 45, (len(images),))
    return moved(images, level[0] * scale_of(images), level[1] * scale_of(images), angles)


def zoom_blur(images: Array, furthest: float, rng: np.random.Generator) -> Array:
    """The mean of the image and of itself at many zooms."""
    factors = np.arange(1, furthest, 0.01)
    return (images + sum(zoomed(images, factor) for factor in factors)) / (len(factors) + 1)


# Weather


def snow(
    images: Array,
    level: tuple[float, float, float, float, float, float, float],
    rng: np.random.Generator,
) -> Array:
    mean, deviation, zoom, threshold, radius, sigma, clear = level
    n, _, height, width = images.shape
    flakes = zoomed(rng.normal(mean, deviation, (n, 1, height, width)).astype(np.float32), zoom)
    flakes = to_bytes(np.where(flakes < threshold, 0, flakes)) / np.float32(255)
    scale = scale_of(images)
    flakes = moved(flakes, radius * scale, sigma * scale, rng.uniform(-135, -45, (n,)))
    whitened = clear * images + (1 - clear) * np.maximum(images, grey(images) * 1.5 + 0.5)
    return whitened + flakes + flakes[:, :, ::-1, ::-1]


def frost(images: Array, level: tuple[float, float], rng: np.random.Generator) -> Array:
    """A procedural texture in place of CIFAR-10-C's photographs of frost, with about their colour and contrast."""
    kept, added = level
    n, channels, height, width = images.shape
    side = power_of_two(max(height, width))
    ridges = 1 - 2 * np.abs(plasma(n, side, 2.0, rng)[:, None, :height, :width] - 0.5)
    ridges -= ridges.mean((2, 3), keepdims=True)
    grain = rng.standard_normal((n, 1, height, width))
    brightness = rng.normal(0, 45, (n, 1, 1, 1)) + 20 * ridges / ridges.std() + 15 * grain
    texture = np.array([146, 167, 179])[None, :, None, None] + brightness
    texture = np.clip(texture if channels == 3 else grey(texture), 0, 255) / 255
    return kept * images + added * texture


def fog(images: Array, level: tuple[float, float], rng: np.random.Generator) -> Array:
    amount, decay = level
    height, width = images.shape[2:]
    cloud = plasma(len(images), power_of_two(max(height, width)), decay, rng)[:, None, :height, :width]
    brightest = images.max((1, 2, 3), keepdims=True)
    return (images + amount * cloud) * brightest / (brightest + amount)


def spatter(images: Array, level: tuple[float, float, float, float, float, bool], rng: np.random.Generator) -> Array:
    mean, deviation, sigma, threshold, strength, muddy = level
    n, _, height, width = images.shape
    liquid = smooth(rng.normal(mean, deviation, (n, 1, height, width)), sigma)
    if muddy:
        cover = smooth((liquid > threshold).astype(np.float32), strength)
        cover = np.where(cover < 0.8, 0, cover)
        return images * (1 - cover) + cover * colour_for(images, (63, 42, 20))
    drops = np.where(liquid < threshold, 0, liquid) * 255
    return images + strength * water(drops.astype(np.uint8)) * colour_for(images, (175, 238, 238))


# Digital


def brightness(images: Array, amount: float, rng: np.random.Generator) -> Array:
    """The value of the HSV colour goes up, hue and saturation stay."""
    value = images.max(1, keepdims=True)
    brighter = np.minimum(value + amount, 1)
    return np.where(value > 0, images * (brighter / np.where(value > 0, value, 1)), brighter)


def saturate(images: Array, level: tuple[float, float], rng: np.random.Generator) -> Array:
    """The saturation of the HSV colour changes, hue and value stay; a colourless pixel counts as red."""
    if images.shape[1] == 1:
        raise InputError("The corruption 'saturate' changes colours, so it needs colour images; these are grey.")
    value, lowest = images.max(1, keepdims=True), images.min(1, keepdims=True)
    spread = value - lowest
    saturation = spread / np.where(value > 0, value, 1)
    red = np.array([0, 1, 1], np.float32)[None, :, None, None]
    missing = np.where(spread > 0, (value - images) / np.where(spread > 0, spread, 1), red)
    wanted = np.clip(saturation * level[0] + level[1], 0, 1)
    return value * (1 - wanted * missing)


def contrast(images: Array, factor: float, rng: np.random.Generator) -> Array:
    means = images.mean((2, 3), keepdims=True)
    return (images - means) * factor + means


def jpeg_compression(images: Array, quality: int, rng: np.random.Generator) -> Array:
    def compressed(picture: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return picture_by_picture(images, compressed)


def pixelate(images: Array, fraction: float, rng: np.random.Generator) -> Array:
    def coarse(picture: Image.Image) -> Image.Image:
        small = (int(picture.width * fraction), int(picture.height * fraction))
        return picture.resize(small, Image.Resampling.BOX).resize(picture.size, Image.Resampling.BOX)

    return picture_by_picture(images, coarse)


def elastic_transform(images: Array, level: tuple[float, float, float], rng: np.random.Generator) -> Array:
    """A random affine map, then random smooth displacements; all lengths are parts of the image's side."""
    n, _, height, width = images.shape
    displacement, sigma, jitter = (part * min(height, width) for part in level)
    images = sampled(images, *affine_positions(n, height, width, jitter, rng), mirror_at="centres")
    fields = rng.uniform(-1, 1, (2, n, height, width))
    dx, dy = displacement * smooth(fields, sigma, mode="reflect", truncate=3) if sigma else 0 * fields
    rows, columns = np.ogrid[:height, :width]
    return sampled(images, rows + dy, columns + dx, mirror_at="edges")


# What they share


def smooth(images: Array, sigma: float, mode: str = "nearest", truncate: float = 4) -> Array:
    """Gaussian smoothing of the last two dimensions."""
    sigmas = (0.0,) * (images.ndim - 2) + (sigma, sigma)
    return np.asarray(ndimage.gaussian_filter(images, sigmas, mode=mode, truncate=truncate))


def grey(images: Array) -> Array:
    """Luma (n, 1, height, width)."""
    if images.shape[1] == 1:
        return images
    return np.tensordot(np.array([0.299, 0.587, 0.114], images.dtype), images, (0, 1))[:, None]


def colour_for(images: Array, colour: tuple[int, int, int]) -> Array:
    """A colour, or its luma for grey images."""
    rgb = np.array(colour, np.float32)[None, :, None, None] / 255
    return rgb if images.shape[1] == 3 else grey(rgb)


def pixels_at(images: Array, rows: Array, columns: Array) -> Array:
    """Pixels at positions (n, height, width), the same in every channel."""
    n, channels, _, width = images.shape
    positions = (rows * width + columns).reshape(n, 1, -1)
    return np.take_along_axis(images.reshape(n, channels, -1), positions, 2).reshape(images.shape)


def disk(radius: float, softness: float) -> Array:
    """A disk of sum 1, smoothed by a small Gaussian."""
    reach = math.ceil(radius) + 2
    distance = np.hypot(*np.ogrid[-reach : reach + 1, -reach : reach + 1])
    hard = (distance <= radius).astype(np.float32)
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    bell = np.exp(-(taps**2) / (2 * softness**2))
    soft = ndimage.convolve(hard / hard.sum(), np.outer(bell, bell) / bell.sum() ** 2, mode="constant")
    return np.asarray(soft, np.float32)


def moved(images: Array, radius: float, sigma: float, angles: Array) -> Array:
    """Motion blur to one side: a half Gaussian along whole-pixel steps in each image's direction.

    This is what ImageMagick's MotionBlur, which made CIFAR-10-C, computes: edges are repeated, results rounded.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    height, width = images.shape[2:]
    radians = np.deg2rad(angles)[:, None]
    down = np.ceil(steps * np.sin(radians) - 0.5).astype(int)
    right = np.ceil(steps * np.cos(radians) - 0.5).astype(int)
    total = np.zeros_like(images)
    for step, weight in enumerate(weights / weights.sum()):
        rows = np.clip(np.arange(height) + down[:, step, None], 0, height - 1)[:, :, None]
        columns = np.clip(np.arange(width) + right[:, step, None], 0, width - 1)[:, None, :]
        total += np.float32(weight) * pixels_at(images, rows, columns)
    return np.rint(total * 255) / 255


def zoomed(images: Array, factor: float) -> Array:
    """The centre of the image, enlarged to the whole by linear interpolation."""
    rows, columns = (zoom_matrix(side, factor).astype(images.dtype) for side in images.shape[2:])
    return rows @ images @ columns.T


def zoom_matrix(side: int, factor: float) -> Array:
    """Linear interpolation (side, side) from the pixels of one axis to their zoom about the centre."""
    cropped = math.ceil(side / factor)
    enlarged = round(cropped * factor)
    skipped = (enlarged - side) // 2
    positions = (np.arange(side) + skipped) * (cropped - 1) / (enlarged - 1)
    below = np.minimum(positions.astype(int), cropped - 2)
    part = positions - below
    matrix = np.zeros((side, side))
    first = (side - cropped) // 2
    matrix[np.arange(side), first + below] = 1 - part
    matrix[np.arange(side), first + below + 1] = part
    return matrix


def power_of_two(side: int) -> int:
    return 1 << (side - 1).bit_length()


def plasma(n: int, side: int, decay: float, rng: np.random.Generator) -> Array:
    """Height maps (n, side, side) in [0, 1] by the diamond-square algorithm on a torus; ``side`` is a power of two.

    As in CIFAR-10-C, the amplitude of a wobble is its square.
    """
    maps = np.zeros((n, side, side))
    step, wobble = side, 100.0

    def perturbed(sums: Array) -> Array:
        return sums / 4 + wobble * rng.uniform(-wobble, wobble, sums.shape)

    while step >= 2:
        half = step // 2
        corners = maps[:, ::step, ::step]
        sums = corners + np.roll(corners, -1, 1)
        maps[:, half::step, half::step] = perturbed(sums + np.roll(sums, -1, 2))
        centres, corners = maps[:, half::step, half::step], maps[:, ::step, ::step]
        across = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        maps[:, ::step, half::step] = perturbed(across)
        down = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        maps[:, half::step, ::step] = perturbed(down)
        step, wobble = half, wobble / decay
    maps -= maps.min((1, 2), keepdims=True)
    return (maps / maps.max((1, 2), keepdims=True)).astype(np.float32)


def affine_positions(n: int, height: int, width: int, jitter: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Where each pixel comes from when three points of the image move by up to ``jitter``: rows and columns."""
    reach = min(height, width) // 3
    corners = np.array([[1, 1], [1, -1], [-1, -1]]) * reach + np.array([width, height]) // 2
    moved_to = corners + rng.uniform(-jitter, jitter, (n, 3, 2))
    back = np.linalg.solve(np.concatenate([moved_to, np.ones((n, 3, 1))], 2), corners[None].repeat(n, 0))
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([columns, rows, np.ones_like(rows)], -1)
    origins = pixels @ back[:, None]
    return origins[..., 1], origins[..., 0]


def sampled(images: Array, rows: Array, columns: Array, mirror_at: str) -> Array:
    """Linear interpolation at positions (n, height, width) in the image, mirrored at its outer centres or edges."""
    height, width = images.shape[2:]
    if mirror_at == "centres":
        grid = np.stack([2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1], -1)
    else:
        grid = np.stack([(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1], -1)
    found = functional.grid_sample(
        torch.from_numpy(images),
        torch.from_numpy(grid.astype(np.float32)),
        padding_mode="reflection",
        align_corners=mirror_at == "centres",
    )
    return found.numpy()


def picture_by_picture(images: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    """What Pillow makes of each image."""
    channels = images.shape[1]
    results = np.empty((*images.shape[:1], *images.shape[2:], channels), np.float32)
    for index, pixels in enumerate(to_bytes(images).transpose(0, 2, 3, 1)):
        picture = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
        results[index] = np.asarray(change(picture)).reshape(pixels.shape)
    return results.transpose(0, 3, 1, 2) / 255


def water(drops: Array) -> Array:
    """The light, at most 1, of drops (n, 1, height, width) in uint8: embossed from the distance to their edges."""
    free = ~edges(drops[:, 0].astype(np.int32))
    apart = (float(free.shape[1] + free.shape[2]), 1.0, 1.0)
    distance = np.minimum(ndimage.distance_transform_edt(free, apart), 20) if not free.all() else 20.0 * free
    levels = np.stack([equalised(one) for one in box_mean(distance).astype(np.uint8)])
    emboss = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
    embossed = np.clip(ndimage.correlate(levels.astype(np.int32), emboss, mode="mirror"), 0, 255)
    light = drops[:, 0] * np.rint(box_mean(embossed))
    brightest = light.max((1, 2), keepdims=True)
    return (light / np.where(brightest > 0, brightest, 1)).astype(np.float32)[:, None]


def box_mean(images: Array) -> Array:
    """The mean over 3 x 3 pixels."""
    return np.asarray(ndimage.uniform_filter(images.astype(np.float64), (0, 3, 3), mode="mirror"))


def equalised(image: Array) -> Array:
    """Levels spread so that their distribution is as even as it can be."""
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = int(np.flatnonzero(counts)[0])
    others = image.size - counts[lowest]
    if others == 0:
        return image
    table = np.rint((np.cumsum(counts) - counts[lowest]) * 255 / others)
    return np.maximum(table, 0).astype(np.uint8)[image]


def edges(images: Array, low: int = 50, high: int = 150) -> Array:
    """Canny's edges of images (n, height, width) in whole levels, without smoothing first.

    A pixel is an edge if its gradient is a local maximum in the gradient's direction, above ``low``, and connected
    to one above ``high``.
    """
    gx, gy = gradient(images, along=2), gradient(images, along=1)
    strength = np.abs(gx) + np.abs(gy)
    padded = np.pad(strength, ((0, 0), (1, 1), (1, 1)))
    height, width = images.shape[1:]

    def neighbour(down: int, right: int) -> Array:
        return padded[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    flat, steep = np.abs(gy) < TAN_22_5 * np.abs(gx), np.abs(gy) > np.abs(gx) / TAN_22_5
    rising = np.sign(gx) * np.sign(gy) < 0
    highest = np.select(
        [flat, steep, rising],
        [
            (strength > neighbour(0, -1)) & (strength >= neighbour(0, 1)),
            (strength > neighbour(-1, 0)) & (strength >= neighbour(1, 0)),
            (strength > neighbour(-1, 1)) & (strength > neighbour(1, -1)),
        ],
        (strength > neighbour(-1, -1)) & (strength > neighbour(1, 1)),
    )
    candidates = highest & (strength > low)
    within_an_image = np.stack([np.zeros((3, 3)), np.ones((3, 3)), np.zeros((3, 3))])
    parts, count = ndimage.label(candidates, within_an_image)
    strong = np.zeros(count + 1, bool)
    strong[parts[candidates & (strength > high)]] = True
    return np.asarray(strong[parts])


def gradient(images: Array, along: int) -> Array:
    """Sobel's derivative along one of the two image dimensions."""
    across = 3 - along
    difference = ndimage.correlate1d(images, [-1, 0, 1], along, mode="nearest")
    return np.asarray(ndimage.correlate1d(difference, [1, 2, 1], across, mode="nearest"))


TAN_22_5 = math.tan(math.pi / 8)

CORRUPTIONS: Registry[Corruption] = Registry(
    "corruption",
    {
        "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
        "shot_noise": Corruption(shot_noise, (500, 250, 100, 75, 50)),
        "impulse_noise": Corruption(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
        "speckle_noise": Corruption(speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
        "gaussian_blur": Corruption(gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
        "defocus_blur": Corruption(defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
        "glass_blur": Corruption(glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
        "motion_blur": Corruption(motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
        "zoom_blur": Corruption(zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
        "snow": Corruption(
            snow,
            (
                (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
                (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
                (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
                (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
                (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
            ),
        ),
        "frost": Corruption(frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
        "fog": Corruption(fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
        "brightness": Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
        "contrast": Corruption(contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
        "saturate": Corruption(saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
        "spatter": Corruption(
            spatter,
            (
                (0.62, 0.1, 0.7, 0.7, 0.5, False),
                (0.65, 0.1, 0.8, 0.7, 0.5, False),
                (0.65, 0.3, 1, 0.69, 0.5, False),
                (0.65, 0.1, 0.7, 0.69, 0.6, True),
                (0.65, 0.1, 0.5, 0.68, 0.6, True),
            ),
        ),
        "elastic_transform": Corruption(
            elastic_transform,
            ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ),
        "pixelate": Corruption(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
        "jpeg_compression": Corruption(jpeg_compression, (80, 65, 58, 50, 40)),
    },
)
"""Every corruption by the name of its file in CIFAR-10-C."""
