"""Left and right exchanged, for NumPy arrays and tensors alike. Imports no framework."""

from __future__ import annotations

from typing import Any

from runner_core.protocols import Arrays

from runner_openkbp.rois import bit


def mirrored(batch: Arrays) -> Arrays:
    """Stored arrays (B, 1, S, S, S) of the mirrored patients: the fourth axis runs from right to left."""
    turned = {name: batch[name][:, :, :, ::-1] for name in batch}
    turned["masks"] = swap_sides(turned["masks"])
    return turned


def swap_sides(masks: Any) -> Any:
    """Mask bits (any shape and integer type) with the right parotid's and the left one's exchanged."""
    right, left = masks & (1 << bit("RightParotid")), masks & (1 << bit("LeftParotid"))
    apart = 1 << (bit("LeftParotid") - bit("RightParotid"))
    return masks - right - left + right * apart + left // apart
