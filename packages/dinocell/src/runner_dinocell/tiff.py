"""Images in TIFF files, each one channel of a field: 16 bits stay 16 bits.

tifffile reads the rest of a truncated file and only logs that something is missing. So the page is checked before it is
read: all its strips or tiles must lie within the file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image
from runner_core import Array, BadInput, counted, refuse_if_memory_is_short, refuse_special_file, shape_text

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # the faults that it warns of are refused here
GREY = (np.uint8, np.uint16)
LARGEST = 1 << 28
"""Pixels beyond which a damaged header is more likely than a field of that size."""
_LARGE, _COPIES = 1 << 26, 3
"""Bytes from which an image is compared with free memory, and the number of copies of a field in memory."""
_AGAIN = "Fetch or export it again, or leave the field out."


def read(path: Path, together: int = 1, kinds: Sequence[Any] = GREY) -> Array:
    """Read the image (H, W), uint16 or uint8 or of other `kinds`; `together` is the number of images held at once.

    BadInput names the file, the fault and the remedy.
    """
    refuse_special_file(path)
    with _damage(path), tifffile.TiffFile(path) as tif:
        page = _only_page(path, tif, kinds)
        _refuse_large(path, page, together)
        parts = list(zip(page.dataoffsets, page.databytecounts, strict=True))
        if len(parts) < max(1, math.prod(page.chunked)):
            raise ValueError("parts of its data are missing")
        size = path.stat().st_size
        if any(length < 1 or offset < 8 or offset + length > size for offset, length in parts):
            raise ValueError("its data reach beyond the end of the file")
        return np.ascontiguousarray(page.asarray(), dtype=page.dtype.newbyteorder("="))


def read_labels(path: Path) -> Array:
    """Read a label image (H, W), TIFF or PNG, of unsigned or signed integers; raises BadInput as `read` does."""
    if path.suffix.lower() != ".png":
        return read(path, kinds=(*GREY, np.uint32, np.int32))
    refuse_special_file(path)
    with _damage(path), Image.open(path, formats=("PNG",)) as image:
        if image.mode not in ("L", "I", "I;16"):
            raise BadInput(f"{path}: an image of mode {image.mode}; labels are grey, one number for each cell.")
        if image.width * image.height > LARGEST:
            raise ValueError(f"{image.width} × {image.height} pixels")
        return np.asarray(image)


def write(path: Path, image: Array) -> None:
    """Write an image (H, W), uint16 or uint8."""
    tifffile.imwrite(path, image, photometric="minisblack", metadata=None)


def outline(path: Path) -> tuple[tuple[int, ...], int]:
    """Return height and width, and bits per pixel, from the header alone; raises BadInput as `read` does."""
    refuse_special_file(path)
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
    except Exception as error:  # tifffile and its decoders raise any exception
        if path.stat().st_size == 0:
            raise BadInput(f"{path}: the file is empty. {_AGAIN}") from error
        raise BadInput(f"{path}: truncated or damaged, or no TIFF file ({str(error)[:120]}). {_AGAIN}") from error


def _refuse_large(path: Path, page: tifffile.TiffPage, together: int) -> None:
    """Raise OutOfSpace if the field would not fit into memory: a small file may unpack to a huge image."""
    if page.nbytes > _LARGE:
        what = f"a field of {counted(together, 'channel')} of {shape_text(page.shape)} pixels takes"
        remedy = "Cut the images into smaller ones, or leave the field out."
        refuse_if_memory_is_short(path, what, _COPIES * together * page.nbytes, remedy)


def _only_page(path: Path, tif: tifffile.TiffFile, kinds: Sequence[Any] = GREY) -> tifffile.TiffPage:
    """Return the file's page if it holds one image of these types, else raise BadInput."""
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
            f"{path}: {shape_text(page.shape)} values, an image in colour or of several samples a pixel. Write each "
            f"channel "
            "to a file of its own, in grey."
        )
    if page.dtype not in kinds:
        raise BadInput(
            f"{path}: values of type {page.dtype}; unsigned integers of 16 bits (or 8) are read. Export the camera's "
            "own values, as 16-bit grey."
        )
    if page.size > LARGEST or not page.size:
        raise ValueError(f"{shape_text(page.shape)} pixels")
    return page
