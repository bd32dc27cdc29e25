"""Exchange of left and right, for NumPy arrays and tensors alike. No framework is imported here."""

from __future__ import annotations

from typing import Any

from runner_core import Arrays

from runner_openkbp.rois import bit


def mirrored(batch: Arrays) -> Arrays:
    """Mirror the stored arrays (B, 1, S, S, S) of patients; the fourth axis runs from right to left."""
    turned = {name: batch[name][:, :, :, ::-1] for name in batch}
    turned["masks"] = swap_sides(turned["masks"])
    return turned


def swap_sides(masks: Any) -> Any:
    """Exchange the bits of the right and the left parotid in masks of any shape and integer type."""
    right, left = masks & (1 << bit("RightParotid")), masks & (1 << bit("LeftParotid"))
    apart = 1 << (bit("LeftParotid") - bit("RightParotid"))
    return masks - right - left + right * apart + left // apart
