"""Small SVG charts as text: no plotting library, sharp at any size, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 480, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 28, 48, 44  # room for a phone's larger text
_MOST_POINTS = 400
_STEP = "optimizer step"
_BARS_WIDTH, _BARS_LEFT, _BARS_RIGHT = 720, 190, 150
_ROW, _BAR, _BARS_TOP = 26, 14, 34


class Series(NamedTuple):
    """A line: (x, y) points in order; `kind` is its class in the style sheet."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


class _Axis(NamedTuple):
    """Maps values between `low` and `high` to pixels between `begin` and `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)


COLOURS = "abdefg"
"""Classes of lines in the style sheet, for runs."""


def line_class(number: int) -> str:
    """Return the class of the line of a run, by its number; there are few, and further runs reuse them."""
    return COLOURS[number % len(COLOURS)]


def line_chart(
    title: str,
    series: Sequence[Series],
    mark: float | None = None,
    log: bool = True,
    better: str = "",
    across: str = _STEP,
) -> str:
    """Return an SVG chart over steps, or over the quantity `across`; `mark` is the step of the best checkpoint.

    With `log` the y axis is logarithmic for positive values that span more than two decades. `better` is the direction
    of better values: ↑, ↓ or nothing.
    """
    thinned = [s._replace(points=thin(s.points)) for s in series]
    xs = [x for s in thinned for x, _ in s.points]
    ys = [y for s in thinned for _, y in s.points]
    log = log and min(ys) > 0 and max(ys) / min(ys) > 100
    first, last = (min(xs), max(xs)) if min(xs) < max(xs) else (0.0, max(1.0, 2 * xs[0]))
    x_axis = _Axis(first, last, _LEFT, _WIDTH - _RIGHT)
    low, high = (min(ys) / 1.1, max(ys) * 1.1) if log else _widened(min(ys), max(ys), 0.06)
    y_axis = _Axis(low, high, _HEIGHT - _BOTTOM, _TOP, log)
    parts = [*_grid(x_axis, y_axis, whole=across == _STEP)]
    if mark is not None and x_axis.low <= mark <= x_axis.high:
        x = x_axis.at(mark)
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
            f"<title>best checkpoint, step {mark:g}</title></line>"
        )
    for line in thinned:
        parts.append(_line(line, x_axis, y_axis, across.removeprefix("optimizer ")))
    parts += [*_titles(title, across, better, y_axis.log), _legend(thinned)]
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" data-across="{escape(across.removeprefix("optimizer "))}"'
    return f'<svg class="chart" {size} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


class Bar(NamedTuple):
    """A bar up to `value`, with `text` at its end.

    `low` and `high` are its interval, drawn as a line if both are finite and above 0. `kind` is its class in the style
    sheet; `about` appears under the pointer.
    """

    name: str
    value: float
    low: float
    high: float
    kind: str
    text: str
    about: str = ""


def bar_chart(title: str, bars: Sequence[Bar], ratios: bool = True) -> str:
    """Return an SVG chart of horizontal bars, or "" without bars.

    `ratios` say how many times as long one case takes as another: they begin at the line of value 1 on a logarithmic
    axis, and a value below 1 goes to the left of the line. Other values begin at 0.
    """
    if not bars:
        return ""
    ends = [end for bar in bars for end in (bar.value, bar.low, bar.high) if math.isfinite(end) and end > 0]
    low, high = (min(1.0, *ends), max(2.0, *ends)) if ratios else (0.0, max(ends, default=1.0))
    axis = _Axis(low, high, _BARS_LEFT, _BARS_WIDTH - _BARS_RIGHT, ratios)
    height = _BARS_TOP + _ROW * len(bars) + 8
    parts = [f'<text class="title" x="0" y="16">{escape(title)}</text>']
    if ratios:
        one = axis.at(1.0)
        parts.append(f'<line class="mark" x1="{one:.1f}" x2="{one:.1f}" y1="{_BARS_TOP - 6}" y2="{height - 4}"/>')
    for number, bar in enumerate(bars):
        parts += _bar(bar, axis, _BARS_TOP + _ROW * number)
    size = f'viewBox="0 0 {_BARS_WIDTH} {height}"'
    return f'<svg class="bars" {size} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def interval_chart(title: str, bars: Sequence[Bar], better: str = "") -> str:
    """Return an SVG chart of values as dots on their intervals, with a line at 0; "" without finite intervals.

    `better` is the direction of better values: ↑, ↓ or nothing.
    """
    bars = [bar for bar in bars if math.isfinite(bar.low) and math.isfinite(bar.high)]
    if not bars:
        return ""
    ends = [end for bar in bars for end in (bar.value, bar.low, bar.high)]
    axis = _Axis(*_widened(min(0.0, *ends), max(0.0, *ends), 0.06), _BARS_LEFT, _BARS_WIDTH - _BARS_RIGHT)
    height = _BARS_TOP + _ROW * len(bars) + 24
    words = {"↑": ", right is better", "↓": ", left is better"}.get(better, "")
    zero = axis.at(0.0)
    parts = [
        f'<text class="title" x="0" y="16">{escape(title + words)}</text>',
        f'<line class="mark" x1="{zero:.1f}" x2="{zero:.1f}" y1="{_BARS_TOP - 6}" y2="{height - 20}"/>',
    ]
    for value in nice_ticks(axis.low, axis.high):
        parts.append(f'<text x="{axis.at(value):.1f}" y="{height - 6}" text-anchor="middle">{value:.4g}</text>')
    for number, bar in enumerate(bars):
        x, low, high = map(axis.at, (bar.value, bar.low, bar.high))
        y = _BARS_TOP + _ROW * number + _BAR / 2
        parts += [
            f'<text x="{_BARS_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(bar.name)}</text>',
            f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>',
            f'<circle class="{bar.kind}" cx="{x:.1f}" cy="{y}" r="4.5"><title>{escape(bar.about)}</title></circle>',
            f'<text x="{max(high, zero) + 8:.1f}" y="{y + 4}">{escape(bar.text)}</text>',
        ]
    size = f'viewBox="0 0 {_BARS_WIDTH} {height}"'
    return f'<svg class="bars" {size} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _bar(bar: Bar, axis: _Axis, y: float) -> Iterator[str]:
    begin, end = sorted((axis.at(1.0) if axis.log else axis.begin, axis.at(bar.value)))
    yield f'<text x="{_BARS_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>'
    yield (
        f'<rect class="{bar.kind}" x="{begin:.1f}" y="{y}" width="{max(1.0, end - begin):.1f}" height="{_BAR}">'
        f"<title>{escape(bar.about or bar.text)}</title></rect>"
    )
    if bar.low > 0 and math.isfinite(bar.high):
        low, high, middle = axis.at(bar.low), axis.at(bar.high), y + _BAR / 2
        yield f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
        end = max(end, high)
    yield f'<text x="{end + 6:.1f}" y="{y + 12}">{escape(bar.text)}</text>'


def share_bar(amounts: Mapping[str, float]) -> str:
    """Return one bar divided by share, with a legend in seconds and per cent."""
    total = sum(amounts.values())
    bars, legend, x = [], [], 0.0
    for number, (name, amount) in enumerate(amounts.items()):
        kind, width = "abc"[number % 3], 100 * amount / total
        bars.append(f'<rect class="{kind}" x="{x:.3f}%" width="{width:.3f}%" height="22"/>')
        legend.append(f'<span><i class="{kind}"></i>{escape(name)}: {amount:.1f} s ({amount / total:.1%})</span>')
        x += width
    return f'<svg class="bar" width="100%" height="22">{"".join(bars)}</svg><p class="legend">{"".join(legend)}</p>'


def thin(points: Sequence[tuple[float, float]], most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most about `most` points, with the smallest and largest of each stretch so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {stretch.index(min(stretch, key=_y)), stretch.index(max(stretch, key=_y))}
        kept += [stretch[i] for i in sorted(ends)]
    return kept


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers between `low` and `high`.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / about
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(m for m in (1, 2, 5, 10) if m * scale >= rough * 0.999) * scale
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _y(point: tuple[float, float]) -> float:
    return point[1]


def _widened(low: float, high: float, share: float = 0.0) -> tuple[float, float]:
    if high - low <= 1e-12 * max(abs(low), abs(high)):  # one value only
        space = abs(high) * 0.1 or 1.0
        return low - space, high + space
    return low - share * (high - low), high + share * (high - low)


def _grid(x_axis: _Axis, y_axis: _Axis, whole: bool) -> Iterator[str]:
    for value in _log_ticks(y_axis) if y_axis.log else nice_ticks(y_axis.low, y_axis.high):
        y = y_axis.at(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    for value in nice_ticks(x_axis.low, x_axis.high):
        if whole and not value.is_integer():  # no step
            continue
        yield f'<text x="{x_axis.at(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:,g}</text>'


def _log_ticks(axis: _Axis) -> list[float]:
    decades = range(math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high)) + 1)
    return [10.0**d for d in decades]


def _line(line: Series, x_axis: _Axis, y_axis: _Axis, across: str) -> str:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = ""
    if len(places) <= 60:
        dots = "".join(
            f'<circle class="{line.kind}" cx="{px:.1f}" cy="{py:.1f}" r="2.5"><title>{escape(line.name)}: '
            f"{y:.5g} at {escape(across)} {x:g}</title></circle>"
            for (px, py), (x, y) in zip(places, line.points, strict=True)
        )
    values = " ".join(f"{x:g},{y:.5g}" for x, y in line.points)
    data = f'data-name="{escape(line.name)}" data-values="{values}"'
    return f'<polyline class="{line.kind}" fill="none" stroke="currentColor" points="{path}" {data}/>{dots}'


def _titles(title: str, across: str, better: str, log: bool) -> Iterator[str]:
    """Yield the chart's title, the direction of better values, and the titles of both axes."""
    yield f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>'
    if better:
        words = "higher is better" if better == "↑" else "lower is better"
        yield f'<text x="{_WIDTH - _RIGHT}" y="16" text-anchor="end">{better} {words}</text>'
    middle, down = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>'
    name = f"{title}, log scale" if log else title
    yield f'<text x="14" y="{down}" text-anchor="middle" transform="rotate(-90 14 {down})">{escape(name)}</text>'


def _legend(series: Sequence[Series]) -> str:
    """Return the names of the lines, below the title."""
    text, x = "", _LEFT
    for line in series:
        text += f'<text class="{line.kind}" x="{x}" y="34">{escape(line.name)}</text>'
        x += 7 * len(line.name) + 16
    return text
