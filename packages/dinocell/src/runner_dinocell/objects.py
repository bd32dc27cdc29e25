"""The places of single cells: tables of centres, and label images.

plate, well, site, y, x                      one row per cell, in pixels; source, batch and cell (its number) too
Metadata_Plate, Metadata_Well, Metadata_Site,
Location_Center_X, Location_Center_Y         CellProfiler's tables of objects (Nuclei.csv), with ObjectNumber; also with
                                             AreaShape_Center_X, and names that begin with the object's (Nuclei_…)
NAME_cp_masks.tif or .png, NAME_masks.tif    a label image beside NAME, one channel's image, as cellpose writes it
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from runner_core import Array, BadInput, Location, shape_text

from runner_dinocell import manifest, tiff
from runner_dinocell.manifest import Table
from runner_dinocell.names import FieldName

MASK = "cell masks"
"""Name of a label image among the files of a field."""
_MASKS = ("_cp_masks.tif", "_cp_masks.tiff", "_cp_masks.png", "_masks.tif", "_masks.tiff", "_masks.png")
_PLAIN = ("plate", "well", "site")
_CENTRES = ("Location_Center", "AreaShape_Center")
_NUMBERS = ("ObjectNumber", "Number_Object_Number")


def is_mask(path: str) -> bool:
    """Return whether a file's name is that of a label image.

    >>> is_mask("a_Ch1_cp_masks.tif"), is_mask("a_Ch1.tif")
    (True, False)
    """
    return path.lower().endswith(_MASKS)


def beside(images: Mapping[str, Location]) -> Path | None:
    """Return the label image of one of a field's images, None if there is none; BadInput if there are two."""
    found: list[Path] = []
    for image in images.values():
        if not isinstance(image, Path):
            raise BadInput(f"{image}: data.cells masks reads label images in folders only; give a table of centres.")
        stem = re.sub(r"\.tiff?$", "", image.name, flags=re.IGNORECASE)
        found += [place for end in _MASKS if (place := image.with_name(stem + end)).exists()]
    if len(found) > 1:
        raise BadInput(f"{found[0]} and {found[1]}: two label images of one field. Keep one of them.")
    return found[0] if found else None


def of_table(table: Table) -> Mapping[FieldName, Array]:
    """Return the cells of each field: (n, 3) float32, number, y and x.

    Raises BadInput for a table without the columns of either kind, and for values that are no numbers.
    """
    if manifest.LOAD_DATA[0] in table:
        fields = manifest.names_of(table, "Metadata_Source", "Metadata_Batch", *manifest.LOAD_DATA)
        x, y = _centres(table)
    else:
        if missing := [name for name in (*_PLAIN, "y", "x") if name not in table]:
            raise BadInput(
                f"{table.where}: no column '{missing[0]}'{table.near(missing[0])} {table.there()} Centres of cells "
                f"have {', '.join(_PLAIN)}, y and x, in pixels, or are a table of CellProfiler's objects with "
                "Metadata_Plate, Metadata_Well, Metadata_Site and Location_Center_X and _Y."
            )
        fields = manifest.names_of(table, "source", "batch", *_PLAIN)
        x, y = "x", "y"
    numbered = next((n for n in table.names if n == "cell" or n.endswith(_NUMBERS)), None)
    values = np.stack([_numbers(table, name) for name in (y, x)], 1)
    number = None if numbered is None else _numbers(table, numbered)
    rows: defaultdict[FieldName, list[int]] = defaultdict(list)
    for row, field in enumerate(fields):
        rows[field].append(row)
    return {
        field: np.column_stack([np.arange(1, len(own) + 1) if number is None else number[own], values[own]]).astype(
            np.float32
        )
        for field, own in rows.items()
    }


def _centres(table: Table) -> tuple[str, str]:
    """Return the columns of x and y in a table of CellProfiler's."""
    for end in _CENTRES:
        for name in table.names:
            if name.endswith(f"{end}_X") and (other := name[:-1] + "Y") in table:
                return name, other
    raise BadInput(
        f"{table.where}: no column Location_Center_X with Location_Center_Y, nor AreaShape_Center_X. {table.there()} "
        "Give CellProfiler's table of objects (Nuclei.csv or Cells.csv), not of images."
    )


def _numbers(table: Table, name: str) -> Array:
    texts = table.filled(name)
    try:
        values = np.array(texts, np.float64)
    except ValueError:
        values = np.full(len(texts), np.nan)
        for row, text in enumerate(texts):
            try:
                values[row] = float(text)
            except ValueError:
                raise BadInput(f"{table.where}: {table.line(row)}: {name} is {text!r}, no number. Mend it.") from None
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise BadInput(f"{table.where}: {table.line(row)}: {name} is {texts[row]}. Leave such cells out.")
    return values


def of_labels(path: Path, shape: Sequence[int]) -> Array:
    """Return the cells (n, 3) float32, number, y and x, of a label image of this shape: the centres of mass.

    Raises BadInput for a file that cannot be read, and for another shape.
    """
    labels = tiff.read_labels(path)
    if labels.shape != tuple(shape):
        raise BadInput(
            f"{path}: labels of {shape_text(labels.shape)} pixels, the field has {shape_text(shape)}. Segment the "
            "images as they are, not resized."
        )
    places = np.flatnonzero(labels)
    numbers, own = np.unique(labels.flat[places], return_inverse=True)
    counts = np.maximum(np.bincount(own, minlength=len(numbers)), 1)
    y, x = np.unravel_index(places, labels.shape)
    centres = [np.bincount(own, weights=line, minlength=len(numbers)) / counts for line in (y, x)]
    return np.column_stack([numbers, *centres]).astype(np.float32)


def stored(cells: Array, shape: Sequence[int], most: int, key: str) -> Array:
    """Return cells (n, 3) as the `most` rows that are kept of a field of this shape: int32, −1 where there is none.

    Of more cells, some are left out evenly, by their places. Raises BadInput for a centre outside of the field.
    """
    centres = cells[:, 1:].round()
    outside = ((centres < 0) | (centres > shape)).any(1)
    if outside.any():
        y, x = cells[int(np.argmax(outside)), 1:].tolist()
        raise BadInput(
            f"{key}: a cell at y {y:g}, x {x:g}, outside of its field of {shape_text(shape)} pixels. Centres are given "
            "in pixels of the images as they are, not in µm."
        )
    out = np.full((most, 3), -1, np.int32)
    order = np.lexsort((centres[:, 1], centres[:, 0]))
    kept = order[np.linspace(0, len(cells) - 1, min(most, len(cells))).round().astype(int)] if len(cells) else order
    out[: len(kept), 0] = cells[kept, 0]
    out[: len(kept), 1:] = np.minimum(centres[kept], np.asarray(shape) - 1)
    return out


def known(stored: Array) -> Array:
    """Return the rows of `stored` that are cells."""
    return stored[stored[:, 1] >= 0]
