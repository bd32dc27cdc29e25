"""Check the sizes that a file claims before any memory is taken for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from runner_core import BadInput, refuse_if_memory_is_short, refuse_impossible_size, shape_text, size_text

_SMALL = 1_000_000
"""Arrays up to this many bytes are read in any case: an HDF5 array that was never filled has no bytes in the file."""
_LARGE, _LIKELY = 256_000_000, 100
"""No measured core of more bytes than the first packs to less than 1 / the second of itself: noise does not."""


def array_bytes(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of an array, as an integer that cannot overflow."""
    return math.prod(map(int, shape)) * int(itemsize)


def refuse_size(path: Path, what: str, shape: Sequence[int], claimed: int, stored: int | None = None) -> None:
    """Raise BadInput if `what` exceeds this machine's memory, or cannot be in the file.

    `claimed` are its bytes in memory, `stored` those in the file. With `stored` None, the reader compares these itself.
    """
    if stored is not None:
        refuse_packed(path, what, shape, claimed, stored)
    remedy = "Cut the image into parts, or read it on a larger machine."
    refuse_if_memory_is_short(path, f"{what} of {shape_text(shape)} values takes", claimed, remedy)


def refuse_packed(path: Path, what: str, shape: Sequence[int], claimed: int, stored: int) -> None:
    """Raise BadInput if `what` cannot be in the `stored` bytes of the file, or cannot be a measurement."""
    if claimed > _SMALL:
        refuse_impossible_size(path, f"{what} of {shape_text(shape)} values", claimed, stored, packed=True)
    if claimed > max(_LARGE, _LIKELY * stored):
        raise BadInput(
            f"{path}: {what} unpacks from {size_text(stored)} to {size_text(claimed)} ({shape_text(shape)} values), "
            f"as no "
            "measured data do. Write it again, without compression if it is right."
        )
