"""What `predict` makes of a core and writes: class map, probabilities, remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core._errors import BadInput
from runner_core._text import counted
from runner_core.protocols import Finding

from runner_ssmunet.figures import palette

Array = np.ndarray[Any, np.dtype[Any]]

DOUBTFUL = 0.5
"""Mean confidence over the tissue below which the user is warned."""


@dataclass(frozen=True)
class Segmented:
    """A core's prediction in its own grid.

    `classes` (H, W) uint8: labels, 0 where there is no tissue; `probabilities` (K, H, W) float16 of the network's
    outputs, 0 where there is no tissue; `tissue` (H, W) bool; `attention` (L,): what each wavenumber got, mean over the
    tissue (of a method without: empty).
    """

    classes: Array
    probabilities: Array
    tissue: Array
    attention: Array


def segmented(probabilities: Array, tissue: Array, labels: Array, attention: Array) -> Segmented:
    """From `probabilities` (K, H, W) and the label of each of the K outputs."""
    classes = np.where(tissue, labels[probabilities.argmax(0)], 0).astype(np.uint8)
    return Segmented(classes, np.where(tissue, probabilities, 0).astype(np.float16), tissue, attention)


def write(prediction: Segmented, key: str, folder: Path, names: Sequence[str], wavenumbers: Array) -> list[Path]:
    """KEY_classes.png (labels as a palette image, 0 for no tissue) and KEY_classes.npz: `classes` (H, W) uint8,
    `probabilities` (K, H, W) float16, `class_names` (K,), `wavenumbers` (L,) that the network read (cm⁻¹).

    `names`: of the network's outputs. Raises BadInput where the folder cannot be written to.
    """
    picture, arrays = folder / f"{key}_classes.png", folder / f"{key}_classes.npz"
    image = Image.fromarray(prediction.classes)
    image.putpalette(palette(int(max(prediction.classes.max(), len(names)))).ravel().tolist())
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        image.save(picture, "PNG")
        np.savez_compressed(
            arrays,
            allow_pickle=False,
            classes=prediction.classes,
            probabilities=prediction.probabilities,
            class_names=np.array(list(names)),
            wavenumbers=np.asarray(wavenumbers, np.float64),
        )
    except OSError as error:
        raise BadInput(f"{picture}: cannot be written: {error.strerror or error}") from error
    return [picture, arrays]


def shape(file: Path) -> list[int] | None:
    """Grid (H, W) of a file that `write` wrote; None of any other."""
    if file.name.endswith("_classes.png"):
        with Image.open(file) as image:
            return [image.height, image.width]
    if file.name.endswith("_classes.npz"):
        with np.load(file, allow_pickle=False) as arrays:
            return list(arrays["classes"].shape)
    return None


def remarks(prediction: Segmented, annotated: Array | None) -> Iterator[Finding]:
    """Notes on a prediction; `annotated` (H, W) bool: pixels with a label, where labels are known."""
    tissue = int(np.count_nonzero(prediction.tissue))
    if not tissue:
        yield Finding("tissue", "warning", "no tissue was found: nothing is predicted")
        return
    confidence = float(prediction.probabilities.max(0)[prediction.tissue].mean(dtype=np.float64))
    if confidence < DOUBTFUL:
        yield Finding("confidence", "warning", f"the mean probability of the predicted class is {confidence:.2f} only")
    off = 0 if annotated is None else int(np.count_nonzero(annotated & ~prediction.tissue))
    if off:
        text = f"{counted(off, 'annotated pixel')} off the tissue {'counts' if off == 1 else 'count'} as missed"
        yield Finding("tissue", "note", text)
