"""The command `runner ssmunet dearray`: cut the mosaic of a tissue microarray into one file for each core."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from runner_core import (
    BadInput,
    counted,
    did_you_mean,
    first_few,
    read_table,
    refuse_full_folder,
    replace_csv,
    shape_text,
    whole_folder,
)

from runner_ssmunet import readers, tma
from runner_ssmunet.bands import amide1_weights
from runner_ssmunet.classes import FILE as CLASSES
from runner_ssmunet.readers.blocks import Blocks, row_blocks
from runner_ssmunet.readers.sidecars import stem

Array = np.ndarray[Any, np.dtype[Any]]

TABLE, PICTURE = "cores.csv", "cores.png"
COLUMNS = ("core", "row", "column", "patient", "keep", "y", "x", "tissue")
_EXAMPLE = f"A table of cores has the columns {','.join(COLUMNS)}, of which core, or row and column, must be there."
_WIDEST = 1600
"""Longest side of the picture."""
_YES = {"yes": True, "y": True, "true": True, "1": True, "no": False, "n": False, "false": False, "0": False}
_SPARE = 0.62
"""Half the side of a core's square, in diameters, but at most half the distance to the next core."""


@dataclass(frozen=True)
class Place:
    """A core to cut: its name, place on the grid, patient ("" if unknown), whether it is kept, and its middle."""

    core: str
    row: str
    column: int
    patient: str
    keep: bool
    y: float
    x: float
    tissue: float


def dearray(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Cut the mosaic of a tissue microarray into cores, which it finds and names after rows and columns."""
    parser.add_argument(
        "mosaic", type=Path, metavar="MOSAIC", help="any file that ssmunet reads; .dmt and .hdr in parts"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for core_NAME.npz")
    parser.add_argument(
        "--table", type=Path, metavar="CSV", help=f"{TABLE} of an earlier run, corrected: name, patient, keep, y and x"
    )
    parser.add_argument("--preview", action="store_true", help=f"write {TABLE} and {PICTURE} only, no cores")
    parser.add_argument("--diameter", type=float, metavar="PIXELS", help="diameter of a core; found by default")
    parser.add_argument(
        "--units",
        choices=("absorbance", "transmittance", "percent"),
        help="units of the spectra; by default the file's",
    )
    options = parser.parse_args(words)
    if options.diameter is not None and not options.diameter >= 4:
        raise BadInput(f"--diameter is {options.diameter:g}; a core has 4 pixels or more")
    out = options.out
    refuse_full_folder(out, "name another with --out")
    image = readers.open_blocks(options.mosaic)
    if options.diameter is not None and options.diameter > max(image.shape[:2]):
        raise BadInput(f"--diameter is {options.diameter:g}, and the mosaic has {shape_text(image.shape[:2])} pixels")
    area, measured = tissue_map(image, options.units)
    try:
        grid = tma.find(tma.tissue_of(area, measured), options.diameter)
    except BadInput as error:
        remedy = "Is it a tissue microarray? --diameter says how wide a core is."
        raise BadInput(f"{options.mosaic}: {error}. {remedy}") from error
    places = found(grid)
    if options.table is not None:
        places = corrected(places, options.table, image.shape)
    _print(grid, places)
    side = _half(grid)
    try:
        with whole_folder(out) as folder:
            if not options.preview:
                _cut(image, places, side, options.mosaic, folder, options.units)
            _write_table(places, folder / TABLE)
            _draw(area, places, side, folder / PICTURE)
    except OSError as error:
        raise BadInput(f"{out}: cannot be written: {error.strerror or error}") from error
    print(f"{out / PICTURE} shows them; correct {out / TABLE} and give it as --table into a new --out")
    return 0


def tissue_map(image: Blocks, units: Any = None) -> tuple[Array, Array]:
    """Return the area of amide I (H, W) float32, or the mean absorbance without that band; and the measured pixels."""
    axis = np.sort(np.asarray(image.raw.wavenumbers, np.float64).ravel())
    weights = amide1_weights(axis)
    weights = np.full(len(axis), 1 / len(axis)) if weights is None else weights
    area = np.zeros(image.shape[:2], np.float32)
    measured = np.zeros(image.shape[:2], bool)
    for rows in row_blocks(image.shape):
        values = image.read(rows, slice(0, image.shape[1]), units) @ weights.astype(np.float32)
        measured[rows] = np.isfinite(values)
        area[rows] = np.where(measured[rows], values, 0)
    return area, measured


def found(grid: tma.Grid) -> list[Place]:
    """Return the places of a grid; those without a core are not kept."""
    return [
        Place(s.name, tma.row_name(s.row), s.column + 1, "", s.found, round(s.y, 1), round(s.x, 1), round(s.tissue, 3))
        for s in grid.spots.values()
    ]


def corrected(places: Sequence[Place], path: Path, shape: Sequence[int]) -> list[Place]:
    """Return the places as the user's table has them; what it leaves out stays as it was found.

    A line is for a row and a column, or for a core's name without them. Raises BadInput naming the line.
    """
    result = {(place.row, place.column): place for place in places}
    names = {place.core: (place.row, place.column) for place in places}
    seen: dict[tuple[str, int], int] = {}
    table = read_table(path, _EXAMPLE)
    if unknown := [name for name in table.columns if name not in COLUMNS]:
        raise BadInput(f"{path}: no column is called '{unknown[0]}'{did_you_mean(unknown[0], COLUMNS)}. {_EXAMPLE}")
    for number, values in zip(table.lines, table.rows, strict=True):
        line = dict(zip(table.columns, values, strict=True))
        where = f"{path}: line {number}"
        key = _key(line, names, where)
        if key not in result:
            most = max(column for _, column in result)
            rows = list(dict.fromkeys(row for row, _ in result))
            raise BadInput(f"{where}: there is no {key[0]}{key[1]}: rows {rows[0]} to {rows[-1]}, columns 1 to {most}.")
        if key in seen:
            raise BadInput(f"{where}: {key[0]}{key[1]} is also in line {seen[key]}. Remove one.")
        seen[key] = number
        result[key] = _changed(result[key], line, shape, where)
    kept = [place.core for place in result.values() if place.keep]
    if twice := [name for name in dict.fromkeys(kept) if kept.count(name) > 1]:
        raise BadInput(f"{path}: two cores are called {twice[0]}. Give each its own name.")
    if wrong := [name for name in kept if not name or name != Path(name).name or name.startswith(".")]:
        raise BadInput(f"{path}: a core cannot be called '{wrong[0]}', as its file will be core_NAME.npz.")
    return list(result.values())


def _key(line: Mapping[str, str], names: Mapping[str, tuple[str, int]], where: str) -> tuple[str, int]:
    row, column, core = (line.get(name, "") for name in ("row", "column", "core"))
    if not row and not column:
        if core not in names:
            raise BadInput(f"{where}: no core was found that is called '{core}'{did_you_mean(core, names)}.")
        return names[core]
    if not column.isdecimal():
        raise BadInput(f"{where}: column is '{column}'; a number from 1 is needed, beside the letter of the row.")
    return row.upper(), int(column)


def _changed(place: Place, line: Mapping[str, str], shape: Sequence[int], where: str) -> Place:
    keep = line.get("keep", "").lower()
    if keep and keep not in _YES:
        raise BadInput(f"{where}: keep is '{line['keep']}'; yes or no is needed.")
    middle: list[float] = []
    for name, most, now in (("y", shape[0], place.y), ("x", shape[1], place.x)):
        try:
            value = float(line.get(name) or now)
        except ValueError as error:
            raise BadInput(f"{where}: {name} is '{line[name]}'; a number of pixels is needed.") from error
        if not -0.5 <= value <= most - 0.5:
            raise BadInput(f"{where}: {name} is {value:g}, outside of the mosaic's {most} pixels.")
        middle.append(value)
    return Place(
        line.get("core") or place.core,
        place.row,
        place.column,
        line.get("patient") or place.patient,
        _YES[keep] if keep else place.keep,
        middle[0],
        middle[1],
        place.tissue,
    )


def _half(grid: tma.Grid) -> float:
    return max(0.5 * grid.diameter, min(_SPARE * grid.diameter, 0.5 * min(grid.pitch)))


def _box(place: Place, half: float, shape: Sequence[int]) -> tuple[slice, slice]:
    rows, columns = (
        slice(max(0, round(at - half)), min(most, round(at + half) + 1))
        for at, most in ((place.y, shape[0]), (place.x, shape[1]))
    )
    return rows, columns


def _cut(image: Blocks, places: Sequence[Place], half: float, mosaic: Path, out: Path, units: Any) -> None:
    kept = [place for place in places if place.keep]
    if names := image.raw.label_names:  # each core has them too: another mosaic may number its classes otherwise
        replace_csv(out / CLASSES, [("label", "name"), *enumerate(names, 1)])
    for level, remark in image.raw.label_remarks:
        print(f"{level}: {remark}")
    axis = np.sort(np.asarray(image.raw.wavenumbers, np.float64).ravel())
    spoken = time.monotonic()
    for n, place in enumerate(kept):
        rows, columns = _box(place, half, image.shape)
        arrays: dict[str, Any] = {"X": image.read(rows, columns, units), "wn": axis}
        for name, own in (("y", image.raw.labels), ("tissue_mask", image.raw.tissue)):
            if own is not None:
                arrays[name] = np.asarray(own)[rows, columns]
        if image.raw.label_names:
            arrays["label_names"] = np.array(image.raw.label_names)
        meta = {**image.raw.meta, "slide_id": image.raw.meta.get("slide_id", stem(mosaic)), "core_id": place.core}
        meta |= {"row": place.row, "column": place.column, "top": rows.start, "left": columns.start}
        if place.patient:
            meta["patient_id"] = place.patient
        np.savez(out / f"core_{place.core}.npz", meta=np.array(json.dumps(meta)), **arrays)
        if time.monotonic() - spoken > 10:
            spoken = time.monotonic()
            print(f"{n + 1} of {len(kept)} cores", flush=True)


def _print(grid: tma.Grid, places: Sequence[Place]) -> None:
    rows, columns = (1 + max(key[axis] for key in grid.spots) for axis in (0, 1))
    kept = [place for place in places if place.keep]
    empty = [place.core for place in places if not place.keep]
    print(
        f"{counted(len(kept), 'core')} in {counted(rows, 'row')} and {counted(columns, 'column')}, "
        f"{grid.diameter:.0f} pixels wide, turned by {abs(grid.angle):.1f}° {'anti' if grid.angle < 0 else ''}clockwise"
        + (f"; left out: {first_few(empty)}" if empty else "")
    )
    if nameless := [place.core for place in kept if not place.patient]:
        print(
            f"{counted(len(nameless), 'core')} without a patient, which training needs: fill the column patient, and "
            "give the table as --table; or set data.group_by to slide or core"
        )


def _write_table(places: Sequence[Place], path: Path) -> None:
    rows = [[p.core, p.row, p.column, p.patient, "yes" if p.keep else "no", p.y, p.x, p.tissue] for p in places]
    replace_csv(path, [COLUMNS, *rows])


def _draw(area: Array, places: Sequence[Place], half: float, path: Path) -> None:
    """Draw the map with a square for each core: green if it is kept, red if not."""
    factor = max(1, -(-max(area.shape) // _WIDEST))
    small = tma.binned(area, factor)
    low, high = np.percentile(small, (1, 99.5))
    grey = (255 * ((small - low) / max(high - low, 1e-9)).clip(0, 1)).astype(np.uint8)
    picture = Image.fromarray(grey).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for place in places:
        colour = (60, 220, 90) if place.keep else (235, 70, 60)
        rows, columns = _box(place, half, area.shape)
        box = [n / factor for n in (columns.start, rows.start, columns.stop, rows.stop)]
        pen.rectangle(box, outline=colour)
        pen.text((box[0] + 2, box[1] + 1), place.core, fill=colour)
    picture.save(path, "PNG")
