"""Regions of ImageJ and Fiji: a .roi file, or the zip that the ROI Manager saves. A region is named by its class."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, first_few, refuse_special_file

from runner_ssmunet.drawings.colours import Colour
from runner_ssmunet.drawings.shapes import FAR, Array, Drawn, Shape, left_out

_LONGEST = 200_000_000
_CORNERS = 2048
"""Corners of an oval: a radius of 1,000 pixels is right to 0.002 pixels."""
_UNNAMED = re.compile(r"\d{1,6}(-\d{1,6}){1,3}")
"""What ImageJ calls a region that nobody named: by its place, 0123-0456."""
_NUMBERED = re.compile(r"[-_ .]\d+$")
_RECT, _OVAL, _AREAS = 1, 2, (0, 1, 2, 7, 8)
"""Types of regions: rectangle, oval, and all that have an area (polygon, freehand, traced)."""
_DAMAGED = (
    OSError, ValueError, TypeError, IndexError, KeyError, AssertionError, RuntimeError, OverflowError, MemoryError,
    struct.error, zipfile.BadZipFile, zlib.error, EOFError,
)  # fmt: skip


def read(path: Path) -> Drawn:
    """Return the regions of a file. A class is a region's name without a number at its end: tumour-2 is tumour.

    Raises BadInput naming the file and the region.
    """
    shapes: list[Shape] = []
    others: Counter[str] = Counter()
    unnamed: list[str] = []
    for file, content in _contents(path):
        roi = _decoded(content, path, file)
        called = (roi.name or file.removesuffix(".roi")).strip()
        name = _NUMBERED.sub("", called).strip()
        if int(roi.roitype) not in _AREAS:
            others["without an area"] += 1
        elif _UNNAMED.fullmatch(called) or not name:
            unnamed.append(called or "one without a name")
        elif name.endswith("*"):
            others[f"of {name}"] += 1
        else:
            shapes.append(Shape(name, _polygons(roi, path, called), _colour(roi)))
    if unnamed:
        raise BadInput(
            f"{path}: {first_few(unnamed)}: ImageJ's own names, which say no class. Rename each region to its class "
            "(ROI Manager, Rename…), with a number where there are several: tumour-1, tumour-2."
        )
    if not shapes:
        raise BadInput(f"{path}: it has no region with an area. Save the regions again from the ROI Manager.")
    return Drawn(shapes, left_out(others, path))


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each region."""
    try:
        if path.suffix.lower() == ".roi":
            _limited(refuse_special_file(path).stat().st_size, path)
            yield path.name, path.read_bytes()
            return
        with zipfile.ZipFile(refuse_special_file(path)) as archive:
            _limited(sum(member.file_size for member in archive.infolist()), path)
            for member in archive.infolist():
                if member.filename.lower().endswith(".roi"):
                    yield member.filename.rpartition("/")[2], archive.read(member)
    except _DAMAGED as error:
        raise BadInput(f"{path}: not a readable file of regions ({error}). Save it again from ImageJ.") from error


def _limited(size: int, path: Path) -> None:
    if size > _LONGEST:
        raise BadInput(f"{path}: its regions take {size:,} bytes; {_LONGEST:,} is the most.")


def _decoded(content: bytes, path: Path, file: str) -> Any:
    try:
        library = import_module("roifile")
    except ImportError as error:
        raise BadInput(
            f"{path}: reading this format needs the package roifile: `uv pip install roifile` adds it"
        ) from error
    try:
        return library.ImagejRoi.frombytes(content)
    except _DAMAGED as error:
        raise BadInput(f"{path}: region {file} is damaged ({error}). Save it again from ImageJ.") from error


def _polygons(roi: Any, path: Path, called: str) -> list[list[Array]]:
    """Return the rings of a region. Those of a composite one are one polygon: rings within rings are holes."""
    try:
        if int(roi.roitype) in (_RECT, _OVAL) and not roi.composite:
            rings = [_boxed(roi)]
        else:
            rings = [np.asarray(ring, np.float64) for ring in roi.coordinates(multi=True)]
    except NotImplementedError as error:
        raise BadInput(
            f"{path}: region {called} has curves, which are not read: turn it into a polygon (Edit, Selection, "
            "Interpolate)."
        ) from error
    except _DAMAGED as error:
        raise BadInput(f"{path}: region {called} is damaged ({error}). Save it again from ImageJ.") from error
    rings = [ring for ring in rings if len(ring)]
    if not rings or not all((np.abs(ring) < FAR).all() for ring in rings):
        raise BadInput(f"{path}: region {called} has no usable outline. Draw it again.")
    return [rings]


def _boxed(roi: Any) -> Array:
    """Return the outline of a rectangle or an oval."""
    left, top, width, height = roi.left, roi.top, roi.right - roi.left, roi.bottom - roi.top
    if roi.subpixelrect:
        left, top, width, height = roi.xd, roi.yd, roi.widthd, roi.heightd
    if int(roi.roitype) == _RECT:
        unit = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    else:
        angles = np.arange(_CORNERS) * (2 * np.pi / _CORNERS)
        unit = 0.5 + 0.5 * np.stack([np.cos(angles), np.sin(angles)], 1)
    return np.array([left, top]) + unit * np.array([width, height])


def _colour(roi: Any) -> Colour | None:
    """Return a region's fill or stroke colour, if it has one."""
    text = roi.hexcolor(roi.fill_color) or roi.hexcolor(roi.stroke_color)
    return None if text is None else (int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))
