"""What is to be known of a record, from what was decoded of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner_core.audit.levels import Levels, digest, levels
from runner_core.cache.identity import files_below
from runner_core.project import Annotation, Decoded, Record
from runner_core.protocols import Array


@dataclass(frozen=True)
class ArrayFacts:
    """Of one decoded array, or of the file's own where `Decoded.original` has it."""

    dtype: str
    shape: tuple[int, ...]
    levels: Levels | None
    digest: str | None
    """None of a constant array, and of one that the cropper alone looks at: such may be alike, and are no copies."""


@dataclass(frozen=True)
class RecordFacts:
    """`shape` and `spacing` are the file's own; `arrays` by name, the image first; `annotation` None where the record
    has none."""

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
    """Of a record whose files are on this machine. Raises OSError where they are gone."""
    files = {file for place in record.files.values() for file in files_below(place)}  # one may have several roles
    sizes = [os.stat(file).st_size for file in files]
    arrays = {name: _facts(array, str(array.dtype)) for name, array in decoded.arrays.items()}
    first = next(iter(arrays), "")
    if decoded.guide in arrays and decoded.guide != first:  # made for the cropper: two may well be alike
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
