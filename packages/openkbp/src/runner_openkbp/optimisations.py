"""Optimisations of openkbp, and the settings that switch them off."""

from __future__ import annotations

from runner_core import Remedy

OPTIMISATIONS = (
    Remedy(
        "packed",
        off={"data.unpack": "host"},
        part="data",
        why="Batches hold CT and dose in 16 bits and each mask in one bit, and the device unpacks them; without, they "
        "hold float32 and one channel per mask.",
    ),
    Remedy(
        "recompute",
        off={"model.recompute": False},
        part="network",
        why="Activations are computed again for the gradient; without, all are kept, which is faster and takes more "
        "memory.",
    ),
)
