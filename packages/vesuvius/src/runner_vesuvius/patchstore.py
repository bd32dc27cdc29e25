"""`Store` of volumes that memory cannot hold, as samples see it: images, targets and places, read when they are needed.

A patch's targets are computed when it is read, with `HALO` voxels around it: distances are those of the whole volume;
the medial surface may differ where a sheet's shape beyond them decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Json, StoredArray

from runner_vesuvius import census, targets
from runner_vesuvius.census import Census
from runner_vesuvius.chunked import Region
from runner_vesuvius.newest import Chunks, Labels

HALO = 16
"""Voxels around a patch of which its targets are computed: distances end at 15.97 voxels."""
_STRIDE = 1 << 31
"""Most coordinates of a kind that are told apart; of more, evenly spaced ones are drawn."""


@dataclass(frozen=True)
class Pair:
    """A labelled volume: what samples are drawn from."""

    key: str
    image: Chunks
    label: Labels
    census: Census


# ------------------------------------------------------------ stored arrays


class _Regions:
    """Base of arrays that are read region by region, and never gathered by rows."""

    dtype = np.dtype(np.uint8)

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self.shapes: Sequence[tuple[int, ...]] = [pair.image.shape for pair in pairs]

    def take(self, rows: Array, out: Array) -> None:
        raise BadInput("volumes that memory cannot hold are read in patches, not in rows")

    def _whole(self, record: int, region: tuple[slice, ...] | None) -> Region:
        parts = [slice(*own.indices(n)) for own, n in zip(region or (), self.shapes[record], strict=False)]
        parts += [slice(0, n) for n in self.shapes[record][len(parts) :]]
        return parts[0], parts[1], parts[2]


class Images(_Regions):
    """The scans."""

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        return self._pairs[record].image.read(self._whole(record, region))


class Targets(_Regions):
    """The result of `targets.prepare` for a label, computed of a region and `HALO` voxels around it."""

    def __init__(self, pairs: Sequence[Pair], tube: int, wanted: set[str]) -> None:
        super().__init__(pairs)
        self._tube, self._wanted = tube, wanted
        self._last: tuple[Any, dict[str, Array]] | None = None

    def named(self, name: str) -> StoredArray:
        return _Target(self, name)

    def of(self, record: int, region: tuple[slice, ...] | None) -> dict[str, Array]:
        """Return target and distance of a region; the last ones are kept, because both are asked for in turn."""
        own = self._whole(record, region)
        asked = record, [(part.start, part.stop) for part in own]
        if self._last is None or self._last[0] != asked:
            self._last = asked, self._computed(record, own)
        return self._last[1]

    def _computed(self, record: int, own: Region) -> dict[str, Array]:
        medial, distance = bool(self._wanted & {"tube", "medial"}), "distance" in self._wanted
        label, halo = self._pairs[record].label, HALO if medial or distance else 0
        z, y, x = (slice(max(0, p.start - halo), min(n, p.stop + halo)) for p, n in zip(own, label.shape, strict=True))
        found = targets.volumes_of(label.read((z, y, x)), self._tube, medial=medial, distance=distance)
        cut = tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(own, (z, y, x), strict=True))
        return {name: array[cut] for name, array in found.items()}


class _Target:
    """One of the arrays of `Targets`."""

    dtype = np.dtype(np.uint8)

    def __init__(self, targets: Targets, name: str) -> None:
        self._targets, self._name = targets, name
        self.shapes, self.take = targets.shapes, targets.take

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        return self._targets.of(record, region)[self._name]


class Places:
    """Coordinates of all voxels of a kind, (n, 3) int32 for each volume, each found when it is asked for."""

    dtype = np.dtype(np.int32)

    def __init__(self, pairs: Sequence[Pair], kind: str) -> None:
        self._pairs, self._kind = pairs, kind
        numbers = [pair.census.number(kind) for pair in pairs]
        self._strides = [max(1, -(-n // _STRIDE)) for n in numbers]
        self.shapes: Sequence[tuple[int, ...]] = [
            (-(-n // stride), 3) for n, stride in zip(numbers, self._strides, strict=True)
        ]
        self._ends = np.cumsum([shape[0] for shape in self.shapes])

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        rows = range(*(region[0] if region else slice(None)).indices(self.shapes[record][0]))
        found = [self._place(record, row) for row in rows]
        return np.array(found, np.int32).reshape(-1, 3)[(slice(None), *(region or ())[1:])]

    def take(self, rows: Array, out: Array) -> None:
        for i, row in enumerate(rows.tolist()):
            record = int(np.searchsorted(self._ends, row, side="right"))
            out[i] = self._place(record, row - (int(self._ends[record - 1]) if record else 0))

    def _place(self, record: int, row: int) -> tuple[int, ...]:
        pair = self._pairs[record]
        return pair.census.place(self._kind, row * self._strides[record], pair.label.read)


class Histograms:
    """Voxels of each label by intensity, (3, 256) for each volume, estimated from a sample of blocks."""

    dtype = np.dtype(np.int64)

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._histograms = [pair.census.histogram for pair in pairs]
        self.shapes: Sequence[tuple[int, ...]] = [(3, 256)] * len(pairs)

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        return self._histograms[record][region or ...]

    def take(self, rows: Array, out: Array) -> None:
        np.take(np.concatenate(self._histograms), rows, 0, out=out)


class VolumeStore:
    """`Store` of volumes that are read chunk by chunk."""

    device = False

    def __init__(self, pairs: Sequence[Pair], identity: str, tube: int, wanted: set[str]) -> None:
        self.keys: Sequence[str] = [pair.key for pair in pairs]
        self.meta: Sequence[Mapping[str, Json]] = [{} for _ in pairs]
        self.identity = identity
        computed = Targets(pairs, tube, wanted)
        self.arrays: Mapping[str, StoredArray] = {
            "image": Images(pairs),
            "target": computed.named("target"),
            **({"distance": computed.named("distance")} if "distance" in wanted else {}),
            "surface": Places(pairs, "surface"),
            "valid": Places(pairs, census.VALID),
            "histogram": Histograms(pairs),
        }

    def close(self) -> None:
        """Do nothing; no file stays open."""
