"""Volumes in NIfTI files (.nii, .nii.gz), with axes as nnU-Net's readers SimpleITKIO and NibabelIO have them.

The file's array is (x, y, z), the volume (z, y, x). As there, the affine neither turns nor mirrors a volume.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from runner_core import Array, BadInput, gzip_content, refuse_impossible_size, refuse_large_nifti_header

_AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])
"""What SimpleITK writes for voxels of 1 mm whose axes it does not turn."""


def outline(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype from the header.

    Raises BadInput if the header scales the values or promises more than the file holds, any exception if it is
    damaged.
    """
    shape, dtype, _ = _header(path)
    return shape, dtype


def read(path: Path) -> Array:
    """Return the volume, read-only, as the file stores it; raise as `outline` does."""
    shape, dtype, offset = _header(path)
    count = math.prod(shape)
    packed = path.suffix.lower() == ".gz"
    content: Any = gzip_content(path, offset + count * dtype.itemsize) if packed else np.memmap(path, mode="r")
    return np.frombuffer(content, dtype, count, offset).reshape(shape)


def write(path: Path, volume: Array) -> None:
    """Write a volume (D, H, W) with voxels of 1 mm; raises OSError if it cannot be written."""
    image = nibabel.Nifti1Image(volume.T, _AFFINE)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape (z, y, x), dtype, and the first voxel's place in the unpacked file."""
    refuse_large_nifti_header(path)
    image = nibabel.load(path)
    if not isinstance(image, nibabel.Nifti1Image):
        raise ValueError(f"a {type(image).__name__}, no NIfTI file of one part")
    data: Any = image.dataobj
    if (data.slope, data.inter) != (1, 0):
        raise BadInput(
            f"{path}: its header scales the values (· {data.slope:g} + {data.inter:g}); stored whole numbers are "
            "needed. Save it as uint8, without scaling."
        )
    shape, dtype = tuple(map(int, image.shape[::-1])), np.dtype(image.get_data_dtype())
    promised = int(data.offset) + math.prod(shape) * dtype.itemsize
    refuse_impossible_size(path, "its header", promised, path.stat().st_size, packed=path.suffix.lower() == ".gz")
    return shape, dtype, int(data.offset)
