"""Decoding image files into one array of bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.progress import Progress, task
from pseudocoresets.data.resident import bytes_for

_GREY = ("1", "L", "LA")
_DEEP = ("I", "F")
Result = TypeVar("Result")


def decode_images(
    paths: Sequence[Path], size: tuple[int, int], channels: int, resize: bool, progress: Progress, name: str
) -> Tensor:
    """uint8 ``(n, channels, height, width)`` of the files, in their order.

    With ``resize`` the largest centred part with the right proportions is scaled to ``size``, (height, width);
    without it a file of another size is an error.
    """
    images = bytes_for((len(paths), channels, *size))
    target = images.numpy()

    def decode_into(index: int) -> None:
        target[index] = _decode(paths[index], size, channels, resize)

    with task(progress, f"read {name}", len(paths)), ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(decode_into, range(len(paths)), chunksize=1):
            progress.advance()
    return images


def image_header(path: Path) -> tuple[tuple[int, int], bool]:
    """(height, width) as shown, and whether the image is grey."""

    def header(image: Image.Image) -> tuple[tuple[int, int], bool]:
        width, height = image.size
        if image.getexif().get(0x0112, 1) >= 5:  # stored on its side
            width, height = height, width
        return (height, width), image.mode in _GREY

    return _with_image(path, header)


def _decode(path: Path, size: tuple[int, int], channels: int, resize: bool) -> np.ndarray:
    def pixels(image: Image.Image) -> np.ndarray:
        upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
        if resize and upright.size != size[::-1]:
            upright = ImageOps.fit(upright, size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(upright).reshape(upright.height, upright.width, channels).transpose(2, 0, 1)

    array = _with_image(path, pixels)
    if array.shape[1:] != size:
        raise FileFormatError(
            f"'{path}' has {array.shape[1]} x {array.shape[2]} pixels where the others have {size[0]} x {size[1]}; "
            "ask for one size, for example 'folder:PATH?size=32'."
        )
    return array


def _with_image(path: Path, use: Callable[[Image.Image], Result]) -> Result:
    try:
        with Image.open(path) as image:
            if image.mode.split(";")[0] in _DEEP:
                raise FileFormatError(f"'{path}' has more than 8 bits per channel; convert it to 8 bits.")
            return use(image)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise FileFormatError(f"'{path}' is not a readable image ({error}).") from None
