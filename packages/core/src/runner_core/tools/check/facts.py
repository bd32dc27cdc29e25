"""Facts about a record, from its decoded arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner_core.contract import Array
from runner_core.contract.records import Annotation, Decoded, Record
from runner_core.data.cache.identity import files_below
from runner_core.tools.check.levels import Levels, digest, levels


@dataclass(frozen=True)
class ArrayFacts:
    """Facts about one decoded array, or about the file's own array if `Decoded.original` has it."""

    dtype: str
    shape: tuple[int, ...]
    levels: Levels | None
    digest: str | None
    """Digest of the values, or None for arrays that may be equal without being duplicates.

    These are constant arrays, and an array that only the cropper looks at.
    """


@dataclass(frozen=True)
class RecordFacts:
    """Facts about a record.

    `shape` and `spacing` are the file's own. `arrays` are by name, the image first. `annotation` is None without
    annotation.
    """

    files: int
    file_bytes: int
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    arrays: Mapping[str, ArrayFacts]
    annotation: Annotation | None

    @property
    def image(self) -> ArrayFacts | None:
        """The first array."""
        return next(iter(self.arrays.values()), None)


def record_facts(record: Record, decoded: Decoded, annotation: Annotation | None) -> RecordFacts:
    """Return facts about a record whose files are on this machine; raise OSError if they are gone."""
    files = {file for place in record.files.values() for file in files_below(place)}  # a file may have several roles
    sizes = [os.stat(file).st_size for file in files]
    arrays = {name: _facts(array, str(array.dtype)) for name, array in decoded.arrays.items()}
    first = next(iter(arrays), "")
    if decoded.guide in arrays and decoded.guide != first:  # made for the cropper: two may be equal
        arrays[decoded.guide] = replace(arrays[decoded.guide], digest=None)
    original = decoded.original
    if original is None:
        shape = decoded.arrays[decoded.guide].shape if decoded.guide in decoded.arrays else ()
        shape, spacing = shape[: len(decoded.spacing)], decoded.spacing
    else:
        shape, spacing = original.array.shape, original.spacing
        arrays[first] = _facts(original.array, original.dtype or str(original.array.dtype))
    return RecordFacts(len(sizes), sum(sizes), tuple(shape), tuple(spacing), arrays, annotation)


def _facts(array: Array, dtype: str) -> ArrayFacts:
    found = levels(array)
    alike = found is None or found.constant
    return ArrayFacts(dtype, array.shape, found, None if alike else digest(array))
