"""Read NIfTI files, naming every fault, and write them with the scanner's header intact."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel import orientations
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from runner_core import BadInput, counted, gzip_content, refuse_large_nifti_header, refuse_special_file

from runner_brainunet import sizes

logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # what it would warn of is refused here
Array = np.ndarray[Any, np.dtype[Any]]

SUFFIXES = (".nii.gz", ".nii", ".img")
"""Suffixes of files with voxels. The header of an .img is the .hdr beside it."""
_BYTES = 12
"""Bytes per voxel that reading needs besides the file's own: float32, and room for scaling."""
_UNREADABLE = (
    ImageFileError, HeaderDataError, OSError, EOFError, OverflowError, zlib.error, ValueError, struct.error,
)  # fmt: skip
"""Errors that nibabel raises for a damaged header."""
_MILLIMETRES = {0: 1.0, 1: 1000.0, 2: 1.0, 3: 0.001}
"""Millimetres per unit, by NIfTI's codes: unknown, metre, millimetre, micrometre."""


def stem(path: Path) -> str:
    """Return the file name without .nii, .nii.gz or .img.

    >>> stem(Path("a/sub-01_T1w.nii.gz"))
    'sub-01_T1w'
    """
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)]
    return path.name


def is_nifti(path: Path) -> bool:
    """Return whether a file holds voxels, by its name; an .img needs its .hdr beside it."""
    return path.name.lower().endswith(SUFFIXES) and all(part.exists() for part in header_of(path)[1:])


def header_of(path: Path) -> tuple[Path, ...]:
    """Return the file with the voxels, and its header file if there is one; `path` is either of them.

    >>> [p.name for p in header_of(Path("a.hdr"))], [p.name for p in header_of(Path("a.nii"))]
    (['a.img', 'a.hdr'], ['a.nii'])
    """
    if path.suffix.lower() not in (".img", ".hdr"):
        return (path,)
    voxels, header = (".IMG", ".HDR") if path.suffix.isupper() else (".img", ".hdr")
    return path.with_suffix(voxels), path.with_suffix(header)


def open_image(path: Path) -> Any:
    """Return the nibabel image of a 3-D NIfTI file, its data not yet read.

    A 4-D file with a last axis of 1 is accepted too. Analyze files (.img with .hdr) count as NIfTI. Raises BadInput
    naming the file if it is missing, not NIfTI, of another dimension, of a colour or complex type, without a usable
    affine, of a size that no head has, or too large for the free memory.
    """
    for part in header_of(path):
        if not refuse_special_file(part).is_file():
            raise BadInput(f"{part}: no such file.")
    try:
        refuse_large_nifti_header(header_of(path)[-1])
        image = nibabel.load(path)
    except _UNREADABLE as error:
        raise BadInput(f"{path}: not a readable NIfTI file ({_short(error)}).") from error
    image = _as_nifti(image, path)
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
    if _unit(image) not in _MILLIMETRES:
        raise BadInput(f"{path}: its header's unit of length is {_unit(image)}, which is none of NIfTI's. Correct it.")
    sizes.refuse_size(header_of(path)[0], image, spacing(image))
    sizes.refuse_large(path, shape, "as its header says", dtype.itemsize + _BYTES)
    return image


def is_analyze(path: Path) -> bool:
    """Return whether an .img has an Analyze header, which does not say where left and right are."""
    return path.suffix.lower() == ".img" and not isinstance(nibabel.load(path), nibabel.Nifti1Pair)


def _as_nifti(image: Any, path: Path) -> Any:
    """Turn an Analyze image into NIfTI, its data still unread. Raises BadInput for another format."""
    if isinstance(image, nibabel.Nifti1Pair):
        return image
    if isinstance(image, nibabel.AnalyzeImage):
        header = nibabel.Nifti1Header.from_header(image.header, check=False)
        header.set_xyzt_units("mm")
        return nibabel.Nifti1Image(image.dataobj, image.affine, header)
    raise BadInput(f"{path}: a {type(image).__name__}, not a NIfTI file.")


def millimetres(image: Any) -> float:
    """Return the mm per unit of the image's affine (its header's spatial unit)."""
    return _MILLIMETRES[_unit(image)]


def _unit(image: Any) -> int:
    return int(image.header["xyzt_units"]) & 7


def spacing(image: Any) -> tuple[float, ...]:
    """Return the size of a voxel (mm) along each axis of the array."""
    size = np.sqrt((np.asarray(image.affine, float)[:3, :3] ** 2).sum(0)) * millimetres(image)
    return tuple(float(s) for s in size)


def read_data(image: Any, path: Path) -> Array:
    """Return the voxels (x, y, z) as float32, scaled by the header.

    Raises BadInput if the file is truncated or damaged, or if a voxel is NaN or infinite.
    """
    try:
        if path.name.lower().endswith(".gz"):
            # whole, so that the checksum at the file's end is read: nibabel stops before it
            image = type(image).from_bytes(gzip_content(path, sizes.promised(image)))
        data = np.asarray(image.dataobj, dtype=np.float32)
    except (OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: truncated or damaged ({_short(error)}). Copy or download it again.") from error
    data = data.reshape(data.shape[:3])
    bad = data.size - int(np.count_nonzero(np.isfinite(data)))
    if bad:
        raise BadInput(f"{path}: {counted(bad, 'voxel')} NaN or infinite: replace them first, by 0, say.")
    return data


def read_scan(path: Path) -> tuple[Any, Array]:
    """Return the image and voxels of a scan. Raises BadInput if all voxels are equal, too."""
    image = open_image(path)
    data = read_data(image, path)
    if float(data.min()) == float(data.max()):
        raise BadInput(f"{path}: every voxel is {float(data.min()):g}; there is no head in it.")
    return image, data


def read_mask(path: Path, scan: Any, scan_path: Path) -> Array:
    """Return the brain mask (x, y, z) bool on the scan's grid.

    Raises BadInput if the mask is empty, covers everything, or lies on another grid than the scan.
    """
    return brain_of(read_mask_values(path, scan, scan_path), path)


def read_mask_values(path: Path, scan: Any, scan_path: Path) -> Array:
    """Return a mask's values (x, y, z) on the scan's grid.

    The mask's axes may have another order or direction, as fMRIPrep's have. Raises BadInput if its voxels do not lie
    on those of the scan.
    """
    image = open_image(path)
    turn = orientations.io_orientation(np.linalg.inv(scan.affine) @ image.affine)
    shape = tuple(image.shape[:3])
    turned = tuple(shape[int(axis)] for axis in np.argsort(turn[:, 0])) if not np.isnan(turn).any() else shape
    if turned != scan.shape[:3]:
        raise BadInput(
            f"{path}: the mask's shape {shape} is not the scan's {scan.shape[:3]} ({scan_path.name}). "
            "Resample the mask onto the scan."
        )
    affine = image.affine @ orientations.inv_ornt_aff(turn, shape)
    distance = grid_distance(affine, scan.affine, scan.shape[:3]) * millimetres(scan)
    if distance > 0.5:
        raise BadInput(
            f"{path}: the mask's affine puts its voxels up to {distance:.1f} mm away from the scan's "
            f"({scan_path.name}). Resample the mask onto the scan, or correct its header."
        )
    return np.ascontiguousarray(orientations.apply_orientation(read_data(image, path), turn))


def threshold(values: Array) -> float:
    """Return the value above which a mask's voxels are brain: 0.5 if no value is above 1, else 0."""
    return 0.5 if values.max() <= 1 else 0


def brain_of(values: Array, path: Path) -> Array:
    """Return the brain (bool) in a mask's values. Raises BadInput if it is empty or covers everything."""
    mask = values > threshold(values)
    if not mask.any():
        raise BadInput(f"{path}: the mask is empty.")
    if mask.all():
        raise BadInput(f"{path}: the mask covers the whole volume.")
    return mask


def grid_distance(a: Array, b: Array, shape: tuple[int, ...]) -> float:
    """Return the largest distance between the corners of a grid under two affines."""
    corners = np.array(np.meshgrid(*[(0, n - 1) for n in shape], [1], indexing="ij")).reshape(4, -1)
    return float(np.linalg.norm(((a - b) @ corners)[:3], axis=0).max())


def write_arrays(arrays: Mapping[str, Array], spacing: tuple[float, ...] | None, path: Path) -> Path:
    """Write a scan that was given as `image` (X, Y, Z), with `affine` (4, 4) or its spacing in mm, and return the path.

    Without an affine, the axes point right, anterior, superior. Raises BadInput that says what is needed.
    """
    if unknown := sorted({*arrays} - {"image", "affine"}) or (["no image"] if "image" not in arrays else []):
        raise BadInput(f"{unknown[0]}: a scan is given as an array (X, Y, Z), or as {{'image': …, 'affine': …}}")
    image, affine = arrays["image"], arrays.get("affine")
    if image.dtype == bool:
        raise BadInput("the array is of true and false, as a mask is: give the scan, as numbers")
    if image.ndim != 3 or image.dtype.kind not in "iuf":
        raise BadInput(f"the array has shape {image.shape} and type {image.dtype}: a scan is (X, Y, Z), of numbers")
    if affine is None:
        if spacing is None:
            raise BadInput(
                "give the size of a voxel in mm, spacing=(x, y, z), or the affine: {'image': …, 'affine': …}"
            )
        if len(spacing) not in (1, 3):
            raise BadInput(f"spacing has {len(spacing)} numbers: a scan needs 3, (x, y, z) in mm, or one for all axes")
        affine = np.diag([*np.broadcast_to(np.array(spacing), 3), 1.0])
    elif affine.shape != (4, 4):
        raise BadInput(f"the affine has shape {affine.shape}: it is (4, 4), from voxels to mm")
    if (image.dtype.kind in "iu" and image.dtype.itemsize == 8) or image.dtype == np.float16:
        image = image.astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(image, affine.astype(np.float64)), path)
    return path


def write_like(image: Any, data: Array, path: Path, dtype: type = np.uint8) -> Path:
    """Write `data` (the image's 3-D shape) as `dtype` with the image's affines, codes, units and extensions."""
    header = image.header.copy()
    header.set_data_dtype(dtype)
    header.set_slope_inter(1, 0)
    header["cal_min"], header["cal_max"] = 0, 1
    return _save(image, header, data.astype(dtype), path)


def write_masked(image: Any, mask: Array, path: Path) -> Path:
    """Write the scan with 0 outside `mask`, in its own voxel type and scaling: inside, not a bit changes.

    If that type and scaling have no 0 (unsigned integers with an offset, for example), the scaled values are written
    as float32.
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


def write_plain(image: Any, data: Array, path: Path) -> Path:
    """Write `data` (x, y, z) with the image's affine in mm, and nothing else of its header.

    Whole numbers that fit are stored as int16 (uint8 stays), all else as float32.
    """
    affine = image.affine.copy()
    affine[:3] *= millimetres(image)
    if data.dtype != np.uint8:
        small = np.iinfo(np.int16)
        whole = small.min <= data.min() and data.max() <= small.max and bool((data == np.rint(data)).all())
        data = data.astype(np.int16 if whole else np.float32)
    out = nibabel.Nifti1Image(data, affine)
    for form in (out.set_sform, out.set_qform):
        form(affine, 1)
    out.header.set_xyzt_units("mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(out, path)
    return path


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
