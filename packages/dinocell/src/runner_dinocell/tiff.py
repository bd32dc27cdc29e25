"""Images in TIFF files, one channel of a field each: 16 bits stay 16 bits.

tifffile reads what is left of a truncated file and only logs that something is missing. So the page is checked before
it is read: all its strips or tiles must lie within the file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tifffile
from runner_core import BadInput
from runner_core._text import times
from runner_core.protocols import Array

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it would warn of is refused here
LARGEST = 1 << 28
"""Pixels beyond which a damaged header is more likely than a field of that size."""
_AGAIN = "Fetch or export it again, or leave the field out."


def read(path: Path) -> Array:
    """The image (H, W), uint16 or uint8. Raises BadInput naming the file, what is wrong with it and what to do."""
    with _damage(path), tifffile.TiffFile(path) as tif:
        page = _only_page(path, tif)
        parts = list(zip(page.dataoffsets, page.databytecounts, strict=True))
        if len(parts) < max(1, math.prod(page.chunked)):
            raise ValueError("parts of its data are missing")
        size = path.stat().st_size
        if any(length < 1 or offset < 8 or offset + length > size for offset, length in parts):
            raise ValueError("its data reach beyond the end of the file")
        return np.ascontiguousarray(page.asarray(), dtype=page.dtype.newbyteorder("="))


def outline(path: Path) -> tuple[tuple[int, ...], int]:
    """Height and width, and bits a pixel, by the header alone. Raises BadInput as `read` does."""
    with _damage(path), tifffile.TiffFile(path) as tif:
        page = _only_page(path, tif)
        return page.shape, 8 * page.dtype.itemsize


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file. Restore it, or leave the field out.") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}).") from error
    except Exception as error:  # tifffile and its decoders raise all kinds
        if path.stat().st_size == 0:
            raise BadInput(f"{path}: the file is empty. {_AGAIN}") from error
        raise BadInput(f"{path}: truncated or damaged, or no TIFF file ({str(error)[:120]}). {_AGAIN}") from error


def _only_page(path: Path, tif: tifffile.TiffFile) -> tifffile.TiffPage:
    """The file's page, which holds one image of 8 or 16 bits. Raises BadInput for anything else."""
    if not len(tif.pages):
        raise ValueError("it has no page")
    page = tif.pages.first.aspage()
    if len(tif.pages) > 1:
        raise BadInput(
            f"{path}: {len(tif.pages)} pages. One file holds one channel at one depth: write each page to a file of "
            "its own."
        )
    if len(page.shape) != 2:
        raise BadInput(
            f"{path}: {times(page.shape)} values, an image in colour or of several samples a pixel. Write each channel "
            "to a file of its own, in grey."
        )
    if page.dtype not in (np.uint8, np.uint16):
        raise BadInput(
            f"{path}: values of type {page.dtype}; unsigned integers of 16 bits (or 8) are read. Export the camera's "
            "own values, as 16-bit grey."
        )
    if page.size > LARGEST or not page.size:
        raise ValueError(f"{times(page.shape)} pixels")
    return page
