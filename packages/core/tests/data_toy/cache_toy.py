"""A data set and its cache, for tests of caches."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from rows_toy import RowsToy, write_volumes
from runner_core import RunConfig
from runner_core.config import CacheConfig
from runner_core.data.cache import default_cache, folder, manage
from runner_core.data.cache.storage import Layout
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline

LENGTHS = (5, 7, 1, 9)


class Workplace:
    """A data set, a cache folder and a log of what was decoded."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.cache = path, path / "data", path / "cache"
        write_volumes(self.data, LENGTHS)
        self.said: list[str] = []

    def capability(self, mode="auto", workers=1, crop=None, dtype="uint8", **cache):
        config = RunConfig(cache=CacheConfig(mode=mode, dir=self.cache, workers=workers, **cache))
        self.project = RowsToy(config, self.path / "log", dtype=dtype)
        self.pipeline = RecordPipeline(self.project, crop or NoCrop())
        self.records = self.project.records(self.data)
        return default_cache(self.project, config)

    def open(self, **options):
        return self.capability(**options).open(self.pipeline, self.records, self.said.append)

    def decoded(self):
        """Keys decoded since the last call, sorted."""
        keys = sorted(self.project.decoded_keys())
        (self.path / "log").unlink(missing_ok=True)
        return keys

    def folders(self):
        return [e.folder for e in manage.entries(self.cache)]

    def left_over(self):
        return list(self.cache.rglob(f"{folder.TEMPORARY}*")) if self.cache.exists() else []


def assert_holds_what_the_pipeline_gives(store, pipeline, records):
    assert list(store.keys) == [r.key for r in records]
    for number, record in enumerate(records):
        prepared = pipeline(record)
        assert store.meta[number]["box"]["start"] == list(prepared.meta["box"]["start"])
        for name, array in prepared.arrays.items():
            assert store.arrays[name].dtype == array.dtype
            assert np.array_equal(store.arrays[name].read(number), array)


def flip_byte(file: Path, position: int = -100) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    stat = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


class Folders:
    """A storage: a folder of .npy files, one a record."""

    name = "folders"

    def create(self, path, first):
        path.mkdir()
        numbers = itertools.count()
        return SimpleNamespace(append=lambda a: np.save(path / f"{next(numbers)}.npy", a), close=lambda: None)

    def open(self, path, dtype, shapes):
        return FoldersArray(path, dtype, shapes)

    def bytes(self, array):
        return array.nbytes + 128


class FoldersArray(Layout):
    def __init__(self, path, dtype, shapes):
        super().__init__(dtype, shapes)
        self.path = path

    def read(self, record, region=None):
        return np.load(self.path / f"{record}.npy")[region or ...]

    def take(self, rows, out):
        for record, places, own in self.by_record(rows):
            out[places] = self.read(record)[own]
