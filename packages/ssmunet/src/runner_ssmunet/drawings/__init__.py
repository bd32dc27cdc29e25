"""Annotations drawn on a picture of a core, as QuPath, ImageJ or colours hold them, and their way to the core's grid.

Image coordinates are those of QuPath and ImageJ: x to the right and y down, from the upper left corner of the upper
left pixel, whose centre is (0.5, 0.5). A pixel of the core belongs to a region if its centre lies inside. A centre on a
left or upper edge does, and one on a right or lower edge does not, so that no pixel is in two adjacent regions, or in
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner_ssmunet.drawings import colours, geojson, rois
from runner_ssmunet.drawings.colours import PICTURES, Colour, table_of
from runner_ssmunet.drawings.landmarks import Placement, Remark
from runner_ssmunet.drawings.shapes import Array, Drawn, painted

__all__ = [
    "PICTURES",
    "SUFFIXES",
    "Annotated",
    "Array",
    "Placement",
    "Remark",
    "class_names",
    "is_coloured_picture",
    "names_classes",
    "read",
    "table_of",
]

SUFFIXES = (".geojson", ".roi.zip", ".roi")
"""What the names of files of regions add to a core's."""


@dataclass(frozen=True)
class Annotated:
    """Annotations on a grid: `labels` (H, W) int64, 0 for none, else 1 + the class's place in `names`."""

    labels: Array
    names: tuple[str, ...]
    remarks: tuple[Remark, ...]


def names_classes(path: Path) -> bool:
    """Return whether a label file names classes (regions, colours) instead of numbering them. Opens pictures."""
    return path.name.lower().endswith(SUFFIXES) or is_coloured_picture(path)


def is_coloured_picture(path: Path) -> bool:
    """Return whether a label file is a picture whose colours a table names."""
    return path.name.lower().endswith(PICTURES) and colours.is_coloured(path)


def class_names(path: Path) -> Mapping[str, Colour | None] | None:
    """Return the classes that a label file names, with their colours; None if it numbers its labels."""
    if not names_classes(path):
        return None
    if path.name.lower().endswith(PICTURES):
        return {name: colour for colour, name in table_of(path).colours.items() if name}
    found: dict[str, Colour | None] = {}
    for shape in _drawn(path).shapes:
        found[shape.name] = found.get(shape.name) or shape.colour
    return found


def read(path: Path, grid: tuple[int, int], placement: Placement | None) -> Annotated:
    """Return the annotations of a file on a core's grid (H, W). Raises BadInput naming the file and the fault.

    Without a `placement` the annotated picture has the core's own pixels.
    """
    if path.name.lower().endswith(PICTURES):
        labels, names, remarks = colours.read(path)
        return Annotated(labels if placement is None else placement.sampled(labels, grid), names, remarks)
    drawn = _drawn(path)
    names = tuple(sorted({shape.name for shape in drawn.shapes}))
    labels, remarks = painted(drawn.shapes, names, grid, placement, path)
    return Annotated(labels.astype(np.int64), names, (*drawn.remarks, *remarks))


def _drawn(path: Path) -> Drawn:
    return geojson.read(path) if path.suffix.lower() == ".geojson" else rois.read(path)
