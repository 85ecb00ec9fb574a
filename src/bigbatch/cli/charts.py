"""Line charts as inline SVG: labelled axes, linear or logarithmic; no script, no library.

Colours are CSS custom properties (`--ours`, `--ink`, ...), so whoever shows a chart decides on dark and light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 600, 380
LEFT, RIGHT, TOP, BOTTOM = 76, 18, 70, 56
_NICE = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Axis:
    """Where numbers lie, and which are written."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """From 0 (low) to 1 (high); what is lower, as zero on a logarithmic axis, lies at the low end."""
        value = max(value, self.low)
        if self.log:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Series:
    """A line of points; `kind` names its colour and manner."""

    name: str
    kind: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Level:
    """A dashed line across; its name is written where it `anchor`s, at the "start" or the "end"."""

    name: str
    value: float
    anchor: str


def linear(label: str, values: Sequence[float], *, whole: bool = False) -> Axis:
    """From zero to the largest value, in about five pleasant distances.

    >>> linear("loss", [0.3, 2.1]).ticks
    ((0.0, '0'), (0.5, '0.5'), (1.0, '1'), (1.5, '1.5'), (2.0, '2'), (2.5, '2.5'))
    """
    rough = (max(values) or 1) / 5
    power = 10.0 ** floor(log10(rough))
    distance = next(nice * power for nice in _NICE if nice * power >= rough * 0.999)
    if whole:
        distance = max(1.0, ceil(distance))
    number = ceil(max(values) / distance - 1e-9)
    return Axis(label, 0.0, number * distance, tuple((k * distance, f"{k * distance:g}") for k in range(number + 1)))


def decades(label: str, values: Sequence[float]) -> Axis:
    """Powers of ten around the values.

    >>> decades("distance", [3e-2, 2e-1]).ticks
    ((0.01, '1e-2'), (0.1, '1e-1'), (1.0, '1'))
    """
    positive = [value for value in values if value > 0]
    low, high = floor(log10(min(positive))), ceil(log10(max(positive)) + 1e-9)
    ticks = tuple((10.0**power, f"1e{power}" if power else "1") for power in range(low, max(high, low + 1) + 1))
    return Axis(label, ticks[0][0], ticks[-1][0], ticks, log=True)


def named(label: str, values: Sequence[int]) -> Axis:
    """Logarithmic, with the values themselves written.

    >>> named("samples", [8, 32]).ticks
    ((8, '8'), (32, '32'))
    """
    return Axis(label, min(values) / 1.15, max(values) * 1.15, tuple((value, str(value)) for value in values), log=True)


def draw(title: str, x: Axis, y: Axis, series: Sequence[Series], levels: Sequence[Level] = ()) -> str:
    """A chart as an `<svg>` that can stand in a page or in another one."""
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(title)}</title>",
        *_grid(x, y),
        *(_level(level, y) for level in levels),
        *(_line(each, x, y) for each in series),
        *_legend(series),
        "</svg>",
    ]
    return "\n".join(parts)


def _across(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _up(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _text(x: float, y: float, words: str, kind: str, *, anchor: str = "middle", turn: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def _grid(x: Axis, y: Axis) -> list[str]:
    floor_, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    parts = []
    for value, words in y.ticks:
        at = _up(y, value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 9, at + 4.5, words, "tick", anchor="end"))
    for value, words in x.ticks:
        at = _across(x, value)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{floor_}" x2="{at:.1f}" y2="{floor_ + 5}"/>')
        parts.append(_text(at, floor_ + 21, words, "tick"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 9, x.label, "axis x-axis"))
    parts.append(_text(22, middle, y.label, "axis y-axis", turn=f' transform="rotate(-90 22 {middle:.1f})"'))
    return parts


def _level(level: Level, y: Axis) -> str:
    at = _up(y, level.value)
    line = f'<line class="level" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
    left = LEFT + 4 if level.anchor == "start" else WIDTH - RIGHT - 4
    return line + _text(left, at - 7, level.name, "level-name", anchor=level.anchor)


def _line(series: Series, x: Axis, y: Axis) -> str:
    points = [(_across(x, across), _up(y, up)) for across, up in series.points]
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
    dots = "".join(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3.4"/>' for across, up in points)
    return f'<g class="series {series.kind}"><polyline points="{path}"/>{dots}</g>'


def _legend(series: Sequence[Series]) -> list[str]:
    parts = []
    for number, each in enumerate(series):
        at = 17 + 25 * number
        mark = f'<polyline points="{LEFT},{at} {LEFT + 26},{at}"/><circle cx="{LEFT + 13}" cy="{at}" r="3.4"/>'
        parts.append(f'<g class="series {each.kind}">{mark}</g>')
        parts.append(_text(LEFT + 38, at + 4.5, each.name, "legend", anchor="start"))
    return parts
