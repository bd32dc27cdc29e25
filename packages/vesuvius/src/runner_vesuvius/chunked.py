"""Zarr volumes of any size, in folders or at URLs, read and written region by region; OME-Zarr images of them.

A volume is what `zarrs` reads: an array of zarr version 2 or 3, a group of one array, or level 0 of an OME-Zarr image.
URLs are read and written by obstore, under the `remote` settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from runner_core import Array, BadInput, Location, RemoteConfig, Url, flush, remote_client

from runner_vesuvius import zarrs
from runner_vesuvius.volumes import as_label, coarseness, refined, volume_shape

Region = tuple[slice, slice, slice]
CHUNK = 128
"""Side of the chunks that are written."""
_UNITS = "zyx"


class Volume:
    """A scan or a mask, (D, H, W), which is read region by region."""

    def __init__(self, place: Location, remote: RemoteConfig, labels: Mapping[int, int] | None = None) -> None:
        """Open it. Raises BadInput with the place if it is missing, damaged or no volume of uint8 or uint16.

        A label has `labels`, the meaning of each of its values; then any integers are read.
        """
        self.place, self._remote, self._labels = place, remote, labels
        with faults(place, remote):
            opened = _opened(place, remote)
            self._array, axes = zarrs.chosen(opened, place)
            zarrs.refuse_further_axes(place, self._array.shape, axes)
        self.shape = volume_shape(place, zarrs.dropped(self._array.shape))
        self.dtype = np.dtype(self._array.dtype).newbyteorder("=")
        if labels is not None and self.dtype.kind not in "iub":
            raise BadInput(f"{place}: labels of type {self.dtype}; integers are needed. Write them as uint8.")
        if labels is None and self.dtype not in (np.uint8, np.uint16, np.bool_):
            raise BadInput(f"{place}: voxels of type {self.dtype}; scans are uint8 or uint16, masks uint8 or bool.")
        self.chunks = tuple(self._array.chunks[-3:])
        """What one read decodes at least, in voxels."""
        self.format: Literal[2, 3] = self._array.metadata.zarr_format
        self.voxel, self.unit = _voxel(opened)

    def some_files(self, most: int) -> list[Location]:
        """Return the places of the array's description, and of up to `most` chunks all over the volume."""
        grid = [-(-n // side) for n, side in zip(self._array.shape, self._sides, strict=True)]
        numbers = np.unique(np.linspace(0, math.prod(grid) - 1, most).astype(int))
        places = zip(*np.unravel_index(numbers, grid), strict=True)
        about = self._folder / ("zarr.json" if self.format == 3 else ".zarray")
        return [about, *(self._file(tuple(map(int, place))) for place in places)]

    @property
    def _sides(self) -> tuple[int, ...]:
        """Sides of what one file holds, in voxels."""
        return tuple(self._array.shards or self._array.chunks)

    @property
    def _folder(self) -> Location:
        where, prefix = self._array.store_path.path, _store(self.place, self._remote)[1]
        return self.place / where.removeprefix(prefix).strip("/") if where != prefix else self.place

    def _file(self, place: tuple[int, ...]) -> Location:
        return self._folder / self._array.metadata.encode_chunk_key(place)

    def read(self, region: Region) -> Array:
        """Return the voxels of a region as uint8, as `volumes.read_image` and `read_label` do (16 bits: the high byte).

        Raises BadInput that names the first chunk that cannot be read, and for a label's values that mean nothing.
        """
        whole = (*(slice(0, 1),) * (self._array.ndim - 3), *region)
        try:
            found = np.asarray(self._array[whole])
        except Exception as error:
            place = self.place if _is_remote(error) else self._damaged(whole)
            with faults(place, self._remote):
                raise
        found = found.reshape(found.shape[-3:])
        if self._labels is not None:
            return as_label(self.place, found, self._labels)
        return (found >> 8).astype(np.uint8) if self.dtype == np.uint16 else found.astype(np.uint8, copy=False)

    def _damaged(self, region: tuple[slice, ...]) -> Location:
        """Return the file of the first chunk in a region that cannot be read, or the volume's place if all can."""
        sides = self._sides
        reached = (range(part.start // side, -(-part.stop // side)) for part, side in zip(region, sides, strict=True))
        for place in product(*reached):
            own = tuple(slice(n * side, (n + 1) * side) for n, side in zip(place, sides, strict=True))
            try:
                np.asarray(self._array[own])
            except Exception:
                return self._file(place)
        return self.place


class Mask:
    """A mask of what is predicted, of the scan's shape or coarser by whole factors (a level of OME-Zarr)."""

    def __init__(self, place: Location, remote: RemoteConfig, shape: Sequence[int]) -> None:
        self._volume = Volume(place, remote)
        self._factors = coarseness(place, self._volume.shape, shape)

    def read(self, region: Region) -> Array:
        """Return where the mask is not 0 (bool), in the voxels of the scan."""
        coarse = tuple(
            slice(min(part.start // factor, n - 1), min(-(-part.stop // factor), n))
            for part, factor, n in zip(region, self._factors, self._volume.shape, strict=True)
        )
        found = self._volume.read((coarse[0], coarse[1], coarse[2])) != 0
        return refined(found, region, self._factors, self._volume.shape, [part.start for part in coarse])


@dataclass(frozen=True)
class Folder:
    """The place to which OME-Zarr images are written: a folder, or a URL."""

    place: Location
    remote: RemoteConfig

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.place / name, self.remote)

    def group(self, version: Literal[2, 3]) -> Any:
        """Return the zarr group here, which is made if it is missing. Raises BadInput if it cannot be written."""
        import zarr

        with faults(self.place, self.remote):
            store, path = _store(self.place, self.remote, writing=True)
            return zarr.open_group(store, path=path, mode="a", zarr_format=version)

    def existing(self) -> Any | None:
        """Return the zarr group here, or None if there is none."""
        import zarr

        with faults(self.place, self.remote):
            store, path = _store(self.place, self.remote, writing=True)
            try:
                return zarr.open_group(store, path=path, mode="r+")
            except (FileNotFoundError, zarr.errors.GroupNotFoundError):
                return None

    def remove(self, name: str) -> None:
        """Remove the group `name` below this folder with all it holds, its own description first."""
        import shutil

        if isinstance(self.place, Path):
            folder = self.place / name
            for file in ("zarr.json", ".zattrs", ".zgroup"):
                (folder / file).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            return
        import obstore

        with faults(self.place, self.remote):
            store, path = remote_client(self.remote).store(self.place / name)
            names = [found["path"] for chunk in obstore.list(store, path) for found in chunk]
            own = {f"{path}/{file}" for file in ("zarr.json", ".zattrs", ".zgroup")}
            for some in ([one for one in names if one in own], [one for one in names if one not in own]):
                for first in range(0, len(some), 1000):
                    obstore.delete(store, some[first : first + 1000])


def array(group: Any, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: str = "uint8") -> Any:
    """Return an array of a group, which is made of zeros if it is missing; chunks of zeros are not stored.

    Several processes may call this at once.
    """
    import zarr

    encoding = {"name": "v2" if group.metadata.zarr_format == 2 else "default", "separator": "/"}
    axes = tuple(_UNITS) if group.metadata.zarr_format == 3 and len(shape) == 3 else None
    try:
        return group[name]
    except KeyError:
        pass
    try:
        return group.create_array(
            name, shape=tuple(shape), chunks=tuple(chunks), dtype=dtype, fill_value=0, chunk_key_encoding=encoding,
            dimension_names=axes,
        )  # fmt: skip
    except zarr.errors.ContainsArrayError:
        return group[name]


def flush_chunks(array: Any, region: tuple[slice, ...] | None = None) -> None:
    """Flush an array's stored chunks (of a region) and the folders above them to the disk; nothing is done at a URL.

    What is marked as done afterwards then survives a loss of power.
    """
    from zarr.storage import LocalStore

    if not isinstance(array.store, LocalStore):
        return
    own = Path(array.store.root) / array.path
    parts = region or tuple(slice(0, n) for n in array.shape)
    reached = (range(part.start // n, -(-part.stop // n)) for part, n in zip(parts, array.chunks, strict=True))
    files = [own / array.metadata.encode_chunk_key(place) for place in product(*reached)]
    there = [file for file in files if file.is_file()]
    folders = {folder for file in there for folder in file.parents if folder.is_relative_to(own)}
    about = [file for name in (".zarray", "zarr.json") if (file := own / name).is_file()]
    for path in [*there, *about, *sorted(folders | {own}, reverse=True), *own.parents[:2]]:
        flush(path)


def describe(group: Any, name: str, levels: int, voxel: Sequence[float], unit: str, about: dict[str, Any]) -> None:
    """Write what makes a group of arrays "0", "1", … an OME-Zarr image: OME-NGFF 0.4 in zarr 2, 0.5 in zarr 3.

    Each level halves the last, rounded up. `about` is kept beside it, under "runner".
    """
    old = group.metadata.zarr_format == 2
    datasets = []
    for level in range(levels):
        moves: list[dict[str, Any]] = [{"type": "scale", "scale": [side * 2**level for side in voxel]}]
        if level:  # the middle of its first voxel lies between voxels of level 0
            moves.append({"type": "translation", "translation": [side * (2**level - 1) / 2 for side in voxel]})
        datasets.append({"path": str(level), "coordinateTransformations": moves})
    axes = [{"name": axis, "type": "space"} | ({"unit": unit} if unit else {}) for axis in _UNITS]
    scales = {"name": name, "axes": axes, "datasets": datasets} | ({"version": "0.4"} if old else {})
    image = {"multiscales": [scales]}
    group.attrs.update((image if old else {"ome": {"version": "0.5", **image}}) | {"runner": about})


@contextmanager
def faults(place: Location, remote: RemoteConfig) -> Iterator[None]:
    """Turn any exception into a BadInput that names the place, because decoders' errors cannot be listed."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if isinstance(place, Url) and _is_remote(error):
            raise remote_client(remote).failure(place, error) from error
        if isinstance(error, FileNotFoundError):
            raise BadInput(f"{place}: there is no zarr array or group.") from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BadInput(f"{place}: cannot be read or written ({reason}).") from error


def _is_remote(error: Exception) -> bool:
    """Return whether the server or the network is at fault."""
    return type(error).__module__.startswith(("obstore", "pyo3"))


def _opened(place: Location, remote: RemoteConfig) -> Any:
    import zarr

    store, path = _store(place, remote)
    return zarr.open(store, path=path, mode="r")


def _store(place: Location, remote: RemoteConfig, writing: bool = False) -> tuple[Any, str]:
    """Return a zarr store and the path in it."""
    from zarr.storage import LocalStore, ObjectStore

    if isinstance(place, Url):
        found, path = remote_client(remote).store(place)
        return ObjectStore(found, read_only=not writing), path
    return LocalStore(place, read_only=not writing), ""


def _voxel(opened: Any) -> tuple[tuple[float, ...], str]:
    """Return the size of a voxel (z, y, x) and its unit, 1 and "" if they are not written."""
    scales = {} if hasattr(opened, "chunks") else zarrs.scales_of(opened)
    try:
        moves = scales["datasets"][0]["coordinateTransformations"]
        sides = tuple(float(n) for n in next(m["scale"] for m in moves if m["type"] == "scale")[-3:])
        return sides, str(scales["axes"][-1].get("unit", ""))
    except (KeyError, IndexError, StopIteration, TypeError, ValueError, AttributeError):
        return (1.0, 1.0, 1.0), ""
