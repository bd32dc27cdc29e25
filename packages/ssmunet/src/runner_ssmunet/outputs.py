"""A core's prediction, the files that `predict` writes of it, and remarks on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core import BadInput, Finding, Label, counted, replace_text, whole_file

from runner_ssmunet.classes import palette
from runner_ssmunet.drawings.colours import Colour
from runner_ssmunet.drawings.trace import to_geojson

Array = np.ndarray[Any, np.dtype[Any]]

DOUBTFUL = 0.5
"""Mean confidence over the tissue below which a warning is given."""


@dataclass
class SpectraPredictOptions:
    ome_tiff: bool = False
    """Also write classes and probabilities as KEY_classes.ome.tif, for QuPath, Fiji and OMERO."""
    geojson: bool = False
    """Also write the regions of each class as KEY_classes.geojson, annotations for QuPath."""


def refuse(options: SpectraPredictOptions) -> None:
    """Raise BadInput for options that cannot be met, whatever the core."""
    if options.ome_tiff and find_spec("tifffile") is None:
        raise BadInput("--ome-tiff writes by the package tifffile, which is not installed: uv pip install tifffile")


@dataclass(frozen=True)
class Segmented:
    """A core's prediction on its own grid.

    `classes` (H, W) uint8 holds labels, 0 off the tissue. `probabilities` (K, H, W) float16 are the network's outputs,
    0 off the tissue. `tissue` (H, W) is bool. `attention` (L,) is that of each wavenumber, mean over the tissue; it is
    empty for a method without attention.
    """

    classes: Array
    probabilities: Array
    tissue: Array
    attention: Array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the classes, for NumPy."""
        return np.array(self.classes, dtype)


def segmented(probabilities: Array, tissue: Array, labels: Array, attention: Array) -> Segmented:
    """Make a prediction from `probabilities` (K, H, W) and the label of each of the K outputs."""
    classes = np.where(tissue, labels[probabilities.argmax(0)], 0).astype(np.uint8)
    return Segmented(classes, np.where(tissue, probabilities, 0).astype(np.float16), tissue, attention)


def write(
    prediction: Segmented, key: str, folder: Path, names: Sequence[str], wavenumbers: Array,
    colours: Mapping[int, Colour] | None = None,
) -> list[Path]:  # fmt: skip
    """Write KEY_classes.png (labels as a palette image, 0 off the tissue) and KEY_classes.npz.

    The archive holds `classes` (H, W) uint8, `probabilities` (K, H, W) float16, `class_names` (K,), and `wavenumbers`
    (L,), the network's (cm⁻¹).

    `names` are those of the network's outputs, `colours` those of labels, if the data give any. Raises BadInput if the
    folder cannot be written to.
    """
    picture, arrays = folder / f"{key}_classes.png", folder / f"{key}_classes.npz"
    image = Image.fromarray(prediction.classes)
    image.putpalette(palette(int(max(prediction.classes.max(), len(names))), colours).ravel().tolist())
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        image.save(picture, "PNG")
        np.savez_compressed(
            arrays,
            classes=prediction.classes,
            probabilities=prediction.probabilities,
            class_names=np.array(list(names)),
            wavenumbers=np.asarray(wavenumbers, np.float64),
        )
    except OSError as error:
        raise BadInput(f"{picture}: cannot be written: {error.strerror or error}") from error
    return [picture, arrays]


def write_more(
    prediction: Segmented,
    key: str,
    folder: Path,
    names: Sequence[str],
    labels: Sequence[Label],
    options: SpectraPredictOptions,
) -> list[Path]:
    """Write what `options` ask for beside the files of `write`, and return the files.

    `names` are those of the network's outputs, `labels` those that `classes` may hold.
    """
    written = []
    try:
        if options.ome_tiff:
            written.append(folder / f"{key}_classes.ome.tif")
            with whole_file(written[-1]) as path:
                _write_ome(path, prediction, key, names, {label.name: label.colour for label in labels})
        if options.geojson:
            written.append(folder / f"{key}_classes.geojson")
            replace_text(written[-1], to_geojson(prediction.classes, labels, key))
    except OSError as error:
        raise BadInput(f"{written[-1]}: cannot be written: {error.strerror or error}") from error
    return written


def _write_ome(
    path: Path, prediction: Segmented, key: str, names: Sequence[str], colours: Mapping[str, Colour]
) -> None:
    """Write two images as OME-TIFF: classes (Y, X) uint8, and probabilities (C, Y, X) float32, a channel a class.

    Files of cores do not say how large a pixel is, so these do not either.
    """
    import tifffile

    shown = [colours.get(name, (255, 255, 255)) for name in names]
    packed = [int.from_bytes((*colour, 255), "big", signed=True) for colour in shown]  # OME's RGBA
    with tifffile.TiffWriter(path, ome=True) as file:
        about: dict[str, Any] = {
            "axes": "YX",
            "Name": f"{key}: classes",
            "Creator": f"runner-ssmunet {version('runner-ssmunet')}",
        }
        file.write(prediction.classes, metadata=about, photometric="minisblack", compression="zlib")
        channels = {"Name": list(names), "Color": packed}
        about = {"axes": "CYX", "Name": f"{key}: probabilities", "Channel": channels}
        values = prediction.probabilities.astype(np.float32)
        file.write(values, metadata=about, photometric="minisblack", compression="zlib")


def write_map(values: Array, stem: Path) -> list[Path]:
    """Write `values` (H, W) on the core's own grid as STEM.npz (float32)."""
    path = stem.with_name(f"{stem.name}.npz")
    np.savez_compressed(path, values=values.astype(np.float32))
    return [path]


def shape(file: Path) -> list[int] | None:
    """Return the grid (H, W) of a file from `write`; None for any other file."""
    if file.name.endswith("_classes.png"):
        with Image.open(file) as image:
            return [image.height, image.width]
    if file.name.endswith("_classes.npz"):
        with np.load(file, allow_pickle=False) as arrays:
            return list(arrays["classes"].shape)
    return None


def remarks(prediction: Segmented, annotated: Array | None) -> Iterator[Finding]:
    """Yield notes on a prediction. `annotated` (H, W) bool are the pixels with a label, if labels are known."""
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
