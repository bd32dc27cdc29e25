"""Predict the dose of patients with the exported network: python predict.py PATIENT… --out DIR.

A patient is a folder in the OpenKBP challenge's format: ct.csv, possible_dose_mask.csv, and a CSV for each region that
the patient has (PTV70.csv, SpinalCord.csv, …). DICOM files, tables of files and other outputs than CSV need runner.

Writes FOLDER.csv for each, the dose in Gy in the challenge's format: what `runner openkbp predict` writes, but for the
runtime's rounding. Needs NumPy and the network's runtime; whole.py and session.py lie beside this file. The numbers are
in predict.json.

For research only: no prediction may be used to treat a patient.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import session
import whole

Array = np.ndarray[Any, np.dtype[Any]]
Infer = Callable[[dict[str, Array]], dict[str, Array]]
Settings = dict[str, Any]

_VOXELS = whole.SIDE**3
_BEHIND = 0.01
"""Largest share of the possible-dose mask after the last voxel of ct.csv: more, and the file was cut off."""


def predict(ct: Array, masks: Array, infer: Infer, settings: Settings) -> Array:
    """Return the dose (128, 128, 128) float32 in Gy of a CT (int16) and mask bits (uint16)."""
    rows = whole.rows(ct, masks, settings["size"])
    dose = whole.predict(rows, infer, settings["unit"])
    if settings["mirrored"]:
        turned = whole.mirrored({name: array[None] for name, array in rows.items()})
        seen = {name: np.ascontiguousarray(array[0]) for name, array in turned.items()}
        dose = (dose + whole.predict(seen, infer, settings["unit"])[:, ::-1]) / np.float32(2)
    return whole.inside(masks, dose)


def read(folder: Path) -> tuple[Array, Array]:
    """Return CT (int16) and mask bits (uint16), each (128, 128, 128). Raises ValueError for what is no patient."""
    masks = np.zeros(_VOXELS, np.uint16)
    for name in whole.MASKS:
        path = folder / f"{name}.csv"
        if path.exists() or name == whole.POSSIBLE:
            masks[_lines(path, 1)[0]] |= np.uint16(1 << whole.bit(name))
    masks = masks.reshape(whole.GRID)
    possible = whole.unpack(masks, whole.POSSIBLE)
    if not possible.any():
        raise ValueError(f"{whole.POSSIBLE}.csv: the mask is empty")
    path = folder / "ct.csv"
    index, values = _lines(path, 2)
    low, high = np.iinfo(np.int16).min, np.iinfo(np.int16).max
    if not index.size or not np.isfinite(values).all() or values.min() < low or values.max() > high:
        raise ValueError(f"{path.name}: it holds no CT numbers, which are from {low} to {high}")
    flat = possible.reshape(-1)
    if np.count_nonzero(flat[int(index.max()) + 1 :]) > _BEHIND * np.count_nonzero(flat):
        raise ValueError(f"{path.name}: it ends well before the possible-dose mask, as if it were cut off")
    ct = np.zeros(_VOXELS, np.int16)
    ct[index] = np.rint(values)
    return ct.reshape(whole.GRID), masks


def _lines(path: Path, columns: int) -> tuple[Array, Array]:
    """Return indices (int64) and, of two columns, values (float64) of a file of the challenge's."""
    header, _, body = path.read_bytes().partition(b"\n")
    if header.count(b",") != 1 or header.split(b",")[0].strip().lstrip(b"-").isdigit():
        raise ValueError(f"{path.name}: its first line is not the header ',data'")
    if body and not body.endswith((b"\n", b"\r")):
        raise ValueError(f"{path.name}: its last line is cut off")
    fields = body.replace(b",", b" ").split()
    lines = body.count(b",")
    if len(fields) != lines * columns:
        raise ValueError(f"{path.name}: {len(fields)} fields in {lines} lines: {columns} in each are needed")
    try:
        table = np.array(fields, np.float64).reshape(lines, columns)
    except ValueError as error:
        raise ValueError(f"{path.name}: a field is no number ({error})") from error
    index = table[:, 0].astype(np.int64)
    if (index != table[:, 0]).any() or (lines and not 0 <= index.min() <= index.max() < _VOXELS):
        raise ValueError(f"{path.name}: an index is none of the grid's (0 … {_VOXELS - 1})")
    if np.unique(index).size < lines:
        raise ValueError(f"{path.name}: an index is there twice")
    return index, table[:, -1]


def write(path: Path, dose: Array) -> None:
    """Write a dose (128, 128, 128) in Gy in the challenge's format: its voxels that are not 0."""
    flat = dose.reshape(-1)
    index = np.flatnonzero(flat)
    values = flat[index].astype(str).tolist()
    lines = "".join(f"{place},{value}\n" for place, value in zip(index.tolist(), values, strict=True))
    path.write_text(f",data\n{lines}", newline="")


def main() -> int:
    """Predict the patients that the command line names."""

    def found(path: Path, infer: Infer, settings: Settings) -> Array:
        dose = predict(*read(path), infer, settings)
        if not np.isfinite(dose).all():
            raise ValueError("the dose is NaN or infinite in places")
        return dose

    def written(path: Path, dose: Array) -> str:
        write(path, dose)
        return f"up to {dose.max():.1f} Gy"

    script = session.Script(__doc__, "patient", "doses", files="folder of CSV files")
    return script.run(script.parser.parse_args(), lambda path: f"{path.resolve().name}.csv", found, written)


if __name__ == "__main__":
    sys.exit(main())
