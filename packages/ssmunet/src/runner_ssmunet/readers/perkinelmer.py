"""PerkinElmer Spotlight images (.fsm).

A file is a signature, a name, and blocks: a number (uint16), a length (int32) and the content. Block 5100 has the grid
and the units, each block 5105 the spectrum of one pixel. Columns come first within a row. Rows are read from the
largest y downwards, as Quasar shows them. Values are %T as a rule, which become absorbance (base.py).

The layout is that which specio (paris-saclay-cds) and Quasar read; no code of either is in here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from runner_core import BadInput, Json, shape_text

from runner_ssmunet.readers.base import Array, Raw, Units, existing
from runner_ssmunet.readers.blocks import Blocks, release
from runner_ssmunet.readers.sizes import array_bytes, refuse_size

_START = 44
"""Bytes of the signature (PEPE) and of the name behind it."""
_GRID, _SPECTRUM = 5100, 5105
_UNITS: dict[str, Units] = {"%t": "percent", "t": "transmittance", "a": "absorbance"}


@dataclass(frozen=True)
class _Layout:
    """The grid of a file. `pixels` (H, W) maps one block for each pixel, the largest y first."""

    rows: int
    columns: int
    wavenumbers: Array
    step: tuple[float, float]
    units: Units
    pixels: Array

    def spectra(self, path: Path, rows: slice, columns: slice) -> Array:
        """Return the spectra (h, w, C) of some pixels. Raises BadInput if something else stands between them."""
        wanted = self.pixels[rows, columns]
        if (wanted["number"] != _SPECTRUM).any() or (wanted["size"] != 4 * len(self.wavenumbers)).any():
            raise BadInput(f"{path}: between its spectra stands something else: it is damaged. Copy it again.")
        found = np.array(wanted["values"])
        release(self.pixels)
        return found


def is_core(path: Path) -> bool:
    """Return whether a file is a Spotlight image, by its suffix."""
    return path.suffix.lower() == ".fsm"


def parts(path: Path) -> list[Path]:
    """Return the files of the core."""
    return [path]


def meta(path: Path) -> dict[str, Json]:
    """Return no ids: they stand in the JSON file beside it."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core, with `pixel_um` in its meta."""
    image = blocks(path)
    if spectra:
        refuse_size(path, "its image", image.shape, array_bytes(image.shape, 4))
        image.raw.spectra = image.fetch(slice(None), slice(None))
    return image.raw


def blocks(path: Path) -> Blocks:
    """Return the image to be read in parts, of which nothing is read before it is needed."""
    found = _layout(path)
    raw = Raw(
        wavenumbers=found.wavenumbers,
        shape=(found.rows, found.columns, len(found.wavenumbers)),
        meta={"pixel_um": round(abs(found.step[0]), 4)},
        units=found.units,
    )
    return Blocks(raw, partial(found.spectra, path))


def _layout(path: Path) -> _Layout:
    with existing(path).open("rb") as file:
        if file.read(_START)[:4] != b"PEPE":
            raise BadInput(f"{path}: not a PerkinElmer file (it does not begin with PEPE). Rename it if it is another.")
        grid: dict[str, Any] = {}
        while (block := _block(file, path))[0] != _SPECTRUM:
            if block[0] == _GRID:
                grid = _grid(file.read(block[1]), path, path.stat().st_size // 4)
            else:
                file.seek(block[1], 1)
        first = file.tell() - 6
    if not grid:
        raise BadInput(f"{path}: no block {_GRID}, which says how many pixels there are. Export the image again.")
    count, points = grid["columns"] * grid["rows"], len(grid["wavenumbers"])
    entry = np.dtype([("number", "<u2"), ("size", "<i4"), ("values", "<f4", (points,))])
    there = path.stat().st_size - first
    if block[1] != 4 * points or there < count * entry.itemsize:
        raise BadInput(
            f"{path}: {there} bytes of spectra, but {shape_text((grid['rows'], grid['columns'], points))} values take "
            f"{count * entry.itemsize}. It was cut short, or its header is damaged. Copy it again."
        )
    pixels = np.memmap(path, entry, "r", first, (grid["rows"], grid["columns"]))
    return _Layout(pixels=pixels[::-1] if grid["step"][1] > 0 else pixels, **grid)


def _block(file: BinaryIO, path: Path) -> tuple[int, int]:
    head = file.read(6)
    if len(head) < 6:
        raise BadInput(f"{path}: no spectra in it: it was cut short, or is no image. Copy or export it again.")
    number, size = struct.unpack("<Hi", head)
    if size < 0:
        raise BadInput(f"{path}: block {number} has a length of {size}: it is damaged. Copy it again.")
    return number, size


def _grid(content: bytes, path: Path, most: int) -> dict[str, Any]:
    """Return the fields of `_Layout` that block 5100 gives; the file has room for `most` values."""
    try:
        (length,) = struct.unpack_from("<h", content)
        across, up, spacing, start, *_, columns, rows, points = struct.unpack_from("<10d3i", content, 2 + length)
        place, texts = 2 + length + 92, []
        while place + 2 <= len(content):
            (size,) = struct.unpack_from("<h", content, place)
            texts.append(content[place + 2 : place + 2 + size].decode("latin1").strip())
            place += 2 + max(size, 0)
    except struct.error as error:
        raise BadInput(f"{path}: block {_GRID} is too short: it is damaged. Copy it again.") from error
    if min(columns, rows, points) < 1 or points > most or not np.isfinite([across, up, spacing, start]).all():
        raise BadInput(
            f"{path}: an image of {shape_text((rows, columns, points))} values: it is damaged. Copy it again."
        )
    axis, unit = texts[2:4] if len(texts) >= 4 else ("", "")
    if axis.lower().replace("⁻¹", "-1") != "cm-1":
        raise BadInput(f"{path}: its axis is in '{axis}'; cm-1 is needed. Export it over wavenumbers.")
    if unit.lower() not in _UNITS:
        raise BadInput(f"{path}: its values are '{unit}'; A, T or %T are read. Convert it to absorbance.")
    wavenumbers = start + spacing * np.arange(points)
    grid = {"rows": rows, "columns": columns, "wavenumbers": wavenumbers}
    return grid | {"step": (across, up), "units": _UNITS[unit.lower()]}
