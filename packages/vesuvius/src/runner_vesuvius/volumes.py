"""Volumes and labels in files: tif, npy, zarr. Axes are (depth, height, width).

Images are read as uint8. A 16-bit scan is read by its high byte (value >> 8): 0 … 65535 become 0 … 255, whatever part
of that the scan uses. Labels are 0 background, 1 surface, 2 ignore (not annotated).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import index
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from runner_core._errors import BadInput
from runner_core._files import size_text
from runner_core._memory import available_ram
from runner_core._text import counted, times
from runner_core.protocols import Array

from runner_vesuvius import npy, tif, zarrs
from runner_vesuvius.labels import IGNORE
from runner_vesuvius.tif import write as write_tif

__all__ = ["SUFFIXES", "Outline", "highest", "outline", "read_image", "read_label", "read_truth", "write_tif"]

Outline = tuple[tuple[int, int, int], np.dtype[Any]]
"""Shape (D, H, W) and dtype."""

_FORMATS: dict[str, ModuleType] = {".tif": tif, ".tiff": tif, ".npy": npy, ".zarr": zarrs}
SUFFIXES = tuple(_FORMATS)


def outline(path: Path) -> Outline:
    """Shape and dtype, from headers alone. Raises BadInput naming the file: missing, unreadable, no volume."""
    reader = _reader(path)
    with _damage_refused(path):
        shape, dtype = reader.outline(path)
        shape = tuple(map(index, shape))
    return _volume_shape(path, shape), dtype


def read_image(path: Path) -> Array:
    """A scan (D, H, W) as uint8, read-only where it is memory-mapped.

    Raises BadInput naming the file and what to do: missing, truncated, damaged, no volume, larger than the memory, or
    of a type other than uint8 and uint16.
    """
    shape, dtype = outline(path)
    if dtype.newbyteorder("=") not in (np.uint8, np.uint16):
        raise BadInput(f"{path}: voxels of type {dtype}; scans are uint8 or uint16. {_how_to_convert(dtype)}")
    volume = _read(path, shape, dtype)
    return volume if volume.dtype == np.uint8 else (volume >> 8).astype(np.uint8)


def highest(path: Path) -> int:
    """The highest value as the file has it, of 16 bits too. Raises BadInput as `read_image`."""
    return int(_read(path, *outline(path)).max())


def read_label(path: Path) -> Array:
    """A label (D, H, W) as uint8: 0 background, 1 surface, 2 ignore; read-only where it is memory-mapped.

    Raises BadInput as `read_image`, for types that are neither integers nor bool, and for other values.
    """
    shape, dtype = outline(path)
    if dtype.kind not in "iub":
        raise BadInput(
            f"{path}: labels of type {dtype}; integers are needed (0 background, 1 surface, 2 ignore). Save "
            "them as uint8."
        )
    volume = _read(path, shape, dtype)
    volume = volume.view(np.uint8) if dtype.kind == "b" else volume
    if volume.max() > IGNORE or volume.min() < 0:
        values, counts = np.unique(volume, return_counts=True)
        odd = [(v, n) for v, n in zip(values.tolist(), counts.tolist(), strict=True) if not 0 <= v <= IGNORE]
        shown = ", ".join(f"{value} in {counted(number, 'voxel')}" for value, number in odd[:5])
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        raise BadInput(
            f"{path}: holds {shown}{more}; labels are 0 background, 1 surface, 2 ignore. Write them so, or take the "
            "volume out."
        )
    return volume.astype(np.uint8, copy=False)


def read_truth(files: Mapping[str, Path], shape: tuple[int, ...]) -> Array:
    """The label among a record's files ("image", "label"), as `read_label`; `shape`: the image's.

    Raises BadInput as `read_label`, and where the two differ in shape.
    """
    label = read_label(files["label"])
    if label.shape != shape:
        raise BadInput(
            f"{files['label']}: {times(label.shape)} voxels, but its image {files['image']} has {times(shape)}. They "
            "must be of one grid: is it another volume's label?"
        )
    return label


def _read(path: Path, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    """The voxels of what its header calls `shape` and `dtype`. Raises BadInput where memory cannot hold them."""
    reader = _reader(path)
    mapped = reader is npy and dtype == np.uint8  # as large as its file, and on the disk
    needed, free = math.prod(shape) * dtype.itemsize, available_ram()
    if needed > free and not mapped:
        raise BadInput(
            f"{path}: {times(shape)} voxels of type {dtype} take {size_text(needed)}, and {size_text(free)} of memory "
            "are free. Cut the volume into pieces, or mend its header if that cannot be its size."
        )
    with _damage_refused(path):
        volume: Array = reader.read(path)
        if volume.shape != shape or volume.dtype != dtype:
            raise ValueError(f"its header says {dtype} {shape}, it holds {volume.dtype} {volume.shape}")
    return volume


def _reader(path: Path) -> ModuleType:
    try:
        if not path.exists():
            raise BadInput(f"{path}: no such file. Restore it, or take the volume out.")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from error
    if path.suffix.lower() not in _FORMATS:
        raise BadInput(f"{path}: not a format that is read here ({', '.join(_FORMATS)}). Convert it.")
    if path.is_dir() and path.suffix.lower() != ".zarr":
        raise BadInput(f"{path}: a folder; a file is needed.")
    return _FORMATS[path.suffix.lower()]


@contextmanager
def _damage_refused(path: Path) -> Iterator[None]:
    """What decoders raise of damaged data cannot be listed: whatever it is becomes a BadInput that names the file."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"{path}: cannot be read ({os.strerror(error.errno)}).") from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BadInput(f"{path}: truncated or damaged ({reason}). Copy or write it again.") from error


def _volume_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """`shape`, which is that of a volume that memory can hold. Raises BadInput where it is not."""
    if len(shape) == 4 and shape[3] in (2, 3, 4):
        raise BadInput(f"{path}: slices of {shape[3]} channels (colours?); a volume of grey values is needed.")
    if len(shape) != 3:
        hint = " Join the slices of a volume in one file." if len(shape) == 2 else ""
        raise BadInput(f"{path}: {len(shape)}-D ({times(shape)}); a volume of depth × height × width is needed.{hint}")
    if min(shape) < 1:
        raise BadInput(f"{path}: empty ({times(shape)}). Copy or write it again.")
    return shape[0], shape[1], shape[2]


def _how_to_convert(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "Is this a mask, rather than a scan?"
    return (
        "Convert them, with the same range for every volume of a scroll: "
        "np.clip((v - low) / (high - low) * 255, 0, 255).astype(np.uint8)."
    )
