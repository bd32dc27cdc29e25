"""record → decode → crop → prepare: what the cache stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from runner_core._errors import BadInput
from runner_core.project import AnyRecord, Decoded, Prepared, Project, Record, at_url
from runner_core.protocols import Array, Box, Cropper, Json

_VERSION = 1
"""Raised when this module changes what is stored."""


@contextmanager
def local(project: Project, record: AnyRecord) -> Iterator[Record]:
    """The record with its files on this machine: those at URLs are fetched, and are gone again afterwards. Raises
    BadInput naming the URL that cannot be had; so does what is raised inside about a fetched file."""
    if not at_url(record):
        yield record
        return
    from runner_core.stream.local import localised

    with localised(record, project.config.remote) as fetched:
        yield fetched


class RecordPipeline:
    """The pipeline of one project and cropper. Picklable; `project.pipeline` leads back to it."""

    def __init__(self, project: Project, cropper: Cropper) -> None:
        self.project = project
        self.cropper = cropper
        project.pipeline = self

    @property
    def settings(self) -> Mapping[str, Json]:
        """Everything but the files that changes prepared arrays: part of the cache's key."""
        return {
            "pipeline": _VERSION,
            "project": self.project.name,
            "prepare_version": self.project.prepare_version,
            "prepare": dict(self.project.prepare_settings()),
            "crop": dict(self.cropper.settings),
        }

    def decode(self, record: AnyRecord) -> Decoded:
        """The record as its files have it, in its own grid; files at URLs are fetched for it."""
        with local(self.project, record) as here:
            return self.project.decode(here)

    def decode_cropped(self, record: AnyRecord) -> tuple[Decoded, Box]:
        """The record cut to the cropper's box, and the box, whose `restore` leads back to the record's grid."""
        return self._cropped(record, self.decode(record))

    def _cropped(self, record: AnyRecord, decoded: Decoded) -> tuple[Decoded, Box]:
        if decoded.guide not in decoded.arrays:
            raise BadInput(
                f"{record.key}: decode() names '{decoded.guide}' as guide but returned {list(decoded.arrays)}"
            )
        box = self.cropper.box(decoded.arrays[decoded.guide], decoded.spacing)
        arrays = {}
        for name, array in decoded.arrays.items():
            if array.shape[: len(box.shape)] != box.shape:
                raise BadInput(
                    f"{record.key}: array '{name}' has shape {array.shape}, which does not lie in the grid "
                    f"{box.shape} of '{decoded.guide}'"
                )
            arrays[name] = box.crop(array)
        return dataclasses.replace(decoded, arrays=arrays, original=None), box

    def __call__(self, record: AnyRecord) -> Prepared:
        """Arrays to store, C-contiguous, and `meta` with the crop box. Raises BadInput naming the record."""
        return self.prepared(record, self.decode(record))

    def prepared(self, record: AnyRecord, decoded: Decoded) -> Prepared:
        """The same of a record that is decoded already."""
        decoded, box = self._cropped(record, decoded)
        arrays = {name: _storable(record, name, a) for name, a in self.project.prepare(decoded).items()}
        return Prepared(arrays, decoded.meta | {"box": dataclasses.asdict(box)})


def _storable(record: AnyRecord, name: str, array: Array) -> Array:
    array = np.asarray(array, order="C")
    if array.dtype.hasobject:
        raise BadInput(f"{record.key}: prepare() returned '{name}' with dtype {array.dtype}, which cannot be stored")
    return array
