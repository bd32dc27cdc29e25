"""Volumes and labels in files: tif, npy, zarr, NIfTI. Axes are (depth, height, width).

Images are read as uint8. A 16-bit scan is read by its high byte (value >> 8): 0 … 65535 become 0 … 255, whatever part
of that range the scan uses. Labels are 0 background, 1 surface, 2 ignore (not annotated).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Location, counted, refuse_if_memory_is_short, refuse_special_file, shape_text

from runner_vesuvius import nifti, npy, tif, zarrs
from runner_vesuvius.labels import IGNORE, OWN, values_of
from runner_vesuvius.tif import write as write_tif

__all__ = [
    "SUFFIXES",
    "Outline",
    "coarseness",
    "highest",
    "outline",
    "read_image",
    "read_label",
    "read_truth",
    "refined",
    "refuse_large",
    "suffix",
    "volume_shape",
    "write_tif",
]

Outline = tuple[tuple[int, int, int], np.dtype[Any]]
"""Shape (D, H, W) and dtype."""

MOST = 1 << 31
"""Number of voxels that is too large for components and medial surfaces."""
LABELLED, UNLABELLED = 16, 8
"""Most bytes per voxel for preparing a labelled volume, and for predicting one."""
_CUT = "Cut the volume into pieces, or mend its header if that cannot be its size."
FLAT, WIDE = 4, 32
"""If a side has at most FLAT voxels and the others at least WIDE, it is not depth: it holds the channels of a picture.
"""

_FORMATS: dict[str, ModuleType] = {
    ".tif": tif, ".tiff": tif, ".npy": npy, ".zarr": zarrs, ".nii.gz": nifti, ".nii": nifti,
}  # fmt: skip
SUFFIXES = tuple(_FORMATS)


def suffix(name: str) -> str:
    """Return the end of a volume's file name as `SUFFIXES` has it, or "" for other files.

    >>> suffix("a/S1_2.NII.gz"), suffix("a/scan.v2.tif"), suffix("a/.tif"), suffix("a.gz")
    ('.nii.gz', '.tif', '', '')
    """
    name = name.rpartition("/")[2].lower()
    return next((end for end in SUFFIXES if name.endswith(end) and name != end), "")


def outline(path: Path) -> Outline:
    """Return shape and dtype from headers alone; BadInput names a missing or unreadable file, or no volume."""
    reader = _reader(path)
    with _damage_refused(path):
        shape, dtype = reader.outline(path)
        shape = tuple(map(index, shape))
    return volume_shape(path, shape), dtype


def read_image(path: Path) -> Array:
    """Read a scan (D, H, W) as uint8, read-only if it is memory-mapped.

    Raises BadInput with the file and the remedy if it is missing, truncated, damaged, no volume, larger than the
    memory, or of a type other than uint8 and uint16.
    """
    shape, dtype = outline(path)
    if dtype.newbyteorder("=") not in (np.uint8, np.uint16):
        raise BadInput(f"{path}: voxels of type {dtype}; scans are uint8 or uint16. {_how_to_convert(dtype)}")
    if _reader(path) is tif:
        tif.refuse_palette(path)
    volume = _read(path, shape, dtype)
    if volume.dtype == np.uint8:
        return volume
    high = np.empty(shape, np.uint8)
    for z, plane in enumerate(volume):
        high[z] = plane >> 8
    return high


def refuse_large(files: Mapping[str, Path]) -> None:
    """Raise BadInput if a record's volume has too many voxels to prepare it (or to predict it, without a label)."""
    path = files["image"]
    shape = outline(path)[0]
    if (voxels := math.prod(shape)) >= MOST:
        raise BadInput(
            f"{path}: {shape_text(shape)} voxels; fewer than 2³¹ (1290³) can be worked on at once. Cut it into "
            "pieces; `predict` and `train` take a zarr volume of any size (cache.mode auto or stream)."
        )
    bytes_each, work = (LABELLED, "preparing") if "label" in files else (UNLABELLED, "predicting")
    refuse_if_memory_is_short(path, f"{work} {shape_text(shape)} voxels takes", voxels * bytes_each, _CUT)


def highest(path: Path) -> int:
    """Return the highest value in the file, also of 16 bits; raises BadInput as `read_image` does."""
    return int(read_stored(path).max())


def read_stored(path: Path) -> Array:
    """Read a volume in the type that the file has; raises BadInput if it is missing, damaged or no volume."""
    return _read(path, *outline(path))


def read_label(path: Path) -> Array:
    """Read a label (D, H, W) as uint8: 0 background, 1 surface, 2 ignore; read-only if it is memory-mapped.

    Raises BadInput as `read_image` does, for types that are neither integers nor bool, and for other values.
    """
    shape, dtype = outline(path)
    if dtype.kind not in "iub":
        raise BadInput(
            f"{path}: labels of type {dtype}; integers are needed (0 background, 1 surface, 2 ignore). Save "
            "them as uint8."
        )
    volume = _read(path, shape, dtype)
    return as_label(path, volume, values_of(path))


def as_label(path: Location, volume: Array, meanings: Mapping[int, int]) -> Array:
    """Return the voxels of a label, integers or bool, as uint8: 0 background, 1 surface, 2 ignore.

    `meanings` gives what each value stands for (`labels.values_of`). Raises BadInput for other values.
    """
    volume = volume.view(np.uint8) if volume.dtype.kind == "b" else volume
    if not meanings.items() <= OWN.items():
        volume = _translated(path, volume, meanings)
    if volume.max() > IGNORE or volume.min() < 0:
        values, counts = np.unique(volume, return_counts=True)
        odd = [(v, n) for v, n in zip(values.tolist(), counts.tolist(), strict=True) if not 0 <= v <= IGNORE]
        shown = ", ".join(f"{value} in {counted(number, 'voxel')}" for value, number in odd[:5])
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        raise BadInput(
            f"{path}: holds {shown}{more}; labels are 0 background, 1 surface, 2 ignore. Write them so, or take the "
            "volume out."
        )
    return volume.astype(np.uint8, copy=False)


def _translated(path: Location, volume: Array, meanings: Mapping[int, int]) -> Array:
    """Return a label with the values that `meanings` gives its own."""
    found = np.zeros(volume.shape, np.uint8)
    left = volume.size
    for value, meaning in meanings.items():
        here = volume == value
        found[here] = meaning
        left -= int(np.count_nonzero(here))
    if left:
        odd = [str(value) for value in np.unique(volume).tolist() if value not in meanings]
        raise BadInput(
            f"{path}: holds {', '.join(odd[:5])}, which dataset.json does not list among its labels. Mend it."
        )
    return found


def read_truth(files: Mapping[str, Path], shape: tuple[int, ...]) -> Array:
    """Read the label among a record's files ("image", "label"); `shape` is the image's.

    Outside of the mask "annotated", if there is one, it is 2 (ignore). That may be coarser by whole factors.

    Raises BadInput as `read_label` does, and if the shapes do not go together.
    """
    label = read_label(files["label"])
    if label.shape != shape:
        raise BadInput(
            f"{files['label']}: {shape_text(label.shape)} voxels, but its image {files['image']} has "
            f"{shape_text(shape)}. They "
            "must be of one grid: is it another volume's label?"
        )
    if "annotated" in files:
        label = np.where(_annotated(files["annotated"], shape), label, np.uint8(IGNORE))
    return label


def _annotated(path: Path, shape: tuple[int, ...]) -> Array:
    """Return where a mask is not 0, in the label's voxels; it may be coarser."""
    mask = read_stored(path)
    factors = coarseness(path, mask.shape, shape)
    return refined(mask != 0, [slice(0, n) for n in shape], factors, mask.shape)


def coarseness(place: Location, own: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return by which factor a mask of shape `own` is coarser than a volume of `shape`, along each axis.

    Raises BadInput if it is not coarser by whole factors.
    """
    factors = [max(1, round(n / m)) for n, m in zip(shape, own, strict=True)]
    if any(m not in (n // factor, math.ceil(n / factor)) for n, m, factor in zip(shape, own, factors, strict=True)):
        raise BadInput(
            f"{place}: a mask of {shape_text(own)} voxels for a volume of {shape_text(shape)}. It must have that "
            "shape, or be coarser by a whole factor along each axis."
        )
    return factors


def refined(
    part: Array, region: Sequence[slice], factors: Sequence[int], own: Sequence[int], start: Sequence[int] = (0, 0, 0)
) -> Array:
    """Return a region of a volume from `part` of its coarser mask, which has shape `own`; `part` begins at `start`."""
    for axis, (wanted, factor, n, first) in enumerate(zip(region, factors, own, start, strict=True)):
        if factor > 1:
            part = np.take(part, np.minimum(np.arange(wanted.start, wanted.stop) // factor, n - 1) - first, axis)
    return part


def _read(path: Path, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    """Read the voxels of a file whose header gives `shape` and `dtype`; raise BadInput if memory cannot hold them."""
    reader = _reader(path)
    file = 0 if reader is npy and npy.mapped(path) else dtype.itemsize
    result = 1 if dtype.itemsize > 1 else 0
    refuse_if_memory_is_short(
        path, f"{shape_text(shape)} voxels of type {dtype} take", math.prod(shape) * (file + result), _CUT
    )
    with _damage_refused(path):
        volume: Array = reader.read(path)
        if volume.shape != shape or volume.dtype != dtype:
            raise ValueError(f"its header says {dtype} {shape}, it holds {volume.dtype} {volume.shape}")
    return volume


def _reader(path: Path) -> ModuleType:
    try:
        if not refuse_special_file(path).exists():
            raise BadInput(f"{path}: no such file. Restore it, or take the volume out.")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from error
    if not (end := suffix(path.name)):
        raise BadInput(f"{path}: not a format that is read here ({', '.join(_FORMATS)}). Convert it.")
    if path.is_dir() and end != ".zarr":
        raise BadInput(f"{path}: a folder; a file is needed.")
    return _FORMATS[end]


@contextmanager
def _damage_refused(path: Path) -> Iterator[None]:
    """Turn any exception into a BadInput that names the file, because decoders' errors cannot be listed."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"{path}: cannot be read ({os.strerror(error.errno)}).") from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BadInput(f"{path}: truncated or damaged ({reason}). Copy or write it again.") from error


def volume_shape(path: Location, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return `shape` if it is that of a volume, else raise BadInput."""
    if len(shape) == 4 and shape[3] in (2, 3, 4):
        raise BadInput(f"{path}: slices of {shape[3]} channels (colours?); a volume of grey values is needed.")
    if len(shape) != 3:
        hint = " Join the slices of a volume in one file." if len(shape) == 2 else ""
        raise BadInput(
            f"{path}: {len(shape)}-D ({shape_text(shape)}); a volume of depth × height × width is needed.{hint}"
        )
    if min(shape) < 1:
        raise BadInput(f"{path}: empty ({shape_text(shape)}). Copy or write it again.")
    if min(shape) <= FLAT and sorted(shape)[1] >= WIDE:
        raise BadInput(
            f"{path}: {shape_text(shape)}: a picture (of {counted(min(shape), 'channel')}?); a volume of grey "
            f"values, depth "
            "× height × width, is needed. Join the slices of a volume in one file."
        )
    return shape[0], shape[1], shape[2]


def _how_to_convert(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "Is this a mask, rather than a scan?"
    return (
        "Convert them, with the same range for every volume of a scroll: "
        "np.clip((v - low) / (high - low) * 255, 0, 255).astype(np.uint8)."
    )
