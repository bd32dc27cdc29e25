"""Inference on whole scans: the slices' probabilities, and one brain made of them."""

from __future__ import annotations

import numpy as np
from runner_core import Array, Arrays, Infer
from scipy import ndimage

from runner_brainunet import slices


def predict(prepared: Arrays, layout: slices.Layout, infer: Infer, neighbours: int, batch: int) -> Array:
    """Return the probability of brain (x, y, z) float32 on the network's grid, the mean over the slices' directions.

    `prepared` holds the record's slices (`BrainUNet.prepare`). `batch` slices are predicted at once. Empty slices are
    not predicted: they get 0.
    """
    rows = prepared["image"]
    out = np.zeros(rows.shape, np.float32)
    seen = np.flatnonzero(rows.any(axis=(1, 2)))
    stack = slices.windows(rows, neighbours)
    for first in range(0, len(seen), batch):
        part = seen[first : first + batch]
        out[part] = _sigmoid(infer({"image": stack[part]})["prediction"][:, 0])
    return layout.fuse(out)


def one_brain(mask: Array, fill_holes: bool = True) -> Array:
    """Return the largest component of `mask` (3-D bool), with its holes filled."""
    brain = _largest_component(mask)
    return np.asarray(ndimage.binary_fill_holes(brain)) if fill_holes else brain


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
