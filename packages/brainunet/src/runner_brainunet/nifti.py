"""NIfTI files: read with every fault named, and written so that the scanner's header survives."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from runner_core._errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]

SUFFIXES = (".nii.gz", ".nii")
_MILLIMETRES = {"meter": 1000.0, "mm": 1.0, "micron": 0.001, "unknown": 1.0}


def stem(path: Path) -> str:
    """File name without .nii or .nii.gz.

    >>> stem(Path("a/sub-01_T1w.nii.gz"))
    'sub-01_T1w'
    """
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return path.name[: -len(suffix)]
    return path.name


def open_image(path: Path) -> Any:
    """nibabel image of a 3-D NIfTI file (4-D with a last axis of 1 too), its data not yet read.

    Raises BadInput naming the file when it is missing, no NIfTI, of another dimension, of a colour or complex
    type, or without a usable affine.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file.")
    try:
        image = nibabel.load(path)
    except (ImageFileError, HeaderDataError, OSError, EOFError, zlib.error, ValueError) as error:
        raise BadInput(f"{path}: not a readable NIfTI file ({_short(error)}).") from error
    if not isinstance(image, nibabel.Nifti1Pair):
        raise BadInput(f"{path}: a {type(image).__name__}, not a NIfTI file.")
    shape = image.shape
    if len(shape) == 4 and shape[3] == 1:
        shape = shape[:3]
    if len(shape) != 3:
        what = f"{shape[3]} volumes" if len(shape) == 4 else f"{len(shape)} dimensions"
        raise BadInput(f"{path}: a {len(image.shape)}-D file with {what}; one 3-D volume is needed. Extract one first.")
    if min(shape) < 2:
        raise BadInput(f"{path}: shape {tuple(shape)}: a volume needs at least 2 voxels along each axis.")
    dtype = image.get_data_dtype()
    if dtype.kind not in "iuf":
        raise BadInput(f"{path}: voxels of type {dtype}; grey values (integers or floats) are needed.")
    affine = image.affine
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise BadInput(f"{path}: its affine is singular or not finite, so that left, right and size are unknown.")
    return image


def millimetres(image: Any) -> float:
    """mm per unit of the image's affine (its header's spatial unit)."""
    return _MILLIMETRES.get(image.header.get_xyzt_units()[0], 1.0)


def spacing(image: Any) -> tuple[float, ...]:
    """Size of a voxel (mm) along each axis of the array."""
    size = np.sqrt((np.asarray(image.affine, float)[:3, :3] ** 2).sum(0)) * millimetres(image)
    return tuple(float(s) for s in size)


def read_data(image: Any, path: Path) -> Array:
    """Voxels (x, y, z) as float32, scaled as the header says. Raises BadInput: truncated, damaged, NaN, infinite."""
    try:
        if path.name.endswith(".gz"):
            # whole, so that the checksum at the file's end is read: nibabel stops before it
            image = type(image).from_bytes(gzip.decompress(path.read_bytes()))
        data = np.asarray(image.dataobj, dtype=np.float32)
    except (OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: truncated or damaged ({_short(error)}). Copy or download it again.") from error
    data = data.reshape(data.shape[:3])
    bad = data.size - int(np.count_nonzero(np.isfinite(data)))
    if bad:
        raise BadInput(f"{path}: {bad} voxels are NaN or infinite. Replace them (by 0, say) first.")
    return data


def read_scan(path: Path) -> tuple[Any, Array]:
    """Image and voxels of a scan. Raises BadInput also when all voxels are equal."""
    image = open_image(path)
    data = read_data(image, path)
    if float(data.min()) == float(data.max()):
        raise BadInput(f"{path}: every voxel is {float(data.min()):g}; there is no head in it.")
    return image, data


def read_mask(path: Path, scan: Any, scan_path: Path) -> Array:
    """Brain mask (x, y, z) bool on the scan's grid.

    Raises BadInput when the mask is empty, everything, or lies on another grid than the scan.
    """
    return brain_of(read_mask_values(path, scan, scan_path), path)


def read_mask_values(path: Path, scan: Any, scan_path: Path) -> Array:
    """A mask's values (x, y, z) as the file has them. Raises BadInput when it lies on another grid than the scan."""
    image = open_image(path)
    if image.shape[:3] != scan.shape[:3]:
        raise BadInput(
            f"{path}: the mask's shape {image.shape[:3]} is not the scan's {scan.shape[:3]} ({scan_path.name}). "
            "Resample the mask onto the scan."
        )
    distance = grid_distance(image.affine, scan.affine, scan.shape[:3]) * millimetres(scan)
    if distance > 0.5:
        raise BadInput(
            f"{path}: the mask's affine puts its voxels up to {distance:.1f} mm away from the scan's "
            f"({scan_path.name}). Resample the mask onto the scan, or correct its header."
        )
    return read_data(image, path)


def threshold(values: Array) -> float:
    """What a mask's values are above in the brain: half of 1 where none is above 1, else 0."""
    return 0.5 if values.max() <= 1 else 0


def brain_of(values: Array, path: Path) -> Array:
    """The brain (bool) in a mask's values. Raises BadInput when it is nothing, or everything."""
    mask = values > threshold(values)
    if not mask.any():
        raise BadInput(f"{path}: the mask is empty.")
    if mask.all():
        raise BadInput(f"{path}: the mask covers the whole volume.")
    return mask


def grid_distance(a: Array, b: Array, shape: tuple[int, ...]) -> float:
    """Largest distance between the places that two affines give the corners of a grid."""
    corners = np.array(np.meshgrid(*[(0, n - 1) for n in shape], [1], indexing="ij")).reshape(4, -1)
    return float(np.linalg.norm(((a - b) @ corners)[:3], axis=0).max())


def write_like(image: Any, data: Array, path: Path) -> Path:
    """Write `data` (uint8, the image's 3-D shape) with the image's header: affines, codes, units, extensions kept."""
    header = image.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"], header["cal_max"] = 0, 1
    return _save(image, header, data.astype(np.uint8), path)


def write_masked(image: Any, mask: Array, path: Path) -> Path:
    """Write the scan with 0 outside `mask`, in its own voxel type and scaling: inside, not a bit is changed.

    Where that type and scaling have no 0 (unsigned integers with an offset, say), the scaled values as float32.
    """
    header = image.header.copy()
    slope, inter = image.dataobj.slope, image.dataobj.inter
    data = np.asarray(image.dataobj.get_unscaled()).reshape(mask.shape)
    zero = -inter / slope
    if data.dtype.kind in "iu" and not (zero == round(zero) and _fits(zero, data.dtype)):
        data, slope, inter, zero = np.asarray(image.dataobj, np.float32).reshape(mask.shape), 1, 0, 0
        header.set_data_dtype(np.float32)
    header.set_slope_inter(slope, inter)
    header["cal_min"], header["cal_max"] = 0, 0
    return _save(image, header, np.where(mask, data, data.dtype.type(zero)), path)


def _fits(value: float, dtype: Any) -> bool:
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def _save(image: Any, header: Any, data: Array, path: Path) -> Path:
    # affine None: nibabel then leaves the header's own sform and qform, and their codes, as they are
    single = {nibabel.Nifti2Image: nibabel.Nifti2Image, nibabel.Nifti2Pair: nibabel.Nifti2Image}
    kind = single.get(type(image), nibabel.Nifti1Image)
    out = kind(data.reshape(image.shape), None, header)
    out.header.set_slope_inter(*header.get_slope_inter())  # the constructor resets them
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(out, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({_short(error)}).") from error
    return path


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
