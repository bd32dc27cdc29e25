"""Optimisations of openkbp, and the settings that switch them off."""

from __future__ import annotations

from runner_core import Remedy

OPTIMISATIONS = (
    Remedy(
        "packed",
        off={"data.unpack": "host"},
        part="data",
        why="Batches hold 16-bit CT and dose and a bit a mask, which the device unpacks; without, float32 and a "
        "channel a mask.",
    ),
    Remedy(
        "recompute",
        off={"model.recompute": False},
        part="network",
        why="Activations are computed again for the gradient; without, all of them are kept: faster, in more memory.",
    ),
)
