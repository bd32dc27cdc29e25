"""Compare the sizes that NIfTI headers promise with file, head and memory, before memory is taken."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner_core import BadInput, refuse_if_memory_is_short, refuse_impossible_size, shape_text, size_text

VOXELS = 1 << 28
"""Most voxels of a scan: 0.35 mm over the whole head. A header that says more is wrong."""
SPAN = 3000.0
"""Most millimetres along an axis of a scan."""
_AFTER = 1 << 26
"""Most bytes behind the voxels of a .gz."""
LEAST = 5.0
"""Fewest millimetres along an axis of a scan: less than a mouse's brain."""
_MOST_HEADER = 64 << 20


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


def unpacked(path: Path, image: Any) -> bytes:
    """Return the content of a .gz, checksums compared. Raises ValueError if it far exceeds the header's promise."""
    most = promised(image) + _AFTER
    rest, parts, length = path.read_bytes(), [], 0
    while rest:
        member = zlib.decompressobj(31)
        parts.append(member.decompress(rest, most + 1 - length))
        length += len(parts[-1])
        if length > most:
            raise ValueError(f"it unpacks to far more than the {size_text(most - _AFTER)} that its header promises")
        if not member.eof:
            raise EOFError("it ends in the middle of its compressed data")
        rest = member.unused_data.lstrip(b"\0")
    return b"".join(parts)


def refuse_large_header(path: Path) -> None:
    """Raise ValueError if a NIfTI header's extensions, which nibabel reads whole, claim to be huge."""
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        head = file.read(544)
        for order in "<>":
            size = struct.unpack(f"{order}i", head[:4])[0]
            if size not in (348, 540) or path.suffix.lower() == ".hdr":
                continue
            begin = struct.unpack_from(f"{order}f" if size == 348 else f"{order}q", head, 108 if size == 348 else 168)[
                0
            ]
            if not 0 <= begin <= _MOST_HEADER:
                raise ValueError(f"its voxels begin at byte {begin:g}; a header is smaller")
            _refuse_large_extensions(head + file.read(max(0, int(begin) - len(head))), size + 4, int(begin), order)


def _refuse_large_extensions(head: bytes, place: int, end: int, order: str) -> None:
    """Raise ValueError if an extension reaches beyond the header's `end`; the first one is at byte `place`."""
    while head[place - 4 : place - 3] != b"\0" and place + 8 <= min(end, len(head)):
        size = struct.unpack_from(f"{order}i", head, place)[0]
        if not 8 <= size <= end - place:
            raise ValueError(f"an extension of {size:,} bytes in a header of {end:,}")
        place += size
