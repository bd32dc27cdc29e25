"""Bruker OPUS files (.0, .1, …), read by the package `brukeropus`: absorbance, one spectrum or a series.

A series has no grid of its own. Rows and columns come from the labels or mask beside the file, or from "shape": [rows,
columns] in the JSON file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json

from runner_ssmunet.readers.base import Raw, existing, library, short
from runner_ssmunet.readers.sidecars import beside, read_map, read_meta, stem

_MAGIC = b"\n\n\xfe\xfe"
_BLOCKS = 10_000
"""Most blocks of a file: real ones have dozens."""


def is_core(path: Path) -> bool:
    """Return whether a file has a numbered suffix and OPUS's first four bytes."""
    if not path.suffix[1:].isdigit() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == _MAGIC


def parts(path: Path) -> list[Path]:
    """Return the files of the core."""
    return [path]


def meta(path: Path) -> dict[str, Json]:
    """Return no ids: an OPUS file describes its sample in free text. The JSON file beside it has the ids."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core. The library always reads the spectra too."""
    series = _absorbance(path)
    values = np.atleast_2d(series.y)
    try:
        wavenumbers = np.asarray(series.wn, np.float64)
    except AttributeError as error:
        raise BadInput(
            f"{path}: its axis is no wavenumber ({short(error)}). Save absorbance over cm⁻¹ in OPUS."
        ) from error
    rows, columns = _grid(path, len(values))
    raw = Raw(wavenumbers=wavenumbers, shape=(rows, columns, values.shape[1]))
    if spectra:
        raw.spectra = values.reshape(rows, columns, -1)
    return raw


def _refuse_cut(path: Path) -> None:
    """Raise BadInput if the file's directory names blocks beyond its end."""
    size = existing(path).stat().st_size
    with path.open("rb") as file:
        header = file.read(24)
        if len(header) < 24 or header[:4] != _MAGIC:
            return  # not an OPUS file: reported elsewhere
        start, _, count = struct.unpack("<3i", header[12:24])
        if start < 24 or not 0 < count <= _BLOCKS:
            raise BadInput(f"{path}: not a readable OPUS file (a directory of {count} blocks). Copy it again.")
        file.seek(start)
        directory = file.read(12 * count)
    for _, words, place in struct.iter_unpack("<3i", directory[: len(directory) // 12 * 12]):
        if place < 0 or words < 0 or place + 4 * words > size:
            raise BadInput(f"{path}: {size} bytes, but a block of it ends at byte {place + 4 * words}. Copy it again.")


def _absorbance(path: Path) -> Any:
    _refuse_cut(path)
    module = library("brukeropus.file", path)
    try:
        file: Any = module.read_opus(str(path))
    except Exception as error:  # a broken byte can make the parser raise anything
        raise BadInput(f"{path}: not a readable OPUS file ({short(error)}). Copy it again.") from error
    if not file:
        raise BadInput(f"{path}: not an OPUS file. Rename it if it is something else.")
    if "a" not in file.all_data_keys:
        there = ", ".join(file.all_data_keys) or "nothing that can be read"
        raise BadInput(f"{path}: no absorbance in it (it holds {there}). Save the absorbance spectra in OPUS.")
    return file.a


def _grid(path: Path, count: int) -> tuple[int, int]:
    """Return the rows and columns of `count` spectra."""
    if count == 1:
        return 1, 1
    files = beside(path)
    shape: Any = read_meta(files["meta"]).get("shape") if "meta" in files else None
    for role in ("labels", "tissue"):
        if shape is None and role in files:
            shape = read_map(files[role]).shape
    if shape is None:
        raise BadInput(
            f"{path}: {count} spectra without a grid. Say it in {stem(path)}.json beside it: "
            '{"shape": [rows, columns]}.'
        )
    if not _is_grid(shape, count):
        raise BadInput(
            f"{path}: {count} spectra do not fill a grid of {shape}. Correct it in {stem(path)}.json, or the labels "
            "beside it."
        )
    return int(shape[0]), int(shape[1])


def _is_grid(shape: Any, count: int) -> bool:
    try:
        rows, columns = (int(n) for n in shape)
    except (TypeError, ValueError):
        return False
    return rows > 0 and columns > 0 and rows * columns == count
