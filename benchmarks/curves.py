"""Curves as an SVG file of its own: a picture for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from runner_core.output.report.charts import nice_ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 280, 56, 12, 52, 46
COLOURS = ("#4c78a8", "#e07b39", "#2e8b57", "#8e5ea2")


class Curve(NamedTuple):
    """(x, y) points in order; y is a share."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Curves over one axis, which `across` names."""

    title: str
    across: str
    curves: Sequence[Curve]


def picture(panels: Sequence[Panel], marks: Sequence[float]) -> str:
    """Return an SVG of panels, two a row, of shares between 0 and 1, with a dashed line at each of `marks`."""
    rows = (len(panels) + 1) // 2
    parts = [
        f'<g transform="translate({WIDTH * (place % 2)} {HEIGHT * (place // 2)})">{"".join(_panel(panel, marks))}</g>'
        for place, panel in enumerate(panels)
    ]
    width, height = WIDTH * min(2, len(panels)), HEIGHT * rows
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" {style}>'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"


def _panel(panel: Panel, marks: Sequence[float]) -> Iterator[str]:
    most = max(x for curve in panel.curves for x, _ in curve.points)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / most * (right - LEFT), bottom - y * (bottom - TOP)

    yield f'<text x="{LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>'
    for y in nice_ticks(0, 1):
        yield _line(*at(0, y), *at(most, y), "#ddd")
        yield f'<text x="{LEFT - 6}" y="{at(0, y)[1] + 4:.1f}" text-anchor="end">{100 * y:.0f} %</text>'
    for x in nice_ticks(0, most):
        yield f'<text x="{at(x, 0)[0]:.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>'
    for y in marks:
        yield _line(*at(0, y), *at(most, y), "#888", ' stroke-dasharray="4 3"')
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(panel.across)}</text>'
    x = LEFT
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        places = [at(*point) for point in curve.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield "".join(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in places)
        yield f'<text x="{x}" y="36" fill="{colour}">{escape(curve.name)}</text>'
        x += 7 * len(curve.name) + 14


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"{more}/>'
