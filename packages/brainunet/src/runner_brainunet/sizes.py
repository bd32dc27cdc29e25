"""Compare the sizes that NIfTI headers promise with file, head and memory, before memory is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner_core import BadInput, refuse_if_memory_is_short, refuse_impossible_size, shape_text

VOXELS = 1 << 28
"""Most voxels of a scan: 0.35 mm over the whole head. A header that says more is wrong."""
SPAN = 3000.0
"""Most millimetres along an axis of a scan."""
LEAST = 5.0
"""Fewest millimetres along an axis of a scan: less than a mouse's brain."""


def refuse_size(path: Path, image: Any, size: Sequence[float]) -> None:
    """Raise BadInput if the header promises more voxels than a scan or its file can hold, or a scan of metres.

    `size` is that of a voxel (mm). Reading takes the memory that the header asks for, so this check comes first.
    """
    shape, there = image.shape[:3], path.stat().st_size
    if math.prod(shape) > VOXELS:
        raise BadInput(
            f"{path}: {shape_text(shape)} voxels by its header, more than any scan of a head has. Correct the "
            f"header, or "
            "crop the scan."
        )
    refuse_impossible_size(path, "its header", promised(image), there, packed=path.name.lower().endswith(".gz"))
    extent = [n * s for n, s in zip(shape, size, strict=True)]
    if max(extent) > SPAN or min(extent) < LEAST:
        what = "metres" if max(extent) > SPAN else f"less than {LEAST:g} mm"
        raise BadInput(
            f"{path}: {shape_text(shape)} voxels of {' × '.join(f'{s:g}' for s in size)} mm: {what} of a head. "
            f"Correct the "
            "voxel size, or its unit, in the header."
        )


def promised(image: Any) -> int:
    """Return the bytes from the file's start (unpacked) to the end of the voxels, by the header."""
    return int(image.dataobj.offset) + math.prod(image.shape) * int(image.get_data_dtype().itemsize)


def refuse_large(path: Path, shape: Sequence[int], why: str, bytes_a_voxel: int) -> None:
    """Raise OutOfSpace if voxels of this `shape` need more memory than is free; nothing has been read yet."""
    remedy = "Correct its header if that is wrong, or use a machine with more memory."
    refuse_if_memory_is_short(
        path, f"{shape_text(shape)} voxels {why} take", math.prod(map(int, shape)) * bytes_a_voxel, remedy
    )
