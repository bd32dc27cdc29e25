"""Inference on whole scans: the slices' probabilities, and one brain made of them."""

from __future__ import annotations

import numpy as np
from runner_core import Array, Arrays, Infer
from scipy import ndimage

from runner_brainunet import slices


def predict(prepared: Arrays, layout: slices.Layout, infer: Infer, neighbours: int, flip: bool, batch: int) -> Array:
    """Return the probability of brain (x, y, z) float32 on the network's grid, the mean over the views.

    `prepared` holds the record's slices (`BrainUNet.prepare`). `batch` slices are predicted at once. With `flip`, the
    mirrored slices are predicted too, and the two answers averaged. Empty slices are not predicted: they get 0.
    """
    rows, view = prepared["image"], prepared["view"][:, 0]
    out = np.zeros(rows.shape, np.float32)
    seen = np.flatnonzero(rows.any(axis=(1, 2)))
    stack = slices.windows(rows, neighbours)
    for first in range(0, len(seen), batch):
        part = seen[first : first + batch]
        images = stack[part]
        answers = [_sigmoid(infer({"image": images})["prediction"][:, 0])]
        if flip:
            answer = _sigmoid(infer({"image": slices.mirror(images, view[part])})["prediction"])
            # the middle slice of a sagittal window stays where it is: only the others change places
            answers.append(slices.mirror(answer, view[part])[:, 0])
        out[part] = np.mean(answers, axis=0)
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
