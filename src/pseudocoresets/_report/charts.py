"""Charts as inline SVG. Colours come from the page's style sheet, so they follow its light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from pseudocoresets._report.wording import is_number
from pseudocoresets.core.errors import FileFormatError

WIDTH, HEIGHT = 420, 270
SQUARE_HEIGHT = 430
"""With this height, equal steps along both axes of a diagram are equally long."""
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 34, 42
MOST_POINTS = 200
LOG_SCALE_FROM = 50.0
"""A curve whose largest value is this many times its smallest is drawn on a logarithmic scale."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A named line; ``style`` names its colour and dashes in the style sheet."""

    name: str
    style: str
    points: Sequence[Point]
    radii: Sequence[float] | None = None
    """With radii, every point is drawn as a disc, and the line between them only hints at their order."""


@dataclass(frozen=True)
class Axis:
    """Where values lie along one side: from ``low`` at 0 to ``high`` at 1."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return (value - low) / (high - low)


def curves(title: str, description: str, series: Sequence[Series], y_title: str) -> Markup:
    """Lines over iterations, on a logarithmic scale where the values span orders of magnitude."""
    values = [y for line in series for _, y in line.points]
    iterations = [x for line in series for x, _ in line.points]
    x_axis = linear_axis("iteration", min(iterations), max(iterations), tight=True)
    if min(values) > 0 and max(values) / min(values) >= LOG_SCALE_FROM:
        y_axis = logarithmic_axis(y_title, min(values), max(values))
    else:
        y_axis = linear_axis(y_title, min(values), max(values))
    return _chart(title, description, x_axis, y_axis, series)


def reliability_diagram(title: str, description: str, series: Sequence[Series]) -> Markup:
    """Accuracy against confidence; on the diagonal, a classifier is as sure as it is right."""
    ticks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    ideal = Series("ideal", "ideal", [(0.0, 0.0), (1.0, 1.0)])
    axes = Axis("confidence", 0.0, 1.0, ticks), Axis("accuracy", 0.0, 1.0, ticks)
    return _chart(title, description, *axes, [ideal, *series], SQUARE_HEIGHT)


def reliability_series(name: str, style: str, reliability: Mapping[str, Any]) -> Series:
    """Non-empty bins as discs whose area grows with the number of predictions in them."""
    columns = [reliability.get(name) for name in ("confidence", "accuracy", "count")]
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) != 3 or len({len(column) for column in lists}) != 1:
        raise FileFormatError(
            "The reliability figures of the metrics must hold equally long lists of confidence, accuracy and "
            "count; restore metrics.json or run again."
        )
    bins = zip(*lists, strict=True)
    filled = [(float(x), float(y), float(count)) for x, y, count in bins if count and is_number(x) and is_number(y)]
    total = sum(count for *_, count in filled) or 1.0
    radii = [1.5 + 10 * math.sqrt(count / total) for *_, count in filled]
    return Series(name, style, [(x, y) for x, y, _ in filled], radii)


def log_series(name: str, style: str, log: Sequence[Mapping[str, Any]], key: str) -> Series | None:
    """The finite values of ``key`` over iterations, averaged over neighbours if there are very many."""
    points = [(float(record["iteration"]), float(record[key])) for record in log if is_number(record.get(key))]
    return Series(name, style, thinned(points)) if len(points) > 1 else None


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most ``most`` points, each the mean of equally many neighbours."""
    size = -(-len(points) // most)
    parts = (points[start : start + size] for start in range(0, len(points), size))
    return [(_mean([x for x, _ in part]), _mean([y for _, y in part])) for part in parts]


def linear_axis(title: str, low: float, high: float, tight: bool = False) -> Axis:
    """About five round ticks; unless ``tight``, the axis ends at ticks."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 0.5
        low, high = low - margin, high + margin
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]
    if tight:
        return Axis(title, low, high, [tick for tick in ticks if low <= tick <= high])
    return Axis(title, ticks[0], ticks[-1], ticks)


def logarithmic_axis(title: str, low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, -(-(last - first) // 6))
    return Axis(title, 10.0**first, 10.0**last, [10.0**p for p in range(first, last + 1, stride)], True)


def tick_text(value: float) -> str:
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}") if abs(value) < 1e6 else f"{value:.0e}"


def _chart(
    title: str, description: str, x_axis: Axis, y_axis: Axis, series: Sequence[Series], height: int = HEIGHT
) -> Markup:
    def x_of(value: float) -> float:
        return LEFT + x_axis.place(value) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return height - BOTTOM - y_axis.place(value) * (height - TOP - BOTTOM)

    parts = [
        Markup('<svg class="chart" role="img" viewBox="0 0 {} {}" aria-label="{}">').format(
            WIDTH, height, f"{title}. {description}"
        ),
        *_x_ticks(x_axis, x_of, height),
        *_y_ticks(y_axis, y_of, height),
        *(_line(line, x_of, y_of) for line in series),
        *(_legend(series) if len(series) > 1 else []),
    ]
    return Markup("\n").join([*parts, Markup("</svg>")])


def _x_ticks(axis: Axis, place: Callable[[float], float], height: int) -> list[Markup]:
    bottom = height - BOTTOM
    marks = [
        Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            place(tick), bottom + 17, tick_text(tick)
        )
        for tick in axis.ticks
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    title = Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>')
    return [*marks, title.format(middle, height - 6, axis.title)]


def _y_ticks(axis: Axis, place: Callable[[float], float], height: int) -> list[Markup]:
    marks = []
    for tick in axis.ticks:
        y = place(tick)
        line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
        text = Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
        marks += [line.format(LEFT, WIDTH - RIGHT, y, y), text.format(LEFT - 6, y + 4, tick_text(tick))]
    middle = (TOP + height - BOTTOM) / 2
    title = Markup('<text class="axis" text-anchor="middle" transform="translate(12 {}) rotate(-90)">{}</text>')
    return [*marks, title.format(middle, axis.title)]


def _line(series: Series, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> Markup:
    places = [(x_of(x), y_of(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = f"{series.style} faint" if series.radii else series.style
    line = Markup('<polyline class="line {}" points="{}"/>').format(style, path)
    discs = [
        Markup('<circle class="disc {}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(series.style, x, y, radius)
        for (x, y), radius in zip(places, series.radii or (), strict=bool(series.radii))
    ]
    return Markup("").join([line, *discs])


def _legend(series: Sequence[Series]) -> list[Markup]:
    """Names above the plot, each after a sample of its line; widths are estimated from the letters."""
    left, parts = float(LEFT), []
    for line in series:
        sample = Markup('<line class="line {}" x1="{:.0f}" x2="{:.0f}" y1="16" y2="16"/>')
        text = Markup('<text x="{:.0f}" y="20">{}</text>')
        parts += [sample.format(line.style, left, left + 22), text.format(left + 28, escape(line.name))]
        left += 28 + 6.6 * len(line.name) + 16
    return parts


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
