"""Volumes in tif files, one page per slice: LZW as the challenge's, or any compression that tifffile reads.

tifffile reads the rest of a truncated file and only logs that something is missing. So the file is checked first: the
chain of pages is whole, pages are alike, and all of their strips or tiles lie within the file.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tifffile
from runner_core import Array, BadInput, counted, whole_file

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # the faults that it warns of are refused here


_MOST_PAGES = 1 << 15


def outline(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype from the chain of pages and the first page.

    Raises BadInput for a picture in colours and for more axes than a volume has, any exception for a damaged file.
    """
    count = _count_pages(path)
    with tifffile.TiffFile(path, _multifile=False) as tif:
        first = tif.pages.first.aspage()
        if first.samplesperpixel > 1:
            kind = getattr(first.photometric, "name", first.photometric)
            raise BadInput(
                f"{path}: {first.samplesperpixel} values a pixel ({kind}): a picture in colours or of several "
                "channels; a volume of grey values is needed."
            )
        _refuse_axes(path, tif)
        return _shape(count, first), np.dtype(first.dtype)


def refuse_palette(path: Path) -> None:
    """Raise BadInput unless a pixel's value is its brightness: in a palette image, it is the number of a colour."""
    with tifffile.TiffFile(path) as tif:
        first = tif.pages.first.aspage()
        colours = first.colormap
        if first.photometric == tifffile.PHOTOMETRIC.PALETTE and colours is not None and (colours != colours[0]).any():
            raise BadInput(
                f"{path}: a palette image: its values are the numbers of colours. If they are grey values all the "
                "same, save it without the colour table (ImageJ: Image > Lookup Tables > Grays)."
            )


def read(path: Path) -> Array:
    """Read the volume (D, H, W), or whatever shape the pages have.

    Raises any exception for a damaged file, ValueError for pages that differ.
    """
    count, size = _count_pages(path), path.stat().st_size
    with tifffile.TiffFile(path) as tif:
        pages = [page.aspage() for page in tif.pages]
        if len(pages) != count:
            raise ValueError(f"{len(pages)} of {count} pages can be read")
        _check(pages, size)
        array: Array = tif.asarray(key=slice(None))
        return array.reshape(_shape(count, pages[0]))


def write(path: Path, volume: Array) -> None:
    """Write a volume (D, H, W) uint8 in the challenge's format, one LZW page per slice: whole or not at all.

    Raises ValueError for anything else, OSError if it cannot be written.
    """
    if volume.ndim != 3 or volume.dtype != np.uint8 or not volume.size:
        raise ValueError(f"{path.name}: a volume (D, H, W) of uint8 is written, not {volume.dtype} {volume.shape}")
    with whole_file(path) as temporary:
        tifffile.imwrite(temporary, volume, photometric="minisblack", compression="lzw", metadata=None)


def _shape(count: int, page: tifffile.TiffPage) -> tuple[int, ...]:
    return tuple(page.shape) if count == 1 else (count, *page.shape)


def _refuse_axes(path: Path, tif: tifffile.TiffFile) -> None:
    """Raise BadInput if ImageJ, OME or tifffile itself report more axes than depth for the pages."""
    if not (tif.is_imagej or tif.is_ome or tif.is_shaped):
        return
    series = tif.series[0]
    axes = [f"{name} {size}" for name, size in zip(series.axes, series.shape, strict=True) if size > 1]
    if len(axes) > 3:
        raise BadInput(
            f"{path}: {len(axes)} axes ({', '.join(axes)}): several channels or times in one file. Write one volume a "
            "file."
        )


def _check(pages: Sequence[tifffile.TiffPage], size: int) -> None:
    """Raise ValueError unless all pages are like the first and their data lie in a file of `size` bytes."""
    first = pages[0]
    for number, page in enumerate(pages):
        if page.shape != first.shape or page.dtype != first.dtype:
            raise ValueError(
                f"page {number + 1} is {page.dtype} {page.shape}, the first is {first.dtype} {first.shape}: the slices "
                "of a volume have one size and type"
            )
        parts = list(zip(page.dataoffsets, page.databytecounts, strict=True))
        if len(parts) < max(1, math.prod(page.chunked)):
            raise ValueError(f"page {number + 1} lacks parts of its data")
        if any(length < 1 or offset < 8 or offset + length > size for offset, length in parts):
            raise ValueError(f"the data of page {number + 1} reach beyond the end of the file")
        bits = page.size * page.bitspersample
        if page.compression == tifffile.COMPRESSION.NONE and 8 * sum(length for _, length in parts) < bits:
            raise ValueError(f"page {number + 1} holds fewer voxels than its header says")


def _count_pages(path: Path) -> int:
    """Count the pages in the file's chain of directories; raise ValueError if it breaks off or runs in a circle."""
    size = path.stat().st_size
    with path.open("rb") as file:
        order, wide, offset = _header(file)
        entry, word, count_format = (20, 8, "Q") if wide else (12, 4, "H")
        head = struct.calcsize(order + count_format)
        seen: set[int] = set()
        while offset:
            if offset in seen:
                raise ValueError("its pages run in a circle")
            after = offset + head
            if after <= size:
                file.seek(offset)
                after += entry * struct.unpack(order + count_format, file.read(head))[0]
            if after + word > size:
                raise ValueError(f"it breaks off after {counted(len(seen), 'page')}")
            seen.add(offset)
            if len(seen) > _MOST_PAGES:
                raise ValueError(f"it has more than {_MOST_PAGES:,} pages")
            file.seek(after)
            offset = struct.unpack(order + ("Q" if wide else "I"), file.read(word))[0]
        if not seen:
            raise ValueError("it has no pages")
        return len(seen)


def _header(file: BinaryIO) -> tuple[str, bool, int]:
    """Return the byte order, whether the file is BigTIFF, and the position of the first directory."""
    head = file.read(16).ljust(16, b"\0")
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    version = struct.unpack(f"{order}H", head[2:4])[0] if order else 0
    if order is None or version not in (42, 43):
        raise ValueError("not a tif file")
    wide = version == 43
    return order, wide, struct.unpack(order + "Q", head[8:])[0] if wide else struct.unpack(order + "I", head[4:8])[0]
