"""Zarr volumes read region by region through the newest decoded chunks, and labels with what is annotated of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from runner_core import Array, Json, Location, Lru, RemoteConfig, Url, remote_client, walk

from runner_vesuvius.chunked import Mask, Region, Volume
from runner_vesuvius.labels import IGNORE


class Newest:
    """Decoded chunks of all volumes of this process: the newest, up to `most` bytes. Picklable; copies begin empty."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._chunks: OrderedDict[tuple[str, tuple[int, ...]], Array] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Newest, (self._most,)

    def get(self, name: tuple[str, tuple[int, ...]]) -> Array | None:
        with self._lock:
            if (found := self._chunks.get(name)) is not None:
                self._chunks.move_to_end(name)
            return found

    def put(self, name: tuple[str, tuple[int, ...]], chunk: Array) -> None:
        with self._lock:
            if name in self._chunks:
                return
            self._chunks[name] = chunk
            self._held += chunk.nbytes
            while self._held > self._most:
                self._held -= self._chunks.popitem(last=False)[1].nbytes


class Chunks:
    """A volume read through `newest`, and through `disk` if it is at a URL. Picklable: each process opens it anew."""

    def __init__(
        self,
        place: Location,
        remote: RemoteConfig,
        newest: Newest,
        labels: Mapping[int, int] | None = None,
        disk: Lru | None = None,
    ) -> None:
        self.place = place
        self._remote, self._newest, self._labels, self._disk = remote, newest, labels, disk
        self.shape = self.volume.shape
        self.chunks = self.volume.chunks
        self._mark = "" if disk is None else digest([mark_of(place, remote), sorted((labels or {}).items())])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "volume"}

    @cached_property
    def volume(self) -> Volume:
        return Volume(self.place, self._remote, self._labels)

    def read(self, region: Region) -> Array:
        """Return the voxels of a region (uint8); raises BadInput as `Volume.read` does."""
        grid = [
            range(part.start // side, -(-part.stop // side)) for part, side in zip(region, self.chunks, strict=True)
        ]
        found = {place: self._newest.get((str(self.place), place)) for place in product(*grid)}
        if missing := [place for place, chunk in found.items() if chunk is None]:
            found.update(self._fetched(missing))
        out = np.empty([part.stop - part.start for part in region], np.uint8)
        for place, chunk in found.items():
            assert chunk is not None
            here, there = [], []
            for part, n, side in zip(region, place, self.chunks, strict=True):
                low, high = max(part.start, n * side), min(part.stop, (n + 1) * side)
                here.append(slice(low - part.start, high - part.start))
                there.append(slice(low - n * side, high - n * side))
            out[tuple(here)] = chunk[tuple(there)]
        return out

    def _fetched(self, missing: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Array]:
        """Return chunks that are not in memory: from the disk, all others in one read, which decodes side by side."""
        found = {place: chunk for place in missing if (chunk := self._from_disk(place)) is not None}
        if left := [place for place in missing if place not in found]:
            low, high = np.min(left, 0), np.max(left, 0) + 1
            region = self._region(low.tolist(), high.tolist())
            block = self.volume.read(region)
            for place in left:
                own = self._region(place, [n + 1 for n in place])
                cut = tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(own, region, strict=True))
                found[place] = np.ascontiguousarray(block[cut])
                if self._disk is not None:
                    self._disk.put(self._name(place), {"chunk": found[place]}, {})
        for place, chunk in found.items():
            self._newest.put((str(self.place), place), chunk)
        return found

    def _region(self, low: Sequence[int], high: Sequence[int]) -> Region:
        z, y, x = (
            slice(a * side, min(b * side, n)) for a, b, side, n in zip(low, high, self.chunks, self.shape, strict=True)
        )
        return z, y, x

    def _from_disk(self, place: tuple[int, ...]) -> Array | None:
        entry = None if self._disk is None else self._disk.get(self._name(place))
        return None if entry is None else np.array(entry.arrays["chunk"])

    def _name(self, place: tuple[int, ...]) -> str:
        return digest([self._mark, list(place)])


class Labels:
    """A label that is read region by region; outside of `annotated`, if there is such a mask, it is 2 (ignore)."""

    def __init__(self, label: Chunks, annotated: Location | None, remote: RemoteConfig) -> None:
        self._label, self._annotated, self._remote = label, annotated, remote
        self.shape, self.chunks = label.shape, label.chunks
        _ = self._mask  # its faults come now

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mask"}

    @cached_property
    def _mask(self) -> Mask | None:
        return None if self._annotated is None else Mask(self._annotated, self._remote, self.shape)

    def read(self, region: Region) -> Array:
        found = self._label.read(region)
        if self._mask is not None:
            found[~self._mask.read(region)] = IGNORE
        return found


_CHUNKS_LOOKED_AT = 64


def mark_of(place: Location, remote: RemoteConfig) -> list[Json]:
    """Return values that change when a volume does: its files' sizes and times.

    At a URL these are the sizes and ETags (or times) of the description and of some chunks.
    """
    if isinstance(place, Url):
        volume = Volume(place, remote)
        files = [file for file in volume.some_files(_CHUNKS_LOOKED_AT) if isinstance(file, Url)]
        known = [[file.size, file.etag] for file in remote_client(remote).describe(files)]
        return [place.text, list(volume.shape), list(volume.chunks), str(volume.dtype), known]
    count, size, newest = 0, 0, 0
    for stat in _stats(place):
        count, size, newest = count + 1, size + stat.st_size, max(newest, stat.st_mtime_ns)
    return [os.path.abspath(place), count, size, newest]


def _stats(folder: Path) -> Iterator[os.stat_result]:
    for below, _, names in walk(folder):
        yield from (os.stat(below / name) for name in names)


def digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
