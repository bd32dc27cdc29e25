"""Masks of patches: rectangles, until a share of the patches is masked.

Block-wise masking of BEiT (Bao et al. 2022, algorithm 1) as DINOv2 uses it (Oquab et al. 2024). Rectangles lie
anywhere, have an area between `LEAST` patches and the number still missing, and an aspect ratio between 0.3 and 1/0.3
(uniform in its logarithm). A rectangle that would mask too many is not taken. Single patches make up the rest, so that
the count is exact.
"""

from __future__ import annotations

import math

import numpy as np
from runner_core import Array

LEAST = 4
"""Patches of the smallest rectangle."""
ASPECT = 0.3
ROUNDS = 12
"""Rectangles that are tried; on average each rectangle taken halves the missing number."""
WORDS = 2 * ROUNDS + 2
"""Random words of a mask."""


def block_masks(words: Array, side: int, share: tuple[float, float]) -> Array:
    """Return masks (n, side²) bool, True at masked patches, row by row.

    The share of masked patches is uniform in `share`. `words` (n, `WORDS`) uint64: each mask is a function of its own
    words alone.
    """
    unit = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    low, high = share
    wanted = np.rint((low + (high - low) * unit[:, 0]) * side * side).astype(np.int64)
    masks = np.zeros((len(words), side, side), bool)
    left = wanted.copy()
    line = np.arange(side)
    halves = words[:, 2:].astype("<u8").view("<u4").reshape(len(words), ROUNDS, 4) * 2.0**-32
    for area, aspect, top, first in np.moveaxis(halves, (1, 2), (0, 1)):
        size = LEAST + (left - LEAST) * area
        ratio = np.exp((2 * aspect - 1) * math.log(ASPECT))
        height, width = (np.rint(np.sqrt(np.maximum(size, 1) * r)).clip(1, side) for r in (ratio, 1 / ratio))
        top, first = (np.floor(place * (side - extent + 1)) for place, extent in ((top, height), (first, width)))
        rows = (line >= top[:, None]) & (line < (top + height)[:, None])
        columns = (line >= first[:, None]) & (line < (first + width)[:, None])
        new = rows[:, :, None] & columns[:, None, :] & ~masks
        more = new.sum((1, 2))
        taken = (left >= LEAST) & (more <= left)
        masks |= new & taken[:, None, None]
        left -= np.where(taken, more, 0)
    flat: Array = masks.reshape(len(words), side * side)
    _complete(flat, left, words[:, 1])
    return flat


def _complete(masks: Array, left: Array, words: Array) -> None:
    """Mask `left` more single patches; each mask's order of them is drawn from its word."""
    short = np.flatnonzero(left)
    order = _mixed(words[short, None] + np.arange(1, masks.shape[1] + 1, dtype=np.uint64)) >> np.uint64(1)
    order[masks[short]] = np.iinfo(np.uint64).max
    ranks = np.argsort(order, axis=1)
    for row, number, rank in zip(short, left[short], ranks, strict=True):
        masks[row, rank[:number]] = True


def _mixed(words: Array) -> Array:
    """Turn words that only count into words that look independent: splitmix64's finaliser (Steele et al. 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
