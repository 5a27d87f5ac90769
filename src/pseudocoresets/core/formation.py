"""Several smaller images in the place of one: multi-formation (Kim et al. 2022, efficient dataset condensation).

A stored image (channels, H, W) is a mosaic of f x f tiles of H/f x W/f pixels. Where points are used, each tile t is
enlarged to an image of its own by bilinear interpolation B, with the label of the mosaic and 1 / f^2 of its weight:

    x_{i,t} = B(tile_t(z_i)),   y_{i,t} = y_i,   w_{i,t} = w_i / f^2,      t = 1 .. f^2

m stored images then count as f^2 m points, at the storage of m. Tables keep such coresets apart from others.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points


def spread_out(points: Points, formation: int) -> Points:
    """The points that stored ones stand for, differentiable in them; the same where ``formation`` is 1."""
    if formation == 1:
        return points
    tiles = formation**2
    return replace(
        points,
        x=enlarged(points.x, formation),
        y=points.y.repeat_interleave(tiles, 0),
        weights=points.weights.repeat_interleave(tiles) / tiles,
    )


def enlarged(mosaics: Tensor, formation: int) -> Tensor:
    """The tiles of mosaics (m, channels, H, W) as images (m f^2, channels, H, W), row by row of each mosaic."""
    require_tiles(mosaics.shape[-2:], formation)
    tiles = mosaics.unflatten(-2, (formation, -1)).unflatten(-1, (formation, -1)).permute(0, 2, 4, 1, 3, 5)
    return F.interpolate(tiles.flatten(0, 2), mosaics.shape[-2:], mode="bilinear", align_corners=False)


def tiled(images: Tensor, formation: int) -> Tensor:
    """Each f^2 images (m f^2, channels, H, W), made smaller by averaging, as one mosaic: (m, channels, H, W)."""
    require_tiles(images.shape[-2:], formation)
    tiles = F.avg_pool2d(images, formation).unflatten(0, (-1, formation, formation))
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4)


def require_tiles(sides: tuple[int, ...], formation: int) -> None:
    """Both sides of an image must be whole numbers of tiles."""
    if any(side % formation for side in sides):
        raise InputError(
            f"Images of {' x '.join(map(str, sides))} cannot be cut into {formation} x {formation} tiles; choose a "
            "'formation' that divides both sides."
        )
