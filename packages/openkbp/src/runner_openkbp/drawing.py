"""Drawing with Pillow alone: colours, text, lines, and a plot's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from runner_openkbp.rois import Array

Colour = tuple[int, int, int]
Point = tuple[float, float]

BAR = 66
"""Width of a colour scale (pixels)."""

INK: Colour = (28, 35, 48)
SOFT: Colour = (95, 105, 120)
LINE: Colour = (224, 228, 235)
WHITE: Colour = (255, 255, 255)

_FINE = 3
"""Lines are drawn this many times larger and then shrunk, which smooths them."""

DOSE_COLOURS: tuple[Colour, ...] = (
    *((20, 20, 110), (0, 60, 220), (0, 170, 235), (0, 190, 120)),
    *((150, 215, 30), (255, 225, 0), (255, 130, 0), (215, 0, 20)),
)
"""Cold to hot, as planning systems show dose."""
DIFFERENCE_COLOURS: tuple[Colour, ...] = (
    *((8, 48, 160), (70, 140, 230), (185, 215, 245), (250, 250, 250)),
    *((250, 205, 180), (235, 110, 80), (165, 10, 30)),
)
"""From too little (blue) to too much (red)."""


@lru_cache(maxsize=8)
def font(size: int) -> Any:
    return ImageFont.load_default(size)


def text(draw: Any, at: Point, words: str, size: int, *, colour: Colour = INK, anchor: str = "la") -> None:
    """Write text in Pillow's own font, which has no arrows and no minus sign.

    `anchor` has two letters: the horizontal position of `at` (l, m, r) and the vertical one (a, m, s, d).
    """
    draw.text(at, words, fill=colour, font=font(size), anchor=anchor)


def shadowed(draw: Any, at: Point, words: str, *, anchor: str = "la") -> None:
    """Write white text that can be read on any picture."""
    draw.text(at, words, fill=WHITE, font=font(13), anchor=anchor, stroke_width=2, stroke_fill=(0, 0, 0))


def dashes(points: Sequence[Point], on: float = 9, off: float = 6) -> list[list[Point]]:
    """Cut a polyline into dashes of length `on` with gaps of `off` between them."""
    pieces: list[list[Point]] = [[points[0]]]
    drawing, left = True, on
    for start, end in pairwise(points):
        position, length = 0.0, float(np.hypot(end[0] - start[0], end[1] - start[1]))
        while length - position > left:
            position += left
            share = position / length
            at = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
            if drawing:
                pieces[-1].append(at)
            else:
                pieces.append([at])
            drawing = not drawing
            left = on if drawing else off
        left -= length - position
        if drawing:
            pieces[-1].append(end)
    return [piece for piece in pieces if len(piece) > 1]


@dataclass
class Curve:
    """A curve through `points`, x and y in the plot's own units."""

    points: Sequence[Point]
    colour: Colour
    dashed: bool = False


@dataclass
class Plot:
    """A line plot `width` × `height` pixels: x from 0 to `x_top`, y from 0 to `y_top`, a label on each axis."""

    width: int
    height: int
    x_top: float
    y_top: float
    x_label: str
    y_label: str

    _LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 46

    def place(self, point: Point) -> Point:
        wide, high = self.width - self._LEFT - self._RIGHT, self.height - self._TOP - self._BOTTOM
        return self._LEFT + wide * point[0] / self.x_top, self._TOP + high * (1 - point[1] / self.y_top)

    def draw(self, curves: Sequence[Curve], x_step: float = 10, y_step: float = 20) -> Image.Image:
        picture = Image.new("RGB", (self.width * _FINE, self.height * _FINE), WHITE)
        draw = ImageDraw.Draw(picture)
        xs, ys = np.arange(0, self.x_top + 1e-6, x_step), np.arange(0, self.y_top + 1e-6, y_step)
        for x in xs:
            _line(draw, [self.place((x, 0)), self.place((x, self.y_top))], LINE, 1)
        for y in ys:
            _line(draw, [self.place((0, y)), self.place((self.x_top, y))], LINE, 1)
        for curve in curves:
            points = [self.place(point) for point in curve.points]
            for piece in dashes(points) if curve.dashed else [points]:
                _line(draw, piece, curve.colour, 2)
        _line(draw, [self.place(p) for p in ((0, self.y_top), (0, 0), (self.x_top, 0))], SOFT, 1)
        picture = picture.resize((self.width, self.height), Image.Resampling.LANCZOS)
        self._label(picture, xs, ys)
        return picture

    def _label(self, picture: Image.Image, xs: Array, ys: Array) -> None:
        draw = ImageDraw.Draw(picture)
        for x in xs:
            text(draw, (self.place((x, 0))[0], self.height - self._BOTTOM + 6), f"{x:g}", 13, colour=SOFT, anchor="ma")
        for y in ys:
            text(draw, (self._LEFT - 7, self.place((0, y))[1]), f"{y:g}", 13, colour=SOFT, anchor="rm")
        text(draw, (self.place((self.x_top / 2, 0))[0], self.height - 4), self.x_label, 14, anchor="md")
        label = Image.new("RGB", (200, 22), WHITE)
        text(ImageDraw.Draw(label), (100, 11), self.y_label, 14, anchor="mm")
        turned = label.rotate(90, expand=True)
        picture.paste(turned, (0, round(self.place((0, self.y_top / 2))[1]) - turned.height // 2))


def _line(draw: Any, points: Sequence[Point], colour: Colour, width: int) -> None:
    draw.line([(x * _FINE, y * _FINE) for x, y in points], fill=colour, width=width * _FINE, joint="curve")


@dataclass(frozen=True)
class Scale:
    """A colour scale from `low` to `high` (Gy)."""

    low: float
    high: float
    colours: Sequence[Colour]
    ticks: Sequence[float]

    def colour(self, values: Array) -> Array:
        """Return colours (…, 3) float32 of values (any shape), linear between the scale's colours."""
        place = np.clip((values - self.low) / (self.high - self.low), 0, 1) * (len(self.colours) - 1)
        knots = np.arange(len(self.colours))
        channels = [np.interp(place, knots, channel) for channel in np.array(self.colours, float).T]
        return np.stack(channels, axis=-1).astype(np.float32)

    def bar(self, height: int) -> Image.Image:
        """Draw the scale upright with its ticks, `BAR` pixels wide."""
        picture = Image.new("RGB", (BAR, height), WHITE)
        draw = ImageDraw.Draw(picture)
        top, bottom = 26, height - 12
        values = np.linspace(self.high, self.low, bottom - top)
        colours = self.colour(np.repeat(values[:, None], 16, axis=1)).astype(np.uint8)
        picture.paste(Image.fromarray(colours), (4, top))
        draw.rectangle((3, top - 1, 20, bottom), outline=SOFT)
        for value in self.ticks:
            y = top + (self.high - value) / (self.high - self.low) * (bottom - top - 1)
            draw.line((20, y, 24, y), fill=SOFT)
            text(draw, (27, y), f"{value:+g}" if self.low < 0 and value else f"{value:g}", 13, anchor="lm")
        text(draw, (4, 18), "Gy", 13, anchor="ls")
        return picture
