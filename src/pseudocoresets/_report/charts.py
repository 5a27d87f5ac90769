"""Charts as inline SVG, drawn by Matplotlib. Their colours are those of the page's style sheet, light or dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pseudocoresets._report.wording import is_number, number
from pseudocoresets.core.errors import FileFormatError

WIDTH, HEIGHT, SQUARE_HEIGHT = 420, 270, 420
POINTS_PER_INCH = 72
LETTERS = 11.5
MOST_POINTS = 200
MOST_COLUMNS = 3
"""Of a legend; more entries stand in two."""
SMOOTHED_PARTS = 20
LOG_SCALE_FROM = 50.0
"""A curve whose largest value is this many times its smallest is drawn on a logarithmic scale."""
ROC_FROM = 1e-3
"""The smallest rate that is drawn."""
PLAIN_SIZES = 1e-100, 1e100
"""Values beyond these sizes are drawn in units of the largest, so that no axis overflows."""
STAND_INS = {"first": "#000001", "second": "#000002", "third": "#000003", "muted": "#000004", "rule": "#000005"}
"""Colours as Matplotlib writes them; in the page each becomes the variable of that name in page.css."""
DASHES = {"second": (0, (4, 2)), "muted": (0, (1, 2))}

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A named line; ``style`` names its colour in the style sheet."""

    name: str
    style: str
    points: Sequence[Point]
    areas: Sequence[float] | None = None
    """With areas, every point is drawn as a disc, and the line between them only hints at their order."""


def curves(title: str, description: str, series: Sequence[Series], y_title: str, x_title: str = "iteration") -> Markup:
    """Lines on a logarithmic scale where the values span orders of magnitude."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    values = [y for line in series for _, y in line.points]
    logarithmic = min(values) > 0 and max(values) / min(values) >= LOG_SCALE_FROM
    unit = 1.0 if logarithmic else _unit(values)
    figure, axes = _figure(HEIGHT)
    for line in series:
        heights = [math.log10(y) if logarithmic else y / unit for _, y in line.points]
        _draw(axes, line, [x for x, _ in line.points], heights)
    axes.set(xlabel=x_title, ylabel=y_title if unit == 1.0 else f"{y_title}, in units of {unit:g}")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=logarithmic))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value) if logarithmic else number(value)))
    return _svg(figure, title, description, legend=len(series) > 1)


def reliability_diagram(title: str, description: str, series: Sequence[Series]) -> Markup:
    """Accuracy against confidence; on the diagonal, a classifier is as sure as it is right."""
    figure, axes = _figure(SQUARE_HEIGHT)
    for line in (Series("ideal", "muted", [(0.0, 0.0), (1.0, 1.0)]), *series):
        _draw(axes, line, [x for x, _ in line.points], [y for _, y in line.points])
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    return _svg(figure, title, description, legend=True)


def roc_curves(title: str, description: str, series: Sequence[Series]) -> Markup:
    """True positives against false positives, both on a logarithmic scale, where few false positives count."""
    figure, axes = _figure(SQUARE_HEIGHT)
    least = ROC_FROM
    for line in (Series("a coin", "muted", [(least, least), (1.0, 1.0)]), *series):
        seen = [(x, max(y, least)) for x, y in line.points if x >= least]
        _draw(axes, line, [x for x, _ in seen], [y for _, y in seen])
    axes.set(xlabel="false positives", ylabel="true positives", xscale="log", yscale="log", aspect="equal")
    axes.set(xlim=(least, 1.05), ylim=(least, 1.05))
    return _svg(figure, title, description, legend=True)


def reliability_series(name: str, style: str, reliability: Mapping[str, Any]) -> Series:
    """Non-empty bins as discs whose area grows with the number of predictions in them."""
    columns = [reliability.get(name) for name in ("confidence", "accuracy", "count")]
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) != 3 or len({len(column) for column in lists}) != 1:
        raise FileFormatError(
            "The reliability figures of the metrics must hold equally long lists of confidence, accuracy and "
            "count; restore metrics.json or run again."
        )
    bins = [tuple(map(float, row)) for row in zip(*lists, strict=True) if all(map(is_number, row))]
    filled = [(x, y, count) for x, y, count in bins if 0 <= x <= 1 and 0 <= y <= 1 and count > 0]
    largest = max((count for *_, count in filled), default=1.0)
    return Series(name, style, [(x, y) for x, y, _ in filled], [5 + 200 * count / largest for *_, count in filled])


def log_series(name: str, style: str, log: Sequence[Mapping[str, Any]], key: str) -> Series | None:
    """The finite values of ``key`` over iterations, as moving averages over a twentieth of them."""
    known = [record for record in log if is_number(record["iteration"]) and is_number(record.get(key))]
    points = [(float(record["iteration"]), float(record[key])) for record in known]
    return Series(name, style, thinned(smoothed(points))) if len(points) > 1 else None


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Each value as the mean of those around it, as many as a twentieth of all; the ends take what there is."""
    reach = len(points) // (2 * SMOOTHED_PARTS)
    parts = (points[max(0, place - reach) : place + reach + 1] for place in range(len(points)))
    return [(x, _mean([y for _, y in part])) for (x, _), part in zip(points, parts, strict=True)]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most ``most`` points, each the mean of equally many neighbours."""
    size = -(-len(points) // most)
    parts = (points[start : start + size] for start in range(0, len(points), size))
    return [(_mean([x for x, _ in part]), _mean([y for _, y in part])) for part in parts]


def _mean(values: Sequence[float]) -> float:
    """Divided before they are added, so that large values do not overflow."""
    return math.fsum(value / len(values) for value in values)


def _unit(values: Sequence[float]) -> float:
    largest = max(map(abs, values))
    return 1.0 if largest == 0 or PLAIN_SIZES[0] < largest < PLAIN_SIZES[1] else largest


def _power(exponent: float) -> str:
    return number(10.0**exponent) if -4 <= exponent <= 4 else f"1e{exponent:g}"


def _figure(height: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure((WIDTH / POINTS_PER_INCH, height / POINTS_PER_INCH), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color=STAND_INS["rule"], linewidth=0.8)
    axes.tick_params(length=0, colors=STAND_INS["muted"], labelsize=LETTERS)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=STAND_INS["muted"], size=LETTERS)
    return figure, axes


def _draw(axes: Any, line: Series, x: Sequence[float], y: Sequence[float]) -> None:
    colour, dashes = STAND_INS[line.style], DASHES.get(line.style, "solid")
    faint = line.areas is not None or line.style == "muted"
    width, opacity = (1.0, 0.6) if faint else (1.6, 1.0)
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=width, alpha=opacity, label=line.name, gid="curve")
    if line.areas is not None:
        axes.scatter(x, y, s=line.areas, color=colour, alpha=0.6, linewidths=0)


def _svg(figure: Any, title: str, description: str, legend: bool) -> Markup:
    """The same chart gives the same text: identifiers are derived from the title, and no date is written."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    if legend:
        count = len(figure.axes[0].lines)
        where = {"loc": "outside upper left", "ncols": count if count <= MOST_COLUMNS else 2}
        figure.legend(frameon=False, labelcolor=STAND_INS["muted"], fontsize=LETTERS, **where)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index(">", text.index("<svg")) + 1 :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(curve)?[^"]*"', lambda match: '<g class="curve"' if match[1] else "<g", text)
    for name, colour in STAND_INS.items():
        text = text.replace(colour, f"var(--{name})")
    width, height = (round(POINTS_PER_INCH * length) for length in figure.get_size_inches())
    opening = Markup('<svg class="chart" role="img" viewBox="0 0 {} {}" aria-label="{}">')
    return opening.format(width, height, f"{title}. {description}") + Markup(text)
