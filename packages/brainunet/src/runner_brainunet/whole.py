"""Inference on whole scans: the slices' probabilities, and one brain made of them."""

from __future__ import annotations

import numpy as np
from runner_core import Array, Arrays, Infer
from scipy import ndimage

from runner_brainunet import slices


def predict(
    prepared: Arrays, layout: slices.Layout, infer: Infer, neighbours: int, batch: int, multiple: int = 1
) -> Array:
    """Return the probability of brain (x, y, z) float32 on the network's grid, the mean over the slices' directions.

    `prepared` holds the record's slices (`BrainUNet.prepare`). The network gets `batch` slices at once, and only the
    part around the head of each (`Layout.parts`). All else, and empty slices, get 0.
    """
    rows = prepared["image"]
    out = np.zeros(rows.shape, np.float32)
    seen = np.asarray(rows.any(axis=(1, 2)))
    stack = slices.windows(rows, neighbours)
    for block, height, width in layout.parts(multiple):
        numbers = block.start + np.flatnonzero(seen[block])
        for first in range(0, len(numbers), batch):
            some = numbers[first : first + batch]
            given = np.ascontiguousarray(stack[some, :, height, width])
            out[some, height, width] = _sigmoid(infer({"image": given})["prediction"][:, 0])
    return layout.fuse(out)


def one_brain(mask: Array, fill_holes: bool = True) -> Array:
    """Return the largest component of `mask` (3-D bool), with its holes filled."""
    brain = np.zeros(mask.shape, bool)
    near = _box(mask)  # nothing lies outside, so nothing outside can fill or part anything
    brain[near] = _largest_component(mask[near])
    if fill_holes:
        near = _box(brain)
        brain[near] = ndimage.binary_fill_holes(brain[near])
    return brain


def _box(mask: Array) -> tuple[slice, ...]:
    """Return the smallest box that holds a mask (3-D bool), an empty one if the mask is."""
    found = ndimage.find_objects(mask.view(np.uint8))
    return found[0] if found else (slice(0),) * mask.ndim


def _largest_component(mask: Array) -> Array:
    """Return the largest object of voxels that share faces. An empty mask stays empty."""
    labels, count = ndimage.label(mask)
    if count < 2:
        return mask.astype(bool)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return labels == int(sizes.argmax())


def _sigmoid(logits: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float32)))
