"""Agilent (Resolutions Pro) images, read by the package `agilent-format`.

A tile is a .dat file with a .bsp. A mosaic is a .dmt file with a .dmd for each tile (and a .dms, which shows it whole).

Rows run from top to bottom, as in the microscope's pictures, whichever file of an image is named. The instrument writes
the bottom row first, so that its .hdr, read like any ENVI header, would be upside down: envi.py recognises it if it
comes alone. Missing tiles of a mosaic were not measured.
"""

from __future__ import annotations

import contextlib
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, size_text

from runner_ssmunet.readers.base import Array, Raw, existing, library, short
from runner_ssmunet.readers.blocks import Blocks
from runner_ssmunet.readers.sizes import refuse_size

_COUNT = 2228 + 8
"""Offset (bytes) of the number of wavenumbers (int32) in a header; the number of the first lies 8 bytes before it."""
_STEP = 2216
"""Offset of the distance between wavenumbers (float64)."""
_OFFSET = 1020
"""Bytes before the values of a tile."""
_SPARSE = 100
"""Most places of a mosaic for each of its tiles. With more of them, the name of a tile is wrong."""


def is_core(path: Path) -> bool:
    """Return whether a file is a mosaic's .dmt, or the .dat of a tile that has a .bsp; backgrounds are no cores."""
    suffix = path.suffix.lower()
    if path.stem.lower().startswith("background"):
        return False
    return suffix == ".dmt" or (suffix == ".dat" and _sibling(path, ".bsp") is not None)


def owns(path: Path) -> bool:
    """Return whether a .dat or .hdr file belongs to an Agilent image, rather than to an ENVI one."""
    return _sibling(path, ".bsp") is not None or _sibling(path, ".dmt") is not None


def parts(path: Path) -> list[Path]:
    """Return the header file, then the files of spectra. Raises BadInput if one is no regular file, such as a pipe."""
    header = existing(_header(path))
    if header.suffix.lower() == ".bsp":
        return [header, existing(_tile(header))]
    tiles = _tiles(header)
    if not tiles:
        raise BadInput(f"{header}: no tile {header.stem}_0000_0000.dmd beside it.")
    return [header, *map(existing, tiles)]


def meta(path: Path) -> dict[str, Json]:
    """Return no ids: Agilent files have none."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core, with `pixel_um` in its meta. The library always reads the spectra too."""
    header, *files = parts(path)
    _refuse_sizes(header, files)
    library_ = library("agilent_format", path)
    kind = library_.agilentImage if header.suffix.lower() == ".bsp" else library_.agilentMosaic
    try:
        with np.errstate(all="ignore"):
            image: Any = kind(str(files[0] if header.suffix.lower() == ".bsp" else header), MAT=True)
    except Exception as error:  # a broken byte can make the parser raise anything
        raise BadInput(f"{header}: not a readable Agilent image ({short(error)}). Copy its files again.") from error
    raw = Raw(wavenumbers=np.asarray(image.wavenumbers, np.float64), shape=image.data.shape)
    raw.meta |= _pixel(image.info)
    if spectra:
        raw.spectra = image.data
    return raw


def blocks(path: Path) -> Blocks:
    """Return the image to be read in parts: its tiles are mapped, and only those that a part touches are read."""
    header, *files = parts(path)
    _refuse_sizes(header, files, memory=False)
    with header.open("rb") as file:
        start = file.read(_COUNT + 4)
    (step,), (first, _, count) = struct.unpack_from("<d", start, _STEP), struct.unpack_from("<3i", start, _COUNT - 8)
    tiles = {_place(own) if header.suffix.lower() == ".dmt" else (0, 0): own for own in files}
    side = math.isqrt(max(0, max(own.stat().st_size for own in files) - _OFFSET) // (4 * count))
    for own in files:
        if not side or own.stat().st_size != _OFFSET + 4 * count * side**2:
            raise BadInput(
                f"{header}: not a readable Agilent image ({own.name} has {own.stat().st_size} bytes: no square tile of "
                f"{count} wavenumbers, or of another size than the others). Copy its files again."
            )
    rows, columns = (1 + max(place[axis] for place in tiles) for axis in (1, 0))
    raw = Raw(wavenumbers=step * (first + np.arange(count)), shape=(rows * side, columns * side, count))
    raw.meta |= _pixel_size(header)

    def fetch(wanted: slice, across: slice) -> Array:
        top, bottom, _ = wanted.indices(rows * side)
        left, right, _ = across.indices(columns * side)
        out = np.full((bottom - top, right - left, count), np.nan, np.float32)
        for (column, row), file in tiles.items():
            y, x = row * side, column * side
            a, b, c, d = max(top, y), min(bottom, y + side), max(left, x), min(right, x + side)
            if a < b and c < d:
                tile = np.memmap(file, "<f4", "r", _OFFSET, (count, side, side))[:, ::-1]
                out[a - top : b - top, c - left : d - left] = tile[:, a - y : b - y, c - x : d - x].transpose(1, 2, 0)
        return out

    return Blocks(raw, fetch)


def _place(tile: Path) -> tuple[int, int]:
    """Return the column and row of a tile, which its name ends with."""
    column, row = tile.stem.rsplit("_", 2)[-2:]
    if not (column.isdecimal() and row.isdecimal()):
        raise BadInput(
            f"{tile}: the name of a tile ends with its column and row, as in _0000_0001. Rename or remove it."
        )
    return int(column), int(row)


def _pixel_size(header: Path) -> dict[str, Json]:
    """Return `pixel_um` by the library, which reads it without the tiles of a mosaic."""
    library_ = library("agilent_format", header)
    with contextlib.suppress(Exception):  # an image without it is none the worse
        kind = library_.agilentImage if header.suffix.lower() == ".bsp" else library_.agilent.agilentMosaicTiles
        name = header if header.suffix.lower() == ".dmt" else _tile(header)
        return _pixel(kind(str(name)).info)
    return {}


def _pixel(info: Any) -> dict[str, Json]:
    size = info.get("FPA Pixel Size", 0) * info.get("PixelAggregationSize", 1)
    return {"pixel_um": float(size)} if size > 0 else {}


def _header(path: Path) -> Path:
    """Return the .bsp of a tile or the .dmt of a mosaic, whichever of its files is named."""
    existing(path)
    suffix = path.suffix.lower()
    if suffix in (".seq", ".drd"):
        raise BadInput(
            f"{path}: interferograms, not spectra. Compute absorbance in Resolutions Pro: its .dat or .dmt is read."
        )
    if suffix in (".bsp", ".dmt"):
        return path
    name = path.name[: -len("_0000_0000.dmd")] + ".dmd" if suffix == ".dmd" else path.name
    header = _sibling(path, ".bsp") if suffix in (".dat", ".hdr") else None
    header = header or _sibling(path.with_name(name), ".dmt")
    if header is None:
        raise BadInput(f"{path}: no {Path(name).stem}.dmt beside it, which says what the wavenumbers are.")
    return header


def _refuse_sizes(header: Path, files: list[Path], memory: bool = True) -> None:
    """Raise BadInput if the sizes in the header cannot be right.

    The header may not claim more wavenumbers than its files hold, nor all tiles more than the memory, with `memory`.
    The names of the tiles may not claim a mosaic of which almost nothing is there.
    """
    with existing(header).open("rb") as file:
        file.seek(_COUNT)
        field = file.read(4)
    count = struct.unpack("<i", field)[0] if len(field) == 4 else 0
    sizes = [existing(file).stat().st_size for file in files]
    if count < 1 or 4 * count > max(sizes):
        raise BadInput(
            f"{header}: not a readable Agilent image ({count} wavenumbers, in files of {size_text(max(sizes))}). Copy "
            "its files again."
        )
    places = [_place(file) for file in files] if header.suffix.lower() == ".dmt" else [(0, 0)]
    columns, rows = (1 + max(place[axis] for place in places) for axis in (0, 1))
    if columns * rows > _SPARSE * len(files):
        last = max(files, key=lambda file: max(_place(file)))
        raise BadInput(
            f"{header}: {last.name} would make a mosaic of {columns} × {rows} tiles, of which {len(files)} are there. "
            "Remove that tile if it belongs to another image, or copy the tiles that are missing."
        )
    if memory:
        refuse_size(header, "its mosaic", (columns, rows, max(sizes) // 4), columns * rows * max(sizes))


def _tile(header: Path) -> Path:
    data = _sibling(header, ".dat")
    if data is None:
        raise BadInput(f"{header}: no {header.stem}.dat beside it, which holds the spectra.")
    return data


def _tiles(header: Path) -> list[Path]:
    start = f"{header.stem}_".lower()
    return sorted(p for p in header.parent.iterdir() if p.suffix.lower() == ".dmd" and p.name.lower().startswith(start))


def _sibling(path: Path, suffix: str) -> Path | None:
    """Return the file beside `path` with its stem and that suffix, in any case (the instrument writes .dmt lower)."""
    wanted = f"{path.stem}{suffix}".lower()
    return next((p for p in path.parent.iterdir() if p.name.lower() == wanted), None)
