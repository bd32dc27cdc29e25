"""Samples that are parts of patients, and samples that are unpacked on the host, as the challenge's own loader does it.

The latter (`data.unpack: host`) exist for comparison: `runner openkbp ablate` measures what unpacking on the device
saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from runner_core import Array, Arrays, BadInput, PatchSamples, RowSamples, SampleSpec, Store, random_below, random_words

from runner_openkbp.rois import MASKS, POSSIBLE, unpack

FIELDS = ("ct", "masks", "dose", "dose_step")
"""Stored arrays of a patient."""


class UnpackedSamples(RowSamples):
    """Patients as float32, bit for bit the values that the device makes of the packed ones.

    ct (1, S, S, S) has raw numbers, rois (1, S, S, S, 11) one channel per mask in the order of `MASKS`, dose (1, S, S,
    S) Gy.
    """

    def __init__(self, store: Store, records: Sequence[int]) -> None:
        if store.device:
            raise BadInput("data.unpack host fills batches on the host: set cache.mode to memmap or memory, not device")
        super().__init__(store, dict.fromkeys(FIELDS, (0,)), records)
        self._packed, self.spec = self.spec, _unpacked_spec(self.spec)

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        packed = {name: np.empty((len(indices), *spec.shape), spec.dtype) for name, spec in self._packed.items()}
        super().fill(indices, positions, seed, epoch, packed)
        _unpack(packed, out)


class MaskedPatches(PatchSamples):
    """Random parts of patients, (1, *patch) of each stored volume, that cover much of the possible-dose mask.

    Along each axis a part holds the whole mask where the mask is smaller than the part, and else nothing but the mask's
    extent; every such position is equally likely.
    """

    def __init__(self, store: Store, patch: Sequence[int], records: Sequence[int]) -> None:
        super().__init__(store, FIELDS[:3], (1, *patch), records)
        self._steps = store.arrays["dose_step"]
        self._extents: dict[int, Array] = {}
        self.spec["dose_step"] = SampleSpec((1, 1), np.dtype(np.float32))

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        super().fill(indices, positions, seed, epoch, out)
        out["dose_step"][...] = [self._steps.read(record) for record in out["record"].tolist()]

    def starts_of(self, records: Array, positions: Array, seed: int, epoch: int) -> Array:
        """Return the first voxel of each part: (samples, 4)."""
        words = random_words(seed, epoch, positions)
        extents = np.stack([self._extent(record) for record in records.tolist()])
        ends = np.stack([extents[:, 0], extents[:, 1] - self.patch], axis=1)
        low = np.clip(ends.min(1), 0, self.grids[records] - self.patch)
        high = np.clip(ends.max(1), 0, self.grids[records] - self.patch)
        return low + random_below(words, high - low + 1)

    def _extent(self, record: int) -> Array:
        """Return the first voxel of the possible-dose mask along each axis, and the one after its last: (2, 4)."""
        if record not in self._extents:
            where = np.nonzero(unpack(self.arrays["masks"].read(record), POSSIBLE))
            self._extents[record] = np.array([[w.min() for w in where], [w.max() + 1 for w in where]], np.int64)
        return self._extents[record]


class UnpackedPatches(MaskedPatches):
    """The parts of `MaskedPatches` as `UnpackedSamples` has whole patients."""

    def __init__(self, store: Store, patch: Sequence[int], records: Sequence[int]) -> None:
        super().__init__(store, patch, records)
        self._packed, self.spec = self.spec, _unpacked_spec(self.spec)

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        packed = {name: np.empty((len(indices), *spec.shape), spec.dtype) for name, spec in self._packed.items()}
        super().fill(indices, positions, seed, epoch, packed)
        _unpack(packed, out)


def _unpacked_spec(packed: Mapping[str, SampleSpec]) -> dict[str, SampleSpec]:
    grid, single = packed["ct"].shape, np.dtype(np.float32)
    return {
        "ct": SampleSpec(grid, single),
        "rois": SampleSpec((*grid, len(MASKS)), single),
        "dose": SampleSpec(grid, single),
        "record": packed["record"],
    }


def _unpack(packed: Arrays, out: Arrays) -> None:
    out["record"][...] = packed["record"]
    out["ct"][...] = packed["ct"]
    for place in range(len(MASKS)):
        out["rois"][..., place] = packed["masks"] >> np.uint16(place) & np.uint16(1)
    out["dose"][...] = packed["dose"] * packed["dose_step"][:, :, :, None, None]
