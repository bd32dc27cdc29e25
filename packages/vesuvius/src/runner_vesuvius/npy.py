"""Volumes in .npy files, memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from runner_core.protocols import Array


def outline(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype as the header says. Raises any exception of a damaged file."""
    with path.open("rb") as file:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, _, dtype = read(file)
    return tuple(shape), dtype


def read(path: Path) -> Array:
    """The array, read-only, in C order. Raises any exception of a damaged file; nothing is unpickled."""
    return np.ascontiguousarray(npy_format.open_memmap(path, mode="r"))
