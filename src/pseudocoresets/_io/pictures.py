"""Images as pictures in true pixel space: clipped to 0..1, enlarged by whole factors, never smoothed."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pseudocoresets._io.files import replacing
from pseudocoresets.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGET_SIDE = 64
"""Images smaller than this many pixels are enlarged to the largest whole multiple that fits."""
FONT_SIZE = 14
MARGIN = 12
GAP = 4
PANEL_GAP = 24
MAXIMUM_NAME_WIDTH = 240
BACKGROUND = (232, 235, 239)
"""Neither black nor white, so that the border of every image shows."""
INK = (29, 36, 48)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Panel:
    """Labelled images that share the rows of a grid with those of other panels."""

    title: str
    pixels: Tensor
    labels: Tensor


def save_class_rows(path: str | os.PathLike[str], pixels: Tensor, labels: Tensor, classes: Sequence[str]) -> None:
    """Write a PNG with one row per class and its name at the side.

    ``pixels`` (m, channels, height, width) have 1 or 3 channels, 0 to 1 being black to white;
    ``labels`` (m,) index ``classes``.
    """
    save_picture(path, image_grid([Panel("", pixels, labels)], classes))


def image_grid(panels: Sequence[Panel], classes: Sequence[str], scale: int | None = None) -> Image.Image:
    """Panels side by side, such as images before and after learning: one row per class, its name at the side.

    Every pixel becomes a square of ``scale`` pixels; by default the largest within ``TARGET_SIDE``.
    """
    if not panels:
        raise InputError("A grid of images needs at least one panel.")
    for panel in panels:
        _check(panel, len(classes))
    font = ImageFont.load_default(FONT_SIZE)
    scale = scale or fitting_scale(panels[0].pixels)
    members = [_members_by_class(panel.labels, len(classes)) for panel in panels]
    layout = _Layout.of(panels, members, [_fit_text(name, font) for name in classes], scale, font)
    canvas = Image.new("RGB", layout.size, BACKGROUND)
    _draw_texts(canvas, layout, panels, font)
    for panel, left, rows in zip(panels, layout.panel_lefts, members, strict=True):
        images = to_images(panel.pixels, scale)
        for row, indices in enumerate(rows):
            for column, index in enumerate(indices):
                x = left + column * (images[index].width + GAP)
                canvas.paste(images[index], (x, layout.row_tops[row]))
    return canvas


def data_uri(picture: Image.Image) -> str:
    """A PNG as an address that a page can hold."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return data_address(buffer.getvalue(), "image/png")


def data_address(content: bytes, kind: str) -> str:
    """Content of a MIME type as an address that a page can hold."""
    return f"data:{kind};base64," + base64.b64encode(content).decode("ascii")


def save_picture(path: str | os.PathLike[str], picture: Image.Image) -> None:
    """Write a PNG, whole or not at all."""
    suffix = Path(path).suffix.lower()
    if suffix not in ("", ".png"):
        raise InputError(f"Pictures are written as PNG, but '{path}' ends in '{suffix}'; name it '.png'.")
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG")


def save_figure(path: str | os.PathLike[str], figure: Figure) -> None:
    """Write a drawing of Matplotlib's as PNG, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def fitting_scale(pixels: Tensor, side: int = TARGET_SIDE) -> int:
    """The largest whole enlargement that keeps images within ``side``, at least 1."""
    return max(1, side // max(1, int(pixels.shape[-2]), int(pixels.shape[-1])))


def to_images(pixels: Tensor, scale: int = 1) -> list[Image.Image]:
    """One RGB image each, clipped to 0..1; every pixel becomes a square of ``scale`` pixels.

    Of more than three channels the first three are shown, and of two their mean.
    """
    shown = pixels.mean(1, keepdim=True) if pixels.shape[1] == 2 else pixels[:, :3]
    levels = (shown.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    colour = levels.expand(-1, 3, -1, -1)
    large = colour.repeat_interleave(scale, -1).repeat_interleave(scale, -2)
    return [Image.fromarray(image) for image in large.permute(0, 2, 3, 1).contiguous().numpy()]


@dataclass(frozen=True)
class _Layout:
    """Where everything goes, in pixels."""

    size: tuple[int, int]
    names: list[str]
    row_height: int
    row_tops: list[int]
    panel_lefts: list[int]

    @classmethod
    def of(
        cls, panels: Sequence[Panel], members: list[list[list[int]]], names: list[str], scale: int, font: Font
    ) -> _Layout:
        line = _text_height(font)
        row_height = max(line, *(panel.pixels.shape[-2] * scale for panel in panels))
        left = MARGIN + max(_text_width(name, font) for name in names) + MARGIN
        lefts = []
        for panel, rows in zip(panels, members, strict=True):
            lefts.append(left)
            widest = max(len(indices) for indices in rows) * (panel.pixels.shape[-1] * scale + GAP)
            left += max(widest, _text_width(panel.title, font)) + PANEL_GAP
        top = MARGIN + (line + GAP if any(panel.title for panel in panels) else 0)
        tops = [top + row * (row_height + GAP) for row in range(len(names))]
        size = left - PANEL_GAP + MARGIN, tops[-1] + row_height + MARGIN
        return cls(size, names, row_height, tops, lefts)


def _draw_texts(canvas: Image.Image, layout: _Layout, panels: Sequence[Panel], font: Font) -> None:
    draw = ImageDraw.Draw(canvas)
    centre = (layout.row_height - _text_height(font)) // 2
    names_right = layout.panel_lefts[0] - MARGIN
    for name, top in zip(layout.names, layout.row_tops, strict=True):
        draw.text((names_right - _text_width(name, font), top + centre), name, fill=INK, font=font)
    for panel, left in zip(panels, layout.panel_lefts, strict=True):
        draw.text((left, MARGIN), panel.title, fill=INK, font=font)


def _members_by_class(labels: Tensor, classes: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(classes)]
    for index, label in enumerate(labels.tolist()):
        rows[label].append(index)
    return rows


def _fit_text(text: str, font: Font, width: int = MAXIMUM_NAME_WIDTH) -> str:
    """``text`` on one line, shortened in its middle (names often differ at their ends) to fit ``width``."""
    text = " ".join(text.split())
    kept = len(text)
    shortened = text
    while kept > 2 and _text_width(shortened, font) > width:
        kept -= 1
        shortened = f"{text[: (kept + 1) // 2]}...{text[len(text) - kept // 2 :]}"
    return shortened


def _text_width(text: str, font: Font) -> int:
    return int(font.getlength(text)) + 1 if text else 0


def _text_height(font: Font) -> int:
    return int(font.getbbox("Ag")[3]) + 2


def _check(panel: Panel, classes: int) -> None:
    _check_pixels(panel.pixels)
    labels = panel.labels
    if labels.is_floating_point() or labels.shape != panel.pixels.shape[:1]:
        raise InputError(
            f"A picture needs one class number for each of its {len(panel.pixels)} images; "
            f"got labels of shape {tuple(labels.shape)} and kind {labels.dtype}."
        )
    if not classes or (len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        raise InputError(f"The labels of a picture must be the numbers of its {classes} classes, counted from 0.")


def _check_pixels(pixels: Tensor) -> None:
    if pixels.dim() != 4 or 0 in pixels.shape[1:]:
        raise InputError(
            f"A picture needs pixels of shape (images, channels, height, width); got {tuple(pixels.shape)}."
        )
    if not bool(torch.isfinite(pixels).all()):
        raise InputError("A picture cannot be made of pixels that are not finite.")
