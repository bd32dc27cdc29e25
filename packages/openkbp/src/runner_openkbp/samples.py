"""Samples that are unpacked on the host, as the challenge's own loader does it: `data.unpack: host`.

They exist for comparison: `runner openkbp ablate` measures what unpacking on the device saves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runner_core import Array, Arrays, BadInput, RowSamples, SampleSpec, Store

from runner_openkbp.rois import MASKS

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
        self._packed = self.spec
        grid, single = self.spec["ct"].shape, np.dtype(np.float32)
        self.spec = {
            "ct": SampleSpec(grid, single),
            "rois": SampleSpec((*grid, len(MASKS)), single),
            "dose": SampleSpec(grid, single),
            "record": self.spec["record"],
        }

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        packed = {name: np.empty((len(indices), *spec.shape), spec.dtype) for name, spec in self._packed.items()}
        super().fill(indices, positions, seed, epoch, packed)
        out["record"][...] = packed["record"]
        out["ct"][...] = packed["ct"]
        for place in range(len(MASKS)):
            out["rois"][..., place] = packed["masks"] >> np.uint16(place) & np.uint16(1)
        out["dose"][...] = packed["dose"] * packed["dose_step"][:, :, :, None, None]
