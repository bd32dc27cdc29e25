"""Images larger than the memory: read in blocks of rows, and kept in a temporary file instead of in memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from runner_core import OutOfSpace, refuse_if_memory_is_short, size_text

from runner_ssmunet.readers.base import Array, Outline, Raw, Units, absorbance, finite, outline
from runner_ssmunet.readers.sizes import array_bytes

IN_MEMORY = 2_000_000_000
"""Largest array (bytes) that is held in memory; a larger one lies in a temporary file."""
_BLOCK = 64_000_000
"""Bytes of the spectra that are read at once."""


@dataclass(frozen=True)
class Blocks:
    """An image that is read in parts.

    `raw` is all but its spectra. `fetch` returns those of some rows and columns (h, w, C) as the file has them.
    """

    raw: Raw
    fetch: Callable[[slice, slice], Array]

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns, channels = self.raw.shape or (0, 0, 0)
        return rows, columns, channels

    def read(self, rows: slice, columns: slice, units: Units | None = None) -> Array:
        """Return absorbances (h, w, C) float32 of some rows and columns, on the ascending axis."""
        with np.errstate(over="ignore"):
            spectra = np.asarray(self.fetch(rows, columns), np.float32)
        own = np.asarray(self.raw.wavenumbers).ravel()
        return absorbance(spectra if own[0] <= own[-1] else spectra[..., ::-1], units or self.raw.units)


def of_array(raw: Raw, spectra: Array) -> Blocks:
    """Return an array (H, W, C), mapped or in memory, as blocks."""

    def fetch(rows: slice, columns: slice) -> Array:
        part = np.array(spectra[rows, columns], np.float32)
        release(spectra)
        return part

    return Blocks(replace(raw, spectra=None, shape=spectra.shape), fetch)


def row_blocks(shape: Sequence[int], itemsize: int = 4) -> Iterator[slice]:
    """Yield slices of an image's rows, few enough to be in memory at once."""
    step = max(1, _BLOCK // max(1, array_bytes(shape[1:], itemsize)))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


def is_large(shape: Sequence[int], path: Path) -> bool:
    """Return whether float32 values of that shape are kept out of the memory, as they or their copies would fill it."""
    size = array_bytes(shape, 4)
    try:
        refuse_if_memory_is_short(path, "", 3 * size, "")
    except OutOfSpace:
        return size > _BLOCK
    return size > IN_MEMORY


def space(shape: Sequence[int], dtype: type) -> Array:
    """Return zeros, in memory or, if they are large, in a temporary file without a name (below TMPDIR).

    Raises OutOfSpace if there is no room for the file.
    """
    size = array_bytes(shape, np.dtype(dtype).itemsize)
    if size <= IN_MEMORY:
        return np.zeros(tuple(shape), dtype)
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OutOfSpace(
            f"{folder}: spectra that are too large for the memory take {size_text(size)} there for a while, and "
            f"{size_text(free)} are free. Make room, or set TMPDIR to a folder on a larger disk."
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, "r+", shape=tuple(shape))


def release(array: Array) -> None:
    """Give back the memory that parts of a mapped file take. They are read again when they are needed."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        with contextlib.suppress(ValueError, OSError):
            owner.madvise(mmap.MADV_DONTNEED)


def by_rows(spectra: Array, function: Callable[[Array], Array]) -> Array:
    """Return `function` of the image (H, W, C), computed for blocks of rows and joined."""
    found = []
    for rows in row_blocks(spectra.shape, spectra.itemsize):
        found.append(function(spectra[rows]))
        release(spectra)
    return np.concatenate(found)


def stored(blocks: Blocks, raw: Raw, path: Path, units: Units | None) -> tuple[Outline, Array, Array]:
    """Copy the spectra, checked, into `space`; return the outline of `raw`, the spectra, and the measured pixels."""
    rest = outline(raw, path)
    spectra, measured = space(blocks.shape, np.float32), np.zeros(blocks.shape[:2], bool)
    for rows in row_blocks(blocks.shape):
        part = blocks.read(rows, slice(0, blocks.shape[1]), units)
        tissue = None if rest.tissue is None else rest.tissue[rows]
        spectra[rows], measured[rows] = finite(part, tissue, path, rows.start)
        release(spectra)
    return rest, spectra, measured
