"""Horizontal bars as SVG text, which show how many times as long one case takes as another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LEFT, _RIGHT = 720, 190, 150
_ROW, _BAR, _TOP = 26, 14, 34


class Bar(NamedTuple):
    """A bar that begins at the line of value 1 and ends at `value`.

    `low` and `high` are its interval, drawn as a line if both are finite and above 0. `kind` is its class in the style
    sheet, `text` the label at its end.
    """

    name: str
    value: float
    low: float
    high: float
    kind: str
    text: str


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return an SVG chart with a logarithmic axis, or "" without bars. A value below 1 goes to the left of the line."""
    if not bars:
        return ""
    ends = [end for bar in bars for end in (bar.value, bar.low, bar.high) if math.isfinite(end) and end > 0]
    low, high = min(1.0, *ends), max(2.0, *ends)
    height = _TOP + _ROW * len(bars) + 8

    def at(value: float) -> float:
        span = math.log(high) - math.log(low)
        return _LEFT + (math.log(value) - math.log(low)) / span * (_WIDTH - _LEFT - _RIGHT)

    one = at(1.0)
    parts = [f'<text class="title" x="0" y="16">{escape(title)}</text>']
    parts.append(f'<line class="mark" x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 6}" y2="{height - 4}"/>')
    for number, bar in enumerate(bars):
        y = _TOP + _ROW * number
        begin, end = sorted((one, at(bar.value)))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>')
        parts.append(
            f'<rect class="{bar.kind}" x="{begin:.1f}" y="{y}" width="{max(1.0, end - begin):.1f}" height="{_BAR}">'
            f"<title>{escape(bar.text)}</title></rect>"
        )
        furthest = end
        if bar.low > 0 and math.isfinite(bar.high):
            middle, furthest = y + _BAR / 2, max(end, at(bar.high))
            parts.append(
                f'<line class="interval" x1="{at(bar.low):.1f}" x2="{at(bar.high):.1f}" y1="{middle}" y2="{middle}"/>'
            )
        parts.append(f'<text x="{furthest + 6:.1f}" y="{y + 12}">{escape(bar.text)}</text>')
    size = f'viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg class="bars" {size} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
