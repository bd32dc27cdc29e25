"""GPU cases of dinocell besides its preset.

Its phantom's fields are smaller than the preset's windows: these are as large as a microscope's, made in the same
way.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu_peers import DINOCELL
from benchmarks.gpucase import Case

SIDE = 1080
"""Pixels of a field (JUMP-CP's)."""


def fields(folder: Path) -> None:
    """Two plates of four wells with two sites, in JUMP-CP's layout."""
    import numpy as np
    from runner_dinocell.phantom import write_phantom

    write_phantom(folder, np.random.default_rng(0), ("BR0101", "BR0201"), (2, 2), SIDE)


DATA = fields

CASES = [
    *DINOCELL,
    *(Case("dinocell", f"batch {size}", {"train.batch_size": size}, data=fields) for size in (40, 120, 160, 240)),
    Case("dinocell", "centre, not Sinkhorn-Knopp", {"loss.centring": "centre"}, data=fields),
    Case("dinocell", "ViT-S/16", {"model.patch": 16}, data=fields),
    Case("dinocell", "ViT-B/8, batch 40", {"model.size": "base", "train.batch_size": 40}, data=fields),
    Case("dinocell", "without KoLeo", {"loss.koleo": 0.0}, data=fields),
]
