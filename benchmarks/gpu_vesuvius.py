"""GPU cases of vesuvius besides its preset.

Its phantom's volumes are smaller than the preset's patches: these are larger ones, made in the same way.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu_peers import VESUVIUS
from benchmarks.gpucase import Case

SIDE = 208
"""Side of the volumes (voxels): as large as preset `large` needs, and a multiple of 16."""


def volumes(folder: Path) -> None:
    """Four volumes of two scrolls, in the challenge's layout."""
    import numpy as np
    from runner_vesuvius.phantom import write_phantom

    write_phantom(folder, np.random.default_rng(0), (2, 2), 0, (SIDE, SIDE, SIDE))


DATA = volumes

ALL_LOSSES = {
    f"loss.{name}.weight": 1.0 for name in ("cldice", "boundary", "surface_distance", "topology")
}  # besides those that are on
CASES = [
    *VESUVIUS,
    Case("vesuvius", "checkpointing", {"model.checkpointing": True}, data=volumes),
    Case("vesuvius", "preset large", preset="large", data=volumes),
    Case("vesuvius", "every loss", ALL_LOSSES, data=volumes),
    Case("vesuvius", "without augmentation", {"augment.affine": 0.0, "augment.elastic": 0.0}, data=volumes),
    Case("vesuvius", "batch 4", {"train.batch_size": 4}, data=volumes),
]
