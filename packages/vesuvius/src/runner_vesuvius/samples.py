"""Samples: patches of volumes, with the scale of each patch's intensities unless it is one for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from runner_core import Array, Arrays, PatchSamples, SampleSpec

SCALE = "scale"
"""Name of mean and standard deviation (2,) of the intensities by which a sample is normalised."""


class ScaledPatches(PatchSamples):
    """Patches with the scale of their record: `scales` (2,) float32 by record number of the store."""

    def __init__(self, *args: Any, scales: dict[int, Array], **options: Any) -> None:
        super().__init__(*args, **options)
        self._scales = scales
        self.spec |= {SCALE: SampleSpec((2,), np.dtype(np.float32))}

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Copy the patches of samples `indices` into `out`, and their scales."""
        super().fill(indices, positions, seed, epoch, out)
        out[SCALE][...] = [self._scales[record] for record in out["record"].tolist()]
