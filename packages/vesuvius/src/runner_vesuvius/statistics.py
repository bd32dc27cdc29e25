"""Statistics of the training volumes: intensities, share of surface, best threshold; the scale of a volume's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Statistics, Store

from runner_vesuvius.labels import IGNORE


def fit(store: Store, training: Sequence[int], scrolls: Mapping[str, str] | None = None) -> Statistics:
    """Return the statistics of all labelled voxels of the training records.

    These are `mean` and `std` of the intensities, `surface_share`, and `threshold`: surface predicted from this
    intensity on has the highest Dice (`threshold_dice`). With `scrolls`, the scroll of each record by key, there are
    also `scrolls`, their names, and `scroll_scales` (scrolls, 2), the scale of each one's training volumes.

    Only the records' stored `histogram` is read: (3, 256), voxels of background, of surface and those that nobody
    annotated, by intensity. That is kilobytes instead of volumes. Raises BadInput if no record has a surface voxel, or
    none has background.
    """
    counts = np.zeros((2, 256), np.int64)
    by_scroll: dict[str, Array] = {}
    for record in training:
        own = store.arrays["histogram"].read(record).astype(np.int64)
        counts += own[:2]
        if scrolls is not None:
            scroll = scrolls.get(store.keys[record], store.keys[record])
            by_scroll[scroll] = by_scroll.get(scroll, 0) + own.sum(0)
    background, surface = counts.sum(1).tolist()
    if not surface or not background:
        missing = "surface (label 1)" if not surface else "background (label 0)"
        raise BadInput(
            f"none of the {len(training)} training volumes has a voxel of {missing}: there is nothing to learn. "
            "Look at the labels with `runner vesuvius check`, and at data.split."
        )
    values, known = np.arange(256), counts.sum(0)
    mean = float((values * known).sum() / known.sum())
    std = float(np.sqrt(((values - mean) ** 2 * known).sum() / known.sum()))
    threshold, dice = best_threshold(counts)
    share = surface / (surface + background)
    found = {"mean": mean, "std": max(std, 1.0), "surface_share": share, "threshold": threshold, "threshold_dice": dice}
    if scrolls is not None:
        found["scrolls"] = sorted(by_scroll)
        found["scroll_scales"] = np.stack([scale(by_scroll[name]) for name in found["scrolls"]])
    return found


def scale(counts: Array) -> Array:
    """Return mean and standard deviation (2,) float32 of the intensities above 0 among `counts` (256,)."""
    values, counts = np.arange(1, 256), counts[1:]
    total = max(1, int(counts.sum()))
    mean = (values * counts).sum() / total
    std = np.sqrt(((values - mean) ** 2 * counts).sum() / total)
    return np.array([mean, max(std, 1.0)], np.float32)


def scale_of(counts: Array, scroll: str, statistics: Statistics) -> Array:
    """Return the scale of a volume: its scroll's if that was trained on and is in `statistics`, else its own."""
    known = list(statistics.get("scrolls", ()))
    if scroll in known:
        return np.asarray(statistics["scroll_scales"], np.float32)[known.index(scroll)]
    return scale(counts)


def intensities(image: Any) -> Array:
    """Return the voxels of a volume (D, H, W) uint8 by intensity: (256,)."""
    return sum((np.bincount(np.asarray(plane).ravel(), minlength=256) for plane in image), np.zeros(256, np.int64))


def histogram(image: Array, label: Array | None) -> Array:
    """Count the voxels of each grey value by label, (3, 256) int64, in uint8 arrays of one shape.

    Without labels all voxels are ignored (the last row).
    """
    counts = np.zeros(3 * 256, np.int64)
    for z in range(len(image)):
        rows = np.uint16(IGNORE) if label is None else label[z].astype(np.uint16)
        counts += np.bincount((rows * 256 + image[z]).ravel(), minlength=3 * 256)
    return counts.reshape(3, 256)


def best_threshold(counts: Array) -> tuple[int, float]:
    """Return the intensity t for which `image >= t` has the highest Dice with the surface, and that Dice.

    `counts` (2, 256) are the voxels of background and surface by intensity.
    """
    found = counts[:, ::-1].cumsum(1)[:, ::-1]
    dice = 2 * found[1] / (found.sum(0) + counts[1].sum())
    best = int(dice.argmax())
    return best, float(dice[best])
