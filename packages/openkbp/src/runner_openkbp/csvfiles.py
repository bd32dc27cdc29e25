"""The challenge's CSV files: sparse values or masks on the 128³ grid, one file each.

A file has a header line (",data"), then a line for each voxel: its flat index in C order, a comma and its value. The
lines of a mask have nothing after the comma. `voxel_dimensions.csv` holds three numbers (mm), one per line, and no
header.

pyarrow parses the files. If it fails, the lines are read one by one, so that the message can name the faulty line.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from runner_core import BadInput, refuse_long_file

from runner_openkbp.rois import GRID, Array

VOXELS = math.prod(GRID)
HEADER = ",data\n"
VOXEL_MM = (0.001, 1000.0)
"""Smallest and largest side of a voxel that is accepted; `check` warns well before."""
MOST_BYTES, MOST_MASK_BYTES, MOST_TEXT_BYTES = 64 * VOXELS, 16 * VOXELS, 10_000
"""Largest accepted size in bytes of a file of values, of a mask (no values) and of voxel_dimensions.csv. An index, a
comma and a number with all digits of float64 take 33 bytes."""


def read_values(path: Path, dtype: Any = np.float32) -> tuple[Array, Array]:
    """Read the flat indices (int32) and values of a sparse volume, in the file's order.

    Values that `write_values` wrote come back unchanged if `dtype` is theirs (float32 or float64). Raises BadInput,
    with file, line, fault and remedy, if the file is missing, cut off or in another format, if an index lies outside
    the grid or occurs twice, or if a value is NaN or infinite.
    """
    index, values = _read(path, pa.from_numpy_dtype(np.dtype(dtype)))
    if not np.isfinite(values).all():
        count = np.count_nonzero(~np.isfinite(values))
        line = _line_of(path, index[np.argmin(np.isfinite(values))])
        raise BadInput(f"{path}: {count} values are NaN or infinite, the first on line {line}; export the file again")
    return index, values


def read_indices(path: Path) -> Array:
    """Read the flat indices (int32) of a mask, in the file's order.

    Raises BadInput as `read_values` does, and also if a mask has values.
    """
    return _read(path, None)[0]


def read_masks(paths: Sequence[Path]) -> list[Array]:
    """Read the indices of several masks, parsed together.

    A patient has a dozen small files, and every parse waits for a pyarrow thread.
    """
    contents = [_content(path, MOST_MASK_BYTES) for path in paths]
    bodies = [content[_header_end(path, content) :] for path, content in zip(paths, contents, strict=True)]
    try:
        index = _parse(pa.py_buffer(b"".join(bodies)), None)[0]
    except pa.ArrowInvalid:  # reading each file alone shows which one is broken (or all are empty)
        return [read_indices(path) for path in paths]
    lines = [body.count(b",") for body in bodies]  # parsed lines have two columns, empty lines none
    parts = np.split(index, np.cumsum(lines)[:-1])
    for path, content, part in zip(paths, contents, parts, strict=True):
        _check_indices(path, content, part, False)
    return parts


def read_voxels(path: Path) -> Array:
    """Read the size of a voxel (3,) in mm, float64, along the grid's axes, or raise BadInput."""
    fields = _content(path, MOST_TEXT_BYTES).decode("utf-8-sig", errors="replace").split()
    try:
        voxel = np.array([float(field) for field in fields])
    except ValueError:
        voxel = np.empty(0)
    low, high = VOXEL_MM
    if voxel.shape != (3,) or not ((voxel >= low) & (voxel <= high)).all():
        shown = " ".join(fields)[:60]
        raise BadInput(
            f"{path}: holds '{shown}', not three numbers from {low:g} to {high:g} (a voxel's size in mm, one per "
            "line); restore the file"
        )
    return voxel


def write_values(path: Path, dense: Array, where: Array | None = None) -> None:
    """Write a volume (128³) in the challenge's format: its non-zero voxels, or all voxels in `where`.

    Decimals are the shortest that give the same number back in the dtype of `dense`. Raises ValueError for NaN or
    infinity.
    """
    _check_grid(dense)
    flat = dense.reshape(-1)
    index = np.flatnonzero(flat if where is None else where)
    values = flat[index]
    if not np.isfinite(values).all():
        raise ValueError(f"{path.name}: NaN and infinite values are not written")
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    _write(path, index, values.astype(str).tolist())


def write_indices(path: Path, mask: Array) -> None:
    """Write a mask (bool, 128³) in the challenge's format."""
    _check_grid(mask)
    index = np.flatnonzero(mask)
    _write(path, index, [""] * len(index))


def write_voxels(path: Path, voxel_mm: Array) -> None:
    """Write a voxel's size (3,) in mm."""
    np.savetxt(path, voxel_mm)


def _write(path: Path, index: Array, values: list[str]) -> None:
    lines = [f"{i},{v}\n" for i, v in zip(index.tolist(), values, strict=True)]
    path.write_text(HEADER + "".join(lines), newline="")


def _check_grid(volume: Array) -> None:
    if volume.shape != GRID:
        raise ValueError(f"the challenge's files hold volumes of {GRID}, not {volume.shape}")


# ---------------------------------------------------------------- reading


def _read(path: Path, kind: pa.DataType | None) -> tuple[Array, Array]:
    """Read indices and values; `kind` is None for a mask, which has no values."""
    content = _content(path, MOST_BYTES if kind else MOST_MASK_BYTES)
    end = _header_end(path, content)
    if end == len(content):  # nothing but a header
        return np.empty(0, np.int32), np.empty(0, kind.to_pandas_dtype() if kind else np.float32)
    try:
        index, values = _parse(pa.py_buffer(content).slice(end), kind)
    except pa.ArrowInvalid as error:
        raise BadInput(f"{path}: {_first_fault(content, kind is not None) or error}; export the file again") from error
    _check_indices(path, content, index, kind is not None)
    return index, values


def _parse(lines: pa.Buffer, kind: pa.DataType | None) -> tuple[Array, Array]:
    table = csv.read_csv(
        pa.BufferReader(lines),
        csv.ReadOptions(use_threads=False, column_names=["index", "value"], block_size=max(1 << 20, lines.size)),
        csv.ParseOptions(quote_char=False),
        csv.ConvertOptions(
            check_utf8=False,
            column_types={"index": pa.int32(), "value": kind or pa.null()},
            null_values=[] if kind else [""],
        ),
    )
    return table["index"].to_numpy(), table["value"].to_numpy()


def _check_indices(path: Path, content: bytes, index: Array, valued: bool) -> None:
    """Raise BadInput if an index lies outside the grid or occurs twice.

    The challenge's files are sorted, which is quick to see; other files are sorted here.
    """
    if not index.size:
        return
    if index.min() < 0 or index.max() >= VOXELS:
        raise BadInput(f"{path}: {_first_fault(content, valued)}; export the file again")
    if (np.diff(index) > 0).all():
        return
    ordered = np.sort(index)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        raise BadInput(
            f"{path}: index {twice[0]} is there twice ({twice.size} repeated lines), and nothing shows which one is "
            "right; export the file again"
        )


def _content(path: Path, most: int) -> bytes:
    try:
        content = refuse_long_file(path, most, "such a file of the challenge's").read_bytes()
    except FileNotFoundError as error:
        raise BadInput(f"{path}: the file is missing; restore it, or take the patient's folder out") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from error
    if not content.strip():
        raise BadInput(f"{path}: the file is empty; copy or export it again")
    if content.startswith(b"\x1f\x8b"):
        raise BadInput(f"{path}: the file is gzip-compressed; unpack it (gzip -d)")
    if content.startswith(b"PK\x03\x04"):
        raise BadInput(f"{path}: the file is a zip archive; unpack it")
    if b"\0" in content:
        raise BadInput(f"{path}: not a text file (it holds binary data); copy or export it again")
    return content


def _header_end(path: Path, content: bytes) -> int:
    """Return the position after the header, where the lines begin."""
    end = content.find(b"\n") + 1
    fields = content[: end or 200].decode(errors="replace").strip().split(",")
    if len(fields) != 2 or not end:
        raise BadInput(
            f"{path}: the first line is '{','.join(fields)[:60]}', not the header ',data' of the challenge's files; "
            "copy or export the file again"
        )
    if fields[0].strip().lstrip("-").isdigit():
        raise BadInput(f"{path}: the header line ',data' is missing (the first line holds data); put it back")
    if not content.endswith((b"\n", b"\r")):
        last = content[content.rfind(b"\n") + 1 :].decode(errors="replace")
        raise BadInput(
            f"{path}: the last line, '{last[:60]}', does not end with a newline: the file was cut off; copy it again"
        )
    return end


def _first_fault(content: bytes, valued: bool) -> str:
    """Describe the first line that cannot be read; empty if all can."""
    faults = (
        f"line {number} {fault}"
        for number, line in _lines(content)
        if (fault := _index_fault(line) or _value_fault(line.split(",")[1].strip(), valued))
    )
    return next(faults, "")


def _index_fault(line: str) -> str:
    fields = line.split(",")
    if len(fields) != 2:
        return f"is '{line[:60]}', not an index and a value (two columns)"
    try:
        index = int(fields[0])
    except ValueError:
        return f"has the index '{fields[0][:40]}', which is not a whole number"
    inside = 0 <= index < VOXELS
    return "" if inside else f"has the index {index}, outside the 128 × 128 × 128 grid (0 … {VOXELS - 1})"


def _value_fault(value: str, valued: bool) -> str:
    if not valued:
        return f"has the value '{value[:40]}', and a mask has none" if value else ""
    if not value:
        return "has no value"
    try:
        float(value)
    except ValueError:
        return f"has the value '{value[:40]}', which is not a number"
    return ""


def _line_of(path: Path, index: int) -> int:
    """Return the number of the line that holds voxel `index`."""
    wanted = str(index)
    return next((n for n, line in _lines(path.read_bytes()) if line.split(",")[0].strip() == wanted), 0)


def _lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines after the header, without empty ones."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="replace")
    for number, line in enumerate(text, 1):
        if number > 1 and line.strip():
            yield number, line.strip()
