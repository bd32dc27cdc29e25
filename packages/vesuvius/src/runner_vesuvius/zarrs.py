"""Volumes in .zarr folders: arrays of zarr version 2 or 3, groups of one array, OME-Zarr images.

Of an OME-Zarr image (multiscales), level 0 is read: the full resolution. A chunk that is not stored has the array's
fill value: that is how zarr stores chunks in which nothing else is. Axes of length 1 before the volume's three, such as
OME-Zarr's time and channel, are dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from runner_core._errors import BadInput
from runner_core.protocols import Array


def outline(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype. Raises any exception of a damaged file, BadInput where there is more than one array."""
    array = _array(path)
    return _dropped(array.shape), np.dtype(array.dtype)


def read(path: Path) -> Array:
    """The whole array. Raises as `outline` does."""
    array = np.asarray(_array(path)[...])
    return array.reshape(_dropped(array.shape))


def chunks(path: Path) -> tuple[int, int]:
    """How many chunks are stored, and how many the array has. Raises as `outline` does."""
    array = _array(path)
    return array.nchunks_initialized, array.nchunks


def fill(path: Path) -> int:
    """What chunks that are not stored are read as. Raises as `outline` does."""
    return int(_array(path).fill_value or 0)


def _dropped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of length 1 before the last three.

    >>> _dropped((1, 1, 1, 6, 7)), _dropped((1, 2, 5, 6, 7))
    ((1, 6, 7), (2, 5, 6, 7))
    """
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _array(path: Path) -> Any:
    import zarr  # half a second, and few need it

    if not path.is_dir():
        raise BadInput(f"{path}: a file; zarr arrays are folders. Unpack it, if it is an archive.")
    opened = zarr.open(path, mode="r")
    if isinstance(opened, zarr.Array):
        return opened
    attributes = opened.attrs.asdict()
    scales = attributes.get("multiscales") or attributes.get("ome", {}).get("multiscales")
    if scales:
        return opened[scales[0]["datasets"][0]["path"]]
    arrays = dict(opened.arrays())
    if len(arrays) != 1:
        names = ", ".join(sorted(arrays)[:5]) or "none"
        raise BadInput(
            f"{path}: a zarr group of {len(arrays)} arrays ({names}); one is needed. Give the folder of one of them a "
            "name that ends in .zarr."
        )
    return next(iter(arrays.values()))
