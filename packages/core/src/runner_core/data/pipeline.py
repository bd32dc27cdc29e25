"""Turn a record into what the cache stores: decode, crop, prepare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.location import Url
from runner_core.contract import Array, Arrays, Box, Cropper, Json
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Decoded, Prepared, Record, at_url
from runner_core.contract.setup import Setup
from runner_core.data.cache.identity import files_below

_VERSION = 1
"""Raise this number when this module changes what is stored."""


@contextmanager
def local(project: Project, record: AnyRecord) -> Iterator[Record]:
    """Give the record with its files on this machine; files at URLs are fetched, and removed afterwards.

    Raises BadInput with the URL that cannot be read (errors raised inside about a fetched file name its URL too), and
    for a pipe, a socket or a device among the files.
    """
    for place in record.files.values():
        for file in () if isinstance(place, Url) else files_below(place):
            refuse_special_file(file)
    if not at_url(record):
        yield record
        return
    from runner_core.data.stream.local import localised

    with localised(record, project.config.remote) as fetched:
        yield fetched


class RecordPipeline:
    """The pipeline of one project and cropper; picklable."""

    def __init__(self, project: Project, cropper: Cropper) -> None:
        self.project = project
        self.cropper = cropper

    @classmethod
    def of(cls, setup: Setup) -> RecordPipeline:
        """Make the pipeline of a run's project and cropper."""
        return cls(setup.project, setup.cropper)

    @property
    def settings(self) -> Mapping[str, Json]:
        """Everything except the files that changes prepared arrays; part of the cache's key."""
        return {
            "pipeline": _VERSION,
            "project": self.project.name,
            "prepare_version": self.project.dataset.prepare_version,
            "prepare": dict(self.project.prepare_settings()),
            "crop": dict(self.cropper.settings),
        }

    def decode(self, record: AnyRecord) -> Decoded:
        """Decode the record in its own grid; files at URLs are fetched for it."""
        with local(self.project, record) as here:
            return self.project.decode(here)

    def cropped(self, record: AnyRecord, decoded: Decoded) -> tuple[Decoded, Box]:
        """Return a decoded record cut to the cropper's box, and the box: its `restore` maps back to the whole grid."""
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
        """Return C-contiguous arrays to store, and `meta` with the crop box; raise BadInput with the record's key."""
        return self.prepared(record, self.decode(record))

    def prepared(self, record: AnyRecord, decoded: Decoded) -> Prepared:
        """Prepare an already decoded record, like `__call__`."""
        decoded, box = self.cropped(record, decoded)
        return Prepared(self.stored(record, decoded), decoded.meta | {"box": dataclasses.asdict(box)})

    def stored(self, record: AnyRecord, cropped: Decoded) -> Arrays:
        """Return the arrays that the cache stores of a decoded and cropped record."""
        return {name: _storable(record, name, array) for name, array in self.project.prepare(cropped).items()}


class CroppedRecord:
    """A record without its labels, for `Project.predict` and `baseline` (`runner_core.Cropped`).

    It is decoded once, when its arrays are first asked for. Make it inside of `local`, and drop it before the record is
    scored: it keeps its arrays. `look`, if any, sees it decoded in its own grid, and may refuse it.
    """

    def __init__(
        self, pipeline: RecordPipeline, record: AnyRecord, look: Callable[[Decoded], None] | None = None
    ) -> None:
        labels = pipeline.project.dataset.labels
        files, values = (
            {name: value for name, value in mapping.items() if name not in labels}
            for mapping in (record.files, record.values)
        )
        self.record = dataclasses.replace(record, files=files, values=values)
        self._pipeline, self._look = pipeline, look

    @property
    def decoded(self) -> Decoded:
        return self._decoded_and_box[0]

    @property
    def box(self) -> Box:
        return self._decoded_and_box[1]

    @cached_property
    def prepared(self) -> Arrays:
        return self._pipeline.stored(self.record, self.decoded)

    @cached_property
    def _decoded_and_box(self) -> tuple[Decoded, Box]:
        decoded = self._pipeline.decode(self.record)
        if self._look is not None:
            self._look(decoded)
        return self._pipeline.cropped(self.record, decoded)


def _storable(record: AnyRecord, name: str, array: Array) -> Array:
    array = np.asarray(array, order="C")
    if array.dtype.hasobject:
        raise BadInput(f"{record.key}: prepare() returned '{name}' with dtype {array.dtype}, which cannot be stored")
    return array
