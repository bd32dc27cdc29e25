"""Volumes in .zarr folders: arrays of zarr version 2 or 3, groups of one array, OME-Zarr images.

From an OME-Zarr image (multiscales), level 0 is read: the full resolution. A chunk that is not stored has the array's
fill value: zarr stores chunks that hold nothing else this way. Axes of length 1 before the volume's three, such as
OME-Zarr's time and channel, are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Location, walk

_MOST_CHUNKS = 1 << 18
_ROOM = 4096
"""Bytes that a stored chunk may have beyond 1.25 times its voxels: headers, checksums, an index of shards."""
_NO_SPACE = ("c", "channel", "t", "time")
"""Names of axes that are not spatial."""


def outline(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype.

    Raises any exception for a damaged file, BadInput if there is more than one array.
    """
    array, names = _array(path)
    shape = dropped(array.shape)
    refuse_further_axes(path, array.shape, names)
    return shape, np.dtype(array.dtype)


def refuse_further_axes(place: Location, shape: tuple[int, ...], names: list[str]) -> None:
    """Raise BadInput for several channels or times."""
    shape = dropped(shape)
    other = [f"{name} {n}" for name, n in zip(names[-len(shape) :], shape, strict=False) if name in _NO_SPACE and n > 1]
    if other:
        raise BadInput(f"{place}: {', '.join(other)}: several channels or times; write one volume of three axes each.")


def read(path: Path) -> Array:
    """Return the whole array. Raises as `outline` does, ValueError for chunks that hold more than they should."""
    stored, _ = _array(path)
    _refuse_bombs(path, stored)
    array = np.asarray(stored[...])
    return array.reshape(dropped(array.shape))


def chunks(path: Path) -> tuple[int, int]:
    """Return how many chunks are stored, and how many the array has; raises as `outline` does."""
    array, _ = _array(path)
    return array.nchunks_initialized, array.nchunks


def fill(path: Path) -> int:
    """Return the value of chunks that are not stored; raises as `outline` does."""
    return int(_array(path)[0].fill_value or 0)


def _refuse_bombs(path: Path, array: Any) -> None:
    """Raise ValueError for more chunks than can be read in a minute, or for a chunk that decodes to too much.

    Blosc's and Zstandard's decoded sizes are read from the header, others judged by the file's size.
    """
    if array.nchunks > _MOST_CHUNKS:
        raise ValueError(f"it has {array.nchunks:,} chunks; {_MOST_CHUNKS:,} are the most that are read")
    chunk = math.prod(getattr(array, "shards", None) or array.chunks) * array.dtype.itemsize
    inner = chunk // (math.prod(array.chunks) * array.dtype.itemsize)
    most = chunk * 5 // 4 + 16 * inner + _ROOM
    codecs = " ".join(type(codec).__name__.lower() for codec in array.compressors)
    for folder, _, names in walk(path / array.path):
        for name in names:
            if name == "zarr.json":
                continue
            size = (folder / name).stat().st_size
            if size > most:
                raise ValueError(f"chunk {name} takes {size:,} bytes, a whole one is {chunk:,}")
            with (folder / name).open("rb") as file:
                holds = _decoded(file.read(18), codecs)
            if holds > most:
                raise ValueError(f"chunk {name} holds {holds:,} bytes, a whole one is {chunk:,}")


def _decoded(head: bytes, codecs: str) -> int:
    r"""Return how many bytes a chunk that begins with `head` decodes to, 0 if it does not say.

    >>> _decoded(bytes.fromhex("28b52ffda000005000"), "zstdcodec"), _decoded(bytes(4) + b"\7" + bytes(13), "blosc")
    (5242880, 7)
    """
    if "blosc" in codecs:
        return int.from_bytes(head[4:8], "little")
    if "zstd" not in codecs or head[:4] != b"\x28\xb5\x2f\xfd":
        return 0
    flags = head[4]  # RFC 8878, 3.1.1.1
    single = flags >> 5 & 1
    begin = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[flags >> 6]
    return int.from_bytes(head[begin : begin + width], "little") + (256 if width == 2 else 0)


def dropped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without axes of length 1 before the last three.

    >>> dropped((1, 1, 1, 6, 7)), dropped((1, 2, 5, 6, 7))
    ((1, 6, 7), (2, 5, 6, 7))
    """
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _array(path: Path) -> tuple[Any, list[str]]:
    """Return the array, and the names of its axes (small letters) if they are written."""
    import zarr  # takes half a second, and few runs need it

    if not path.is_dir():
        raise BadInput(f"{path}: a file; zarr arrays are folders. Unpack it, if it is an archive.")
    return chosen(zarr.open(path, mode="r"), path)


def chosen(opened: Any, place: Location) -> tuple[Any, list[str]]:
    """Return the array that an opened array or group stands for, and the names of its axes, as `_array` does."""
    import zarr

    if isinstance(opened, zarr.Array):
        return opened, _names(getattr(opened.metadata, "dimension_names", None) or ())
    if scales := scales_of(opened):
        axes = [axis.get("name", "") for axis in scales.get("axes", []) if isinstance(axis, dict)]
        return opened[scales["datasets"][0]["path"]], _names(axes)
    arrays = dict(opened.arrays())
    if len(arrays) != 1:
        names = ", ".join(sorted(arrays)[:5]) or "none"
        raise BadInput(
            f"{place}: a zarr group of {len(arrays)} arrays ({names}); one is needed. Give the folder of one of them a "
            "name that ends in .zarr."
        )
    array = next(iter(arrays.values()))
    return array, _names(getattr(array.metadata, "dimension_names", None) or ())


def scales_of(group: Any) -> dict[str, Any]:
    """Return what an OME-Zarr group says of its scales (`multiscales`); nothing if it is no such group."""
    attributes = group.attrs.asdict()
    found = attributes.get("multiscales") or attributes.get("ome", {}).get("multiscales")
    return dict(found[0]) if found else {}


def _names(axes: Iterable[str | None]) -> list[str]:
    return [str(name).lower() for name in axes]
