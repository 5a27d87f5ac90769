"""Pictures for the gallery: ten digits by each method that learns or chooses images and has no picture yet.

python tools/gallery.py --experts runs/demo/experts
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

import pseudocoresets as pc
from pseudocoresets._io.pictures import GAP, save_picture, to_images
from pseudocoresets.methods import METHODS, GradientMethod
from pseudocoresets.methods.selection import SELECTIONS

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "gallery"
ITERATIONS, COLUMNS, SCALE = 60, 5, 5


def block(images: list[Image.Image]) -> Image.Image:
    """In reading order, on transparent ground."""
    width, height = (side + GAP for side in images[0].size)
    whole = Image.new("RGBA", (COLUMNS * width - GAP, -(-len(images) // COLUMNS) * height - GAP), (0, 0, 0, 0))
    for position, image in enumerate(images):
        row, column = divmod(position, COLUMNS)
        whole.paste(image, (column * width, row * height))
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=Path, required=True, help="Of the digits, as 'bpc run' leaves them.")
    experts, data = pc.load_experts(parser.parse_args().experts), pc.load_dataset("digits")
    for name in (*METHODS, *SELECTIONS):
        by_images = name in SELECTIONS or (
            isinstance(METHODS[name], type) and issubclass(METHODS[name], GradientMethod)
        )
        picture = FOLDER / f"{name}.png"
        if by_images and not picture.exists():
            coreset = pc.construct(data, experts, method=name, ipc=1, iterations=ITERATIONS)
            save_picture(picture, block(to_images(coreset.to_pixels(), SCALE)))


if __name__ == "__main__":
    main()
