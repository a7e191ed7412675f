"""Line and bar charts as inline SVG: axes with round ticks, a legend, nothing to load.

Colours come from the page's style sheet (classes `c0` to `c7`), so that one legend serves all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 42
LABEL_WIDTH = 46
NUM_COLOURS = 8
MAX_POINTS = 400

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """Points in order of x; `colour` and `dashed` tell it from the others."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis: what it shows, and how its ticks are written."""

    title: str
    form: Format = field(default=lambda value: f"{value:g}")
    log: bool = False
    top: float | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    step: bool = False,
    dots: bool = False,
) -> str:
    """A chart; empty series are left out, and without any there is a line that says so."""
    shown = [one for one in series if one.points]
    if not shown:
        return _frame(title, '<text x="230" y="140" class="note">nothing to show</text>')
    xs = _Scale(x, [point[0] for one in shown for point in one.points], LEFT, WIDTH - RIGHT)
    ys = _Scale(y, [point[1] for one in shown for point in one.points], HEIGHT - BOTTOM, TOP)
    body = [_x_axis(xs), _y_axis(ys)]
    for one in shown:
        points = _thinned(one.points)
        path = _step_path(points, xs, ys) if step else _path(points, xs, ys)
        dash = ' stroke-dasharray="5 3"' if one.dashed else ""
        name = escape(one.name)
        body.append(f'<path d="{path}" class="line c{one.colour % NUM_COLOURS}"{dash}>')
        body.append(f"<title>{name}</title></path>")
        if dots:
            body += [
                f'<circle cx="{xs.at(a):.1f}" cy="{ys.at(b):.1f}" r="3.5" '
                f'class="dot c{one.colour % NUM_COLOURS}"><title>{name}: {escape(x.form(a))}, '
                f"{escape(y.form(b))}</title></circle>"
                for a, b in points
            ]
    return _frame(title, "".join(body))


def bar_chart(title: str, names: Sequence[str], series: Sequence[Series], x: str, y: Axis) -> str:
    """Groups of bars; the points' x are places in `names`."""
    values = [point[1] for one in series for point in one.points]
    if not values:
        return _frame(title, '<text x="230" y="140" class="note">nothing to show</text>')
    ys = _Scale(y, [0.0, *values], HEIGHT - BOTTOM, TOP)
    slot = (WIDTH - LEFT - RIGHT) / len(names)
    width = min(28.0, 0.8 * slot / len(series))
    body = [_y_axis(ys)]
    for place, one in enumerate(series):
        for number, value in one.points:
            left = LEFT + slot * (number + 0.5) + width * (place - len(series) / 2)
            top = ys.at(value)
            body.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{HEIGHT - BOTTOM - top:.1f}" class="bar c{one.colour % NUM_COLOURS}">'
                f"<title>{escape(one.name)}: {escape(y.form(value))}</title></rect>"
            )
    for number, name in enumerate(names):
        body.append(_text(LEFT + slot * (number + 0.5), HEIGHT - BOTTOM + 15, name, "tick"))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "axis"))
    return _frame(title, "".join(body))


def legend(series: Sequence[Series]) -> str:
    """Names beside their colours; once for charts that share them."""
    if len(series) < 2:
        return ""
    entries = []
    for one in series:
        dash = ' stroke-dasharray="5 3"' if one.dashed else ""
        entries.append(
            f'<span><svg width="26" height="10"><path d="M0 5H26" '
            f'class="line c{one.colour % NUM_COLOURS}"{dash}/></svg> {escape(one.name)}</span>'
        )
    return f'<p class="legend">{"".join(entries)}</p>'


class _Scale:
    """From values to places on the picture."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self.axis = axis
        self._start, self._end = start, end
        low, high = min(values), max(values)
        if axis.log:
            self.low = max(low, 1e-5) / 1.1
            self.high = max(high * 1.1, self.low * 2)
        else:
            self.low = min(0.0, low)
            room = 1.05 * high if high > self.low else 1.0
            self.high = room if axis.top is None else axis.top

    def at(self, value: float) -> float:
        share = self._share(max(value, self.low))
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self.axis.log:
            return _log_ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _share(self, value: float) -> float:
        if self.axis.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= rough * 0.999)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    values = [10.0**power * step for power in powers for step in steps]
    return [value for value in values if low <= value <= high]


def _x_axis(scale: _Scale) -> str:
    bottom = HEIGHT - BOTTOM
    parts, free_from = [], 0.0
    for value in scale.ticks():
        place = scale.at(value)
        parts.append(f'<path d="M{place:.1f} {TOP}V{bottom}" class="grid"/>')
        if place >= free_from:
            parts.append(_text(place, bottom + 15, scale.axis.form(value), "tick"))
            free_from = place + LABEL_WIDTH
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, scale.axis.title, "axis"))
    return "".join(parts)


def _y_axis(scale: _Scale) -> str:
    parts = []
    for value in scale.ticks():
        place = scale.at(value)
        parts.append(f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(_text(LEFT - 6, place + 4, scale.axis.form(value), "tick end"))
    parts.append(_text(LEFT - 6, TOP - 10, scale.axis.title, "axis unit"))
    return "".join(parts)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]], xs: _Scale, ys: _Scale) -> str:
    return "M" + "L".join(f"{xs.at(a):.1f} {ys.at(b):.1f}" for a, b in points)


def _step_path(points: Sequence[tuple[float, float]], xs: _Scale, ys: _Scale) -> str:
    """Each value holds from its point to the next."""
    (x, y), *rest = points
    return f"M{xs.at(x):.1f} {ys.at(y):.1f}" + "".join(
        f"H{xs.at(a):.1f}V{ys.at(b):.1f}" for a, b in rest
    )


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most some hundreds, the last among them."""
    if len(points) <= MAX_POINTS:
        return points
    places = [round(n * (len(points) - 1) / (MAX_POINTS - 1)) for n in range(MAX_POINTS)]
    return [points[place] for place in places]


def _frame(title: str, body: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">{body}</svg></figure>'
    )
