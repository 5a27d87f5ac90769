"""Pictures for the gallery, of each method that has none yet: ten digits, or a coreset of rows with its posterior.

python tools/gallery.py --experts runs/demo/experts
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets._io.pictures import GAP, save_figure, save_picture, to_images
from pseudocoresets.core.points import Points
from pseudocoresets.core.targets import log_likelihoods
from pseudocoresets.methods import METHODS, SOLVERS
from pseudocoresets.methods.selection import SELECTIONS

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "gallery"
ITERATIONS, COLUMNS, SCALE = 60, 5, 5
ROWS, SIZE = 300, 6
SHARES = (0.95, 0.5)
"""Of the posterior within the lines that are drawn."""
GREY, BLUE, ORANGE = "#9aa4b1", "#3a7bd5", "#e0883a"


def block(images: list[Image.Image]) -> Image.Image:
    """In reading order, on transparent ground."""
    width, height = (side + GAP for side in images[0].size)
    whole = Image.new("RGBA", (COLUMNS * width - GAP, -(-len(images) // COLUMNS) * height - GAP), (0, 0, 0, 0))
    for position, image in enumerate(images):
        row, column = divmod(position, COLUMNS)
        whole.paste(image, (column * width, row * height))
    return whole


def two_features() -> Points:
    """Data of a logistic regression without an intercept."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    chances = torch.sigmoid(x @ torch.tensor([2.0, -1.0], dtype=torch.float64))
    y = (torch.rand(ROWS, generator=generator, dtype=torch.float64) < chances).double()
    return Points(x, y, torch.ones(ROWS, dtype=torch.float64))


def draw_posterior(axes: Axes, points: Points, first: Tensor, second: Tensor, colour: str) -> None:
    """Lines around the shares of the posterior, computed on a grid."""
    model = pc.LogisticRegression(2)
    theta = torch.cartesian_prod(first, second)
    log_density = log_likelihoods(model, theta, points) + model.log_prior(theta)
    density = torch.softmax(log_density, 0)
    ordered = density.sort(descending=True).values
    levels = [float(ordered[int((ordered.cumsum(0) < share).sum())]) for share in SHARES]
    grid = density.reshape(len(first), len(second)).T
    axes.contour(first.numpy(), second.numpy(), grid.numpy(), levels=levels, colors=colour)


def picture_of_rows(data: Points, coreset: Points) -> Figure:
    """The data and the points, and beside them both posteriors."""
    figure = Figure(figsize=(6.4, 3), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for label, marker in ((0, "o"), (1, "^")):
        own, chosen = data.y == label, coreset.y.round() == label
        left.scatter(*data.x[own].T.numpy(), s=6, marker=marker, color=GREY)
        sizes = 20 + 2 * coreset.weights[chosen].numpy()
        left.scatter(*coreset.x[chosen].T.numpy(), s=sizes, marker=marker, color=ORANGE, alpha=0.8)
    left.set(title=f"{ROWS} rows, at most {SIZE} points", xlabel="first feature", ylabel="second feature")
    grid = torch.linspace(0.0, 4.0, 200, dtype=torch.float64)
    for points, colour in ((data, BLUE), (coreset, ORANGE)):
        draw_posterior(right, points, grid, grid - 3, colour)
    right.set(title="full posterior and the coreset's", xlabel="first weight", ylabel="second weight")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=Path, required=True, help="Of the digits, as 'bpc run' leaves them.")
    experts, digits, rows = pc.load_experts(parser.parse_args().experts), pc.load_dataset("digits"), two_features()
    of_rows = {each.name for each in SOLVERS}
    for name in (*METHODS, *SELECTIONS):
        picture = FOLDER / f"{name}.png"
        if picture.exists():
            continue
        if name in of_rows:
            made = pc.construct((rows.x, rows.y), model=pc.LogisticRegression(2), method=name, size=SIZE, check=False)
            save_figure(picture, picture_of_rows(rows, made.points))
        else:
            made = pc.construct(digits, experts, method=name, ipc=1, iterations=ITERATIONS)
            save_picture(picture, block(to_images(made.to_pixels(), SCALE)))


if __name__ == "__main__":
    main()
