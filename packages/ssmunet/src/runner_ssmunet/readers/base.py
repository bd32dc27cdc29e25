"""A core as every reader returns it, and the checks that hold for every format."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from runner_core import BadInput, Json, counted, refuse_special_file, shape_text

from runner_ssmunet.drawings import Annotated, Remark

Array = np.ndarray[Any, np.dtype[Any]]
Units = Literal["absorbance", "transmittance", "percent"]
OPAQUE = 1e-4
"""Transmittance that counts as opaque: no detector tells less from nothing. Its absorbance is 4."""

DAMAGED = (
    OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, MemoryError, RuntimeError, SyntaxError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
"""Errors that NumPy raises for a damaged .npz or .npy file, found by damaging files at random."""


@dataclass(kw_only=True)
class Raw:
    """The content of a core's files, unchecked.

    `spectra` is (H, W, C), or None if only the rest was read. `shape` is its (H, W, C), if the file gives it without
    them. `units` are those of the spectra, as the file gives them.
    """

    wavenumbers: Array
    spectra: Array | None = None
    shape: tuple[int, ...] | None = None
    labels: Array | None = None
    tissue: Array | None = None
    meta: dict[str, Json] = field(default_factory=dict)
    units: Units = "absorbance"
    label_names: tuple[str, ...] = ()
    label_remarks: tuple[Remark, ...] = ()

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width (pixels), of the spectra or as the file gives them."""
        shape = self.shape if self.spectra is None else self.spectra.shape
        return (0, 0) if shape is None else (shape[0], shape[1])

    def annotate(self, found: Annotated) -> None:
        """Take labels that name their classes."""
        self.labels, self.label_names, self.label_remarks = found.labels, found.names, found.remarks


@dataclass(kw_only=True)
class Outline:
    """A core without its spectra, which is quick to read.

    `wavenumbers` (C,) float64, cm⁻¹, ascend. `labels` (H, W) int64 are the file's own, or None. `tissue` (H, W) is
    bool, or None. `meta` holds core_id, patient_id, slide_id and anything else in the file. `remarks` list changes made
    on reading. `label_names` are those of the labels 1, 2, … where a file names classes instead of numbering them;
    `label_remarks` say how such a file was read.
    """

    wavenumbers: Array
    labels: Array | None
    tissue: Array | None
    meta: dict[str, Json]
    remarks: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    label_remarks: tuple[Remark, ...] = ()


@dataclass(kw_only=True)
class Core(Outline):
    """A core with its `spectra` (H, W, C) float32, finite everywhere.

    They are 0 for NaN or infinite values of the file, which may occur off the tissue only. `measured` (H, W) bool marks
    the pixels without any such value.
    """

    spectra: Array
    measured: Array


def outline(raw: Raw, path: Path) -> Outline:
    """Check `raw` except for its spectra. Raises BadInput naming `path` and the fault."""
    wavenumbers, remarks = _ascending(raw.wavenumbers, path)
    labels = None if raw.labels is None else _whole_numbers(one_a_pixel(np.asarray(raw.labels), path, "labels"), path)
    tissue = None if raw.tissue is None else _mask(one_a_pixel(np.asarray(raw.tissue), path, "a tissue mask"), path)
    shape = raw.shape if raw.spectra is None else raw.spectra.shape
    if shape is not None:
        _same_shapes(shape, wavenumbers, path)
    grids = {"the image": None if shape is None else shape[:2], "the labels": None if labels is None else labels.shape}
    grids["the tissue mask"] = None if tissue is None else tissue.shape
    known = {name: grid for name, grid in grids.items() if grid is not None}
    first = next(iter(known), "")
    for name, grid in known.items():
        if grid != known[first]:
            verb = "are" if name == "the labels" else "is"
            raise BadInput(
                f"{path}: {name} {verb} {shape_text(grid)} pixels, {first} {shape_text(known[first])}. Both must lie "
                f"on one "
                "grid: transpose, crop or export one of them again"
                + (", or write landmarks of both into STEM.landmarks.csv." if verb == "are" else ".")
            )
    if raw.label_names and labels is not None:
        _refuse_unnamed(labels, raw.label_names, path)
    return Outline(
        wavenumbers=wavenumbers,
        labels=labels,
        tissue=tissue,
        meta=raw.meta,
        remarks=remarks,
        label_names=raw.label_names,
        label_remarks=raw.label_remarks,
    )


def core(raw: Raw, path: Path, units: Units | None = None) -> Core:
    """Check `raw`, and return it with absorbances on the ascending axis. Raises BadInput naming `path` and the fault.

    `units` are those of the spectra, in place of what the file says.
    """
    rest = outline(raw, path)
    if raw.spectra is None:
        raise ValueError("a core needs spectra")
    if raw.spectra.dtype.kind not in "iuf":
        raise BadInput(f"{path}: spectra of type {raw.spectra.dtype}; absorbances (real numbers) are needed.")
    with np.errstate(over="ignore"):
        spectra = raw.spectra.astype(np.float32, copy=False)
    if np.asarray(raw.wavenumbers).ravel()[0] > rest.wavenumbers[0]:
        spectra = spectra[..., ::-1]
    spectra = absorbance(spectra, units or raw.units)
    spectra, measured = finite(spectra, rest.tissue, path)
    return whole(rest, spectra, measured, path)


def whole(rest: Outline, spectra: Array, measured: Array, path: Path) -> Core:
    """Return the core of its parts; raise BadInput if nothing was measured."""
    if not measured.any():
        raise BadInput(f"{path}: every spectrum is NaN. Export the image again.")
    return Core(**vars(rest), spectra=spectra, measured=measured)


def absorbance(spectra: Array, units: Units) -> Array:
    """Return `spectra` as absorbances, −log₁₀ of the transmittance, which is taken as `OPAQUE` at least.

    >>> absorbance(np.array([100.0, 10.0, -1.0]), "percent") + 0.0
    array([0., 1., 4.])
    """
    if units == "absorbance":
        return spectra
    share = spectra * spectra.dtype.type(0.01) if units == "percent" else spectra
    return np.asarray(-np.log10(np.maximum(share, spectra.dtype.type(OPAQUE))))


def _refuse_unnamed(labels: Array, names: tuple[str, ...], path: Path) -> None:
    if labels.min() < 0 or labels.max() > len(names):
        raise BadInput(
            f"{path}: labels from {labels.min()} to {labels.max()}, and {counted(len(names), 'name')} of labels "
            "(label_names). Each label above 0 needs a name."
        )


def library(name: str, path: Path) -> Any:
    """Return the module `name`, which reads `path`. Raises BadInput naming the package to install if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise BadInput(
            f"{path}: reading this format needs the package {package}: `uv pip install {package}` adds it"
        ) from error


def existing(path: Path) -> Path:
    """Return `path`, or raise BadInput if there is no such file, or if it is a pipe, a socket or a device."""
    try:
        if refuse_special_file(path).is_file():
            return path
    except OSError as error:  # a name that is too long, a link to itself
        raise BadInput(f"{path}: cannot be read: {error.strerror}.") from error
    raise BadInput(f"{path}: no such file.")


def short(error: BaseException) -> str:
    """Return the first line of an error's text, else its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def merged(inner: Mapping[str, Json], beside: Mapping[str, Json], path: Path) -> dict[str, Json]:
    """Return the meta of a file and of the JSON beside it. Raises BadInput if they contradict each other."""
    for key in inner.keys() & beside.keys():
        if inner[key] != beside[key] and str(inner[key]) != str(beside[key]):
            raise BadInput(
                f"{path}: its own {key} is '{inner[key]}', the JSON file beside it says '{beside[key]}'. Correct one."
            )
    return {**beside, **inner}


def number(value: Array, path: Path) -> float:
    """Return the one number of `delta_cm1`. Raises BadInput if it is anything else."""
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise BadInput(f"{path}: 'delta_cm1' is {value.dtype} {value.shape}; one number (cm⁻¹) is needed.")
    return float(value.reshape(-1)[0])


def one_a_pixel(values: Array, path: Path, what: str) -> Array:
    """Return `values` if there is one per pixel (H, W), else raise BadInput. `what` names them in the message."""
    if values.ndim == 2:
        return values
    if _one_hot(values):
        raise BadInput(
            f"{path}: {what} of shape {values.shape} are one-hot; class numbers (rows × columns) are needed: "
            "y.argmax(-1) where channel 0 holds the unannotated pixels, else np.where(y.any(-1), y.argmax(-1) + 1, 0)."
        )
    raise BadInput(f"{path}: {what} of shape {values.shape}; one number for each pixel (rows × columns) is needed.")


def _one_hot(values: Array) -> bool:
    if values.ndim != 3 or values.shape[2] < 2 or values.dtype.kind not in "iufb":
        return False
    return bool(((values == 0) | (values == 1)).all() and (np.count_nonzero(values, axis=2) <= 1).all())


def _ascending(wavenumbers: Array, path: Path) -> tuple[Array, tuple[str, ...]]:
    axis = np.asarray(wavenumbers)
    if axis.ndim == 2 and 1 in axis.shape:  # as MATLAB writes a list
        axis = axis.ravel()
    if axis.dtype.kind not in "iuf" or axis.ndim != 1 or axis.size < 2:
        raise BadInput(
            f"{path}: its wavenumbers are {axis.dtype} {axis.shape}; a list of two numbers or more is needed."
        )
    axis = axis.astype(np.float64)
    if not np.isfinite(axis).all() or axis.min() <= 0:
        raise BadInput(f"{path}: a wavenumber is {_odd(axis):g}; all must be above 0 cm⁻¹.")
    if axis.max() < 50:
        raise BadInput(
            f"{path}: its axis runs from {axis[0]:g} to {axis[-1]:g}, as wavelengths in µm do; wavenumbers in cm⁻¹ "
            "are needed (10000 divided by the wavelength)."
        )
    steps = np.diff(axis)
    if (steps > 0).all():
        return axis, ()
    if (steps < 0).all():
        return axis[::-1].copy(), (f"wavenumbers fall from {axis[0]:g} to {axis[-1]:g}: turned round, spectra too",)
    place = int(np.flatnonzero((steps == 0) | (np.sign(steps) != np.sign(axis[-1] - axis[0])))[0])
    fault = "comes twice" if steps[place] == 0 else f"is followed by {axis[place + 1]:g}"
    raise BadInput(
        f"{path}: wavenumbers are neither ascending nor descending: number {place + 1}, {axis[place]:g} cm⁻¹, {fault}. "
        "Sort the axis, and the spectra with it, and drop what is double."
    )


def _odd(axis: Array) -> float:
    wrong = axis[~np.isfinite(axis)]
    return float(wrong[0] if wrong.size else axis.min())


def _same_shapes(shape: tuple[int, ...], wavenumbers: Array, path: Path) -> None:
    if len(shape) != 3 or min(shape) < 1:
        raise BadInput(
            f"{path}: spectra of shape {tuple(shape)}; three axes are needed, none of them empty: rows × columns × "
            "wavenumbers. A list of pixels is folded by X.reshape(rows, columns, wavenumbers)."
        )
    if shape[2] != wavenumbers.size:
        raise BadInput(
            f"{path}: {counted(shape[2], 'channel')} of spectra but {counted(wavenumbers.size, 'wavenumber')}. "
            "They must be as many: is this the axis of another file, or is the last axis not the spectrum?"
        )


def _whole_numbers(labels: Array, path: Path) -> Array:
    if labels.dtype.kind not in "iufb":
        raise BadInput(f"{path}: labels of type {labels.dtype}; whole numbers are needed, one class each.")
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == np.rint(labels))).all():
        wrong = labels[~(np.isfinite(labels) & (labels == np.rint(labels)))][0]
        raise BadInput(f"{path}: a label is {wrong:g}; whole numbers are needed, one class each.")
    return labels.astype(np.int64)


def _mask(tissue: Array, path: Path) -> Array:
    if tissue.dtype.kind not in "iufb":
        raise BadInput(f"{path}: a tissue mask of type {tissue.dtype}; true and false, or 1 and 0, are needed.")
    if tissue.dtype.kind == "f" and np.isnan(tissue).any():
        raise BadInput(f"{path}: the tissue mask has NaN values; true and false, or 1 and 0, are needed.")
    mask = tissue != 0
    if not mask.any():
        raise BadInput(
            f"{path}: its tissue mask is empty. Correct it, or leave it out (data.tissue amide1 finds the tissue)."
        )
    return mask


def finite(spectra: Array, tissue: Array | None, path: Path, first: int = 0) -> tuple[Array, Array]:
    """Return spectra with 0 in pixels with a NaN or infinite value, and the pixels that have none.

    Without a mask, a pixel of NaN only was not measured (instruments write missing tiles so); a pixel of NaN in part is
    a fault. `first` is the number of the first row, for messages.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(spectra.sum(-1)).all():  # finite sums have finite terms
            return spectra, np.ones(spectra.shape[:2], bool)
    finite = np.isfinite(spectra)
    measured = np.asarray(finite.all(-1))
    asked: Array = finite.any(-1) | ~np.isnan(spectra[..., 0]) if tissue is None else tissue
    wrong = asked & ~measured
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        where = "" if tissue is None else " of the tissue"
        raise BadInput(
            f"{path}: {counted(int(wrong.sum()), 'pixel')}{where} with NaN or infinite values, the first in row "
            f"{first + row}, column {column}. Mend them, or take these pixels out of tissue_mask."
        )
    return np.where(measured[..., None], spectra, np.float32(0)), measured
