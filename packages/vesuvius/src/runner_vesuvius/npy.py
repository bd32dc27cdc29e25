"""Volumes in .npy files, memory-mapped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from runner_core import Array, size_text


def outline(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype from the header; raise any exception if the file is damaged."""
    shape, _, dtype = _header(path)
    return shape, dtype


def mapped(path: Path) -> bool:
    """Return whether `read` gives the data on disk; axes in Fortran's order are copied into memory."""
    return not _header(path)[1]


def read(path: Path) -> Array:
    """Return the array, read-only, in C order; raise any exception if it is damaged. Nothing is unpickled."""
    shape, _, dtype = _header(path)
    if (needed := math.prod(shape) * dtype.itemsize) > (size := path.stat().st_size):
        raise ValueError(f"{size_text(needed)} of values by its header, the file has {size_text(size)}")
    return np.ascontiguousarray(npy_format.open_memmap(path, mode="r"))


def _header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the axes are in Fortran's order, and dtype."""
    with path.open("rb") as file:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    return tuple(shape), fortran, dtype
