"""Guards for NIfTI files: a damaged or hostile one takes no more memory than its header promises.

They need no reader of NIfTI: call them before one (nibabel) opens the file.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

from runner_core.base.files import size_text

_AFTER = 1 << 26
"""Most bytes behind the voxels of a .gz."""
_MOST_HEADER = 64 << 20


def gzip_content(path: Path, promised: int) -> bytes:
    """Return the content of a .gz, checksums compared. Raises ValueError if it far exceeds the `promised` bytes."""
    most = promised + _AFTER
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


def refuse_large_nifti_header(path: Path) -> None:
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
