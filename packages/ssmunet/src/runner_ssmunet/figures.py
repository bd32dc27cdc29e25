"""Pictures: a core with truth, prediction and error, attention over wavenumber, filters over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from runner_core import Layer

from runner_ssmunet.axis import gaps
from runner_ssmunet.bands import amide1_weights
from runner_ssmunet.classes import Classes, labels_of, palette
from runner_ssmunet.outputs import Segmented
from runner_ssmunet.readers import Core
from runner_ssmunet.readers.blocks import by_rows

Array = np.ndarray[Any, np.dtype[Any]]
Colour = tuple[int, ...]

PAPER: Colour = (255, 255, 255)
INK: Colour = (40, 40, 40)
PALE: Colour = (150, 150, 150)
RIGHT: Colour = (205, 205, 205)
WRONG: Colour = (225, 0, 130)
"""No class has the colours RIGHT and WRONG, and their lightness differs."""
_PANEL = 260
"""Least width of each of the three maps (pixels)."""
SPECTRA = 6
"""Spectra in a picture of what preparation does."""
_CURVE = 190
"""Height of a chart (pixels)."""
_LINE = 12
"""Height of a line of text (pixels)."""


def overlay(grey: Array, predicted: Array, truth: Array | None, classes: Classes) -> Array:
    """Return the maps side by side with their legend: (H', W', 3) uint8.

    `grey` (H, W) float shows the core by its amide-I band. `predicted` and `truth` (H, W) hold labels, 0 for none. With
    truth, the third map shows right and wrong.
    """
    zoom = max(1, -(-_PANEL // max(grey.shape)))
    colours = palette(len(classes.names), classes.colours)
    low, high = np.percentile(grey, (1, 99.5))
    shades = np.repeat(np.clip((grey - low) / (high - low or 1) * 200, 0, 200).astype(np.uint8)[..., None], 3, axis=2)
    panels = {"prediction": np.where((predicted > 0)[..., None], colours[predicted], shades // 2)}
    if truth is not None:
        known = (truth > 0)[..., None]
        verdict = np.where((truth == predicted)[..., None], np.array(RIGHT, np.uint8), np.array(WRONG, np.uint8))
        error = np.where(known, verdict, shades // 2)
        panels = {"annotated": np.where(known, colours[truth], shades)} | panels | {"right and wrong": error}
    else:
        panels = {"amide I": shades} | panels
    maps = [_titled(np.kron(panel, np.ones((zoom, zoom, 1), np.uint8)), title) for title, panel in panels.items()]
    picture = np.concatenate(maps, axis=1)
    entries = {name: tuple(map(int, colours[label])) for label, name in enumerate(classes.names, start=1)}
    if truth is not None:
        entries |= {"right": RIGHT, "wrong": WRONG}
    return stack([picture, legend(entries, picture.shape[1])])


def figure(
    core: Core, found: Segmented, truth: Array | None, classes: Classes, axis: Array, bands: Mapping[str, float]
) -> Array:
    """Return a core's maps, with the attention over the network's wavenumbers `axis` (L,) below them."""
    picture = overlay(_grey(core), found.classes, truth, classes)
    if not found.attention.any():
        return picture
    return stack([picture, attention_chart(found.attention, axis, bands, picture.shape[1])])


def layers(core: Core, found: Segmented | None, truth: Array | None, classes: Classes) -> list[Layer]:
    """Return what a viewer shows of a core, (H, W): absorbance, annotation, prediction, largest probability.

    Files of cores do not say how large a pixel is.
    """
    spacing, named = (1.0, 1.0), labels_of(classes.names, classes.colours)
    shown = [Layer("absorbance at amide I", _grey(core), spacing, "pixel")]
    if truth is not None:
        shown.append(Layer("annotated", truth, spacing, "pixel", named))
    if found is not None:
        sure = found.probabilities.max(0).astype(np.float32)
        shown.append(Layer("probability of the prediction", sure, spacing, "pixel", colours="magma", visible=False))
        shown.append(Layer("prediction", found.classes, spacing, "pixel", named))
    return shown


def _grey(core: Core) -> Array:
    """Return the absorbance (H, W) of the amide-I band, or its mean if the core lacks the band."""
    weights = amide1_weights(core.wavenumbers)
    weights = np.full(len(core.wavenumbers), 1 / len(core.wavenumbers)) if weights is None else weights
    return by_rows(core.spectra, lambda rows: np.asarray(rows @ weights.astype(np.float32)))


def legend(entries: Mapping[str, Any], width: int) -> Array:
    """Return a square of each colour with its meaning, in as many lines as needed: (H, width, 3) uint8."""
    pen = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    places, x, y = [], 8, 6
    for text in entries:
        wide = 24 + round(pen.textlength(text)) + 16
        if x + wide > width and x > 8:
            x, y = 8, y + 18
        places.append((x, y))
        x += wide
    picture = Image.new("RGB", (width, y + 20), PAPER)
    draw = ImageDraw.Draw(picture)
    for (text, colour), (left, top) in zip(entries.items(), places, strict=True):
        draw.rectangle((left, top + 1, left + 10, top + 11), fill=colour, outline=PALE)
        draw.text((left + 16, top), text, fill=INK)
    return np.asarray(picture)


def stack(pictures: Sequence[Array]) -> Array:
    """Return pictures below each other, on paper as wide as the widest."""
    width = max(picture.shape[1] for picture in pictures)
    wide = [np.pad(p, ((0, 0), (0, width - p.shape[1]), (0, 0)), constant_values=PAPER[0]) for p in pictures]
    return np.concatenate(wide, axis=0)


def attention_chart(attention: Array, wavenumbers: Array, bands: Mapping[str, float], width: int) -> Array:
    """Draw the mean attention (L,) over wavenumbers (L,), high ones left, as usual in the field.

    Named bands are marked, and so is the value of equal attention everywhere. The scale begins at the least attention:
    differences are small beside it.
    """
    equal = 1 / len(attention)
    least, most = min(float(attention.min()), equal), max(float(attention.max()), equal)
    scale = (least, most + 0.05 * (most - least or most))
    chart = _Chart(width, _CURVE, (float(wavenumbers[-1]), float(wavenumbers[0])), scale)
    chart.horizontal(equal, "")
    for name, place in on_axis(bands, wavenumbers).items():
        chart.vertical(place, name)
    cuts = np.searchsorted(wavenumbers, [after for _, after in gaps(wavenumbers.tolist())])
    for part in np.split(np.arange(len(wavenumbers)), cuts):  # nothing is drawn across a gap
        chart.line(wavenumbers[part], attention[part], (0, 114, 178))
    return chart.finish("attention over wavenumber (cm⁻¹), from its least value up; dashed across: if all were equal")


def before_and_after(before: Array, after: Array, wavenumbers: Array, width: int = 720) -> Array:
    """Draw `SPECTRA` spectra, weak to strong ones, as measured (P, L) and as prepared (P, L)."""
    ranks = (np.linspace(0.05, 0.95, SPECTRA) * (len(before) - 1)).round().astype(int)
    order = np.argsort(before.mean(1))[ranks]
    charts = [(before[order], "measured, on the kept axis (cm-1)"), (after[order], "prepared, before z-scores")]
    return stack([_spectra_chart(spectra, wavenumbers, title, width) for spectra, title in charts])


def _spectra_chart(spectra: Array, wavenumbers: Array, title: str, width: int) -> Array:
    low, high = float(spectra.min()), float(spectra.max())
    scale = (low, high if high > low else low + 1)
    chart = _Chart(width, _CURVE, (float(wavenumbers[-1]), float(wavenumbers[0])), scale)
    cuts = np.searchsorted(wavenumbers, [after for _, after in gaps(wavenumbers.tolist())])
    for own, colour in zip(spectra, palette(len(spectra))[1:], strict=True):
        for part in np.split(np.arange(len(wavenumbers)), cuts):  # nothing is drawn across a gap
            chart.line(wavenumbers[part], own[part], tuple(map(int, colour)), 1)
    return chart.finish(title)


def class_chart(
    spectra: Mapping[str, Array], wavenumbers: Array, bands: Mapping[str, float],
    colours: Mapping[int, Any] | None, title: str, width: int = 960,
) -> Array:  # fmt: skip
    """Draw one spectrum (L,) for each class in its colour, with the named bands; `spectra` holds them in order."""
    every = np.concatenate(list(spectra.values()))
    chart = _Chart(
        width, 2 * _CURVE, (float(wavenumbers[-1]), float(wavenumbers[0])), (float(every.min()), float(every.max()))
    )
    for name, place in on_axis(bands, wavenumbers).items():
        chart.vertical(place, name)
    shades = palette(len(spectra), colours)[1:]
    cuts = np.searchsorted(wavenumbers, [after for _, after in gaps(wavenumbers.tolist())])
    for own, colour in zip(spectra.values(), shades, strict=True):
        for part in np.split(np.arange(len(wavenumbers)), cuts):
            chart.line(wavenumbers[part], own[part], tuple(map(int, colour)))
    entries = {name: tuple(map(int, colour)) for name, colour in zip(spectra, shades, strict=True)}
    return stack([chart.finish(f"{title}, over wavenumber (cm⁻¹)"), legend(entries, width)])


def on_axis(bands: Mapping[str, float], wavenumbers: Array) -> dict[str, float]:
    """Return the named bands (cm⁻¹) that lie on the ascending axis (L,) and in none of its gaps."""
    missing = gaps(wavenumbers.tolist())
    return {
        name: place
        for name, place in bands.items()
        if wavenumbers[0] <= place <= wavenumbers[-1] and not any(a < place < b for a, b in missing)
    }


def filter_chart(watched: Sequence[tuple[int, Array]], wavenumbers: Array, bands: Mapping[str, float]) -> Array:
    """Draw the filters over training on the axis (L,).

    `watched` holds (step, bands (F, 2) lower and upper edges in cm⁻¹) of each record.
    """
    low, high = float(wavenumbers[0]), float(wavenumbers[-1])
    steps = np.array([step for step, _ in watched], float)
    edges = np.stack([found for _, found in watched])
    chart = _Chart(720, 460, (float(steps[0]), max(float(steps[-1]), steps[0] + 1)), (low, high))
    for name, place in on_axis(bands, wavenumbers).items():
        chart.horizontal(place, f"{name} {place:g}")
    colours = palette(edges.shape[1])[1:]
    for k, colour in enumerate(colours):
        chart.line(steps, edges[:, k].mean(-1), tuple(map(int, colour)), 2)
        for side in (0, 1):
            chart.line(steps, edges[:, k, side], tuple(int(255 - (255 - c) * 0.4) for c in colour), 1)
    return chart.finish("filters over training: centre and edges (cm⁻¹) by step; named bands dashed")


def _titled(picture: Array, title: str) -> Array:
    head = Image.new("RGB", (picture.shape[1], 18), PAPER)
    ImageDraw.Draw(head).text((4, 3), title, fill=INK)
    return np.pad(np.concatenate([np.asarray(head), picture]), ((0, 0), (0, 6), (0, 0)), constant_values=PAPER[0])


@dataclass
class _Chart:
    """Axes on paper: `x` holds the values at the left and right end, `y` those at the bottom and top."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def __post_init__(self) -> None:
        self._picture = Image.new("RGB", (self.width, self.height), PAPER)
        self._draw = ImageDraw.Draw(self._picture)
        self._box = (46, 24, self.width - 12, self.height - 22)
        self._names: list[tuple[float, float, float, str]] = []

    def _place(self, x: float, y: float) -> tuple[float, float]:
        left, top, right, bottom = self._box
        across, up = (x - self.x[0]) / (self.x[1] - self.x[0]), (y - self.y[0]) / (self.y[1] - self.y[0])
        return left + across * (right - left), bottom - min(max(up, 0.0), 1.0) * (bottom - top)

    def line(self, x: Array, y: Array, colour: Colour, thick: int = 2) -> None:
        points = [self._place(float(a), float(b)) for a, b in zip(x, y, strict=True)]
        if len(points) == 1:
            (across, down) = points[0]
            points.append((across + 4, down))
        self._draw.line(points, fill=colour, width=thick)

    def vertical(self, x: float, name: str) -> None:
        across, down = self._place(x, self.y[0])
        self._dashes((across, self._box[1]), (across, down))
        self._name(across + 2, self._box[1] + 1, name, (0, _LINE))

    def horizontal(self, y: float, name: str) -> None:
        across, down = self._place(self.x[0], y)
        self._dashes((across, down), (self._box[2], down))
        self._name(across + 3, down - _LINE, name, (8, 0))

    def _name(self, x: float, y: float, name: str, aside: tuple[float, float]) -> None:
        """Draw a name at (x, y), or as many steps `aside` as it takes to overprint no other."""
        wide = self._draw.textlength(_plain(name))
        x = min(x, self._box[2] - wide)
        while any(x < a + w + 4 and a < x + wide + 4 and abs(y - b) < _LINE for a, b, w, _ in self._names):
            x, y = x + aside[0], y + aside[1]
        if name:
            self._names.append((x, y, wide, name))

    def _dashes(self, start: tuple[float, float], stop: tuple[float, float]) -> None:
        (x0, y0), (x1, y1) = start, stop
        count = max(1, round(max(abs(x1 - x0), abs(y1 - y0)) / 8))
        for i in range(count):
            a, b = i / count, (i + 0.5) / count
            self._draw.line((x0 + a * (x1 - x0), y0 + a * (y1 - y0), x0 + b * (x1 - x0), y0 + b * (y1 - y0)), fill=PALE)

    def finish(self, title: str) -> Array:
        left, top, right, bottom = self._box
        self._draw.rectangle(self._box, outline=PALE)
        self._draw.text((left, 5), _plain(title), fill=INK)
        for x, y, wide, name in self._names:
            self._draw.rectangle((x - 1, y + 1, x + wide, y + _LINE - 1), fill=PAPER)
            self._draw.text((x, y), _plain(name), fill=(90, 90, 90))
        for i in range(5):
            x, y = (a + i / 4 * (b - a) for a, b in (self.x, self.y))
            self._draw.text((left + i / 4 * (right - left) - 12, bottom + 4), _number(x), fill=INK)
            self._draw.text((4, bottom - i / 4 * (bottom - top) - 6), _number(y), fill=INK)
        return np.asarray(self._picture)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _plain(text: str) -> str:
    """Replace raised and lowered digits and long dashes, which Pillow's own font lacks."""
    return text.translate(str.maketrans("₂⁻¹–", "2-1-"))
