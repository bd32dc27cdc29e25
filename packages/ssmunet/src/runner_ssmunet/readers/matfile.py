"""Read the headers of all variables of a MATLAB v5 to v7 file, to the end of the file.

SciPy stops silently if a file was cut within a variable that is not asked for, and takes the memory that a header
claims. MAT-file format: "MAT-File Level 5 File Format", The MathWorks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runner_core import BadInput

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_BEGINNING = 4096
"""Bytes at the start of a variable that hold its type, shape and name."""
_CLASSES = {
    4: "char", 6: "double", 7: "single", 8: "int8", 9: "uint8", 10: "int16", 11: "uint16", 12: "int32", 13: "uint32",
    14: "int64", 15: "uint64",
}  # fmt: skip
_OTHERS = {1: "a cell array", 2: "a struct", 3: "an object", 5: "a sparse array", 16: "a function", 17: "an object"}
_SIZES = {"char": 4, "double": 8, "single": 4, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4}


@dataclass(frozen=True)
class Variable:
    """A variable as its header describes it.

    `kind` is text or a type of numbers if `plain`, else the kind of object. `stored` are its bytes in the file.
    `written` are the bytes of its values before packing, fewer than in memory if MATLAB wrote whole numbers as bytes.
    `unpacked` are those in memory, at least.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    plain: bool
    stored: int
    written: int
    unpacked: int


def variables(path: Path) -> list[Variable]:
    """Yield every variable of the file. Raises BadInput if it is damaged or cut short, ValueError for other faults."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_HEADER)
        if len(start) < _HEADER or start[126:128] not in (b"IM", b"MI"):
            raise ValueError("no MATLAB header of v5 to v7.3; save it again with -v7 or -v7.3")
        return list(_variables(file, size, "<" if start[126:128] == b"IM" else ">", path))


def _variables(file: BinaryIO, size: int, order: str, path: Path) -> Iterator[Variable]:
    place = _HEADER
    while place < size:
        file.seek(place)
        tag = file.read(8)
        kind, count = struct.unpack(f"{order}2I", tag) if len(tag) == 8 else (0, 0)
        if place + 8 + count > size or not count:
            raise BadInput(
                f"{path}: it ends within a variable, {size - place} bytes after byte {place}: it was cut short. Copy "
                "or save it again."
            )
        if kind not in (_MATRIX, _COMPRESSED):
            raise ValueError(f"byte {place} begins no variable")
        content = file.read(min(count, _BEGINNING))
        if kind == _COMPRESSED:
            content = zlib.decompressobj().decompress(content, _BEGINNING)
            if struct.unpack(f"{order}I", content[:4]) != (_MATRIX,):
                raise ValueError(f"byte {place} begins no variable")
            content = content[8:]
        yield _described(content, order, count)
        place += 8 + count


def _described(content: bytes, order: str, stored: int) -> Variable:
    """Describe a variable by its start: its first three parts are flags, shape and name, the fourth its values."""
    flags, rest = _part(content, order)
    shape_bytes, rest = _part(rest, order)
    name, rest = _part(rest, order)
    code = struct.unpack(f"{order}I", flags[:4])[0] & 255
    shape = struct.unpack(f"{order}{len(shape_bytes) // 4}i", shape_bytes)
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"a variable of shape {shape}")
    kind = _CLASSES.get(code, "")
    cells = 1
    for length in shape:
        cells *= length
    claimed = struct.unpack(f"{order}2I", rest[:8])[1] if len(rest) >= 8 and kind else 0
    small = len(rest) >= 8 and bool(struct.unpack(f"{order}I", rest[:4])[0] >> 16)
    written = 0 if small else claimed
    unpacked = max(cells * _SIZES.get(kind, 8), written)
    named = kind or _OTHERS.get(code, "unknown")
    return Variable(name.decode("latin1"), shape, named, bool(kind), stored, written, unpacked)


def _part(content: bytes, order: str) -> tuple[bytes, bytes]:
    """Return the first part of `content`, and the rest."""
    (word,) = struct.unpack(f"{order}I", content[:4])
    if word >> 16:  # a part of 4 bytes or fewer, in one word with its tag
        return content[4 : 4 + (word >> 16)], content[8:]
    (count,) = struct.unpack(f"{order}I", content[4:8])
    if 8 + count > len(content):
        raise ValueError("the header of a variable is longer than it can be")
    return content[8 : 8 + count], content[8 + count + -count % 8 :]
