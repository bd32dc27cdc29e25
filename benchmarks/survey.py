"""What a training start costs if all records are prepared already: a million files whose cache is ready.

The files are real and empty but for the first; the index of their contents and the cache are written as a training
leaves them, with made-up digests. The first process opens the data as `train` does, and then one of the others.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Decoded, Project, Record, RunConfig, tabled
from runner_core.base.resources import own_peak
from runner_core.config import CacheConfig
from runner_core.contract.setup import Setup
from runner_core.data.cache.folder import (
    ArrayMeta,
    CacheMeta,
    cache_folder,
    cache_root,
    content_checksums,
    settings_folder,
    write_meta,
)
from runner_core.data.cache.identity import FileMark, Identities, digest_json
from runner_core.data.cache.storage import identities_of
from runner_core.data.columns import Digests, Same
from runner_core.data.pipeline import RecordPipeline
from runner_core.plugins import defaults
from runner_core.plugins.manager import Plugins
from runner_core.training.data import open_data
from runner_core.training.manifest import manifest_place, read_manifest, release
from runner_core.training.seen import save_contents, save_split

from benchmarks.harness import Aim, Cell, Options, Result, Table, number

FILES, QUICK, TOGETHER, MOST = 1_000_000, 20_000, 1_000, 12
IMAGE = np.full(16, 7, np.uint8)


class Files(Project):
    """`count` records, of which the file of the first is no empty one."""

    name = "files"
    framework = "torch"
    Config = RunConfig
    presets = {}  # noqa: RUF012
    count = 0
    listing = 0.0
    """Processor seconds that listing took."""

    def records(self, root: Any) -> Sequence[Record]:
        return tabled(self._listed(root))

    def _listed(self, root: Path) -> Iterator[Record]:
        for start in range(0, self.count, TOGETHER):
            begun = time.process_time()
            found = [made(root, n) for n in range(start, min(self.count, start + TOGETHER))]
            self.listing += time.process_time() - begun
            yield from found

    def decode(self, record: Record) -> Decoded:
        return Decoded({"image": np.fromfile(record.files["dna"], np.uint8)}, (1.0,), "image", {})

    def prepare(self, decoded: Decoded) -> dict[str, Any]:
        return decoded.arrays


def made(root: Path, n: int) -> Record:
    plate = f"plate_{n // TOGETHER:05d}"
    well = f"{plate}/{chr(65 + n % 16)}{n % 24 + 1:02d}-{n}"
    return Record(well, plate, {"dna": root / f"{well}.tiff"})


def setup(folder: Path, count: int) -> Setup:
    plugins = Plugins()
    plugins.register(defaults, "core")
    config = RunConfig(cache=CacheConfig("memmap", folder / "cache"))
    project = Files(config)
    project.count = count
    return Setup(project, config, "demo", folder / "data", plugins)


def prepared(folder: Path, count: int) -> None:
    """Write the files, the index of their contents, and their cache."""
    own = setup(folder, count)
    pipeline = RecordPipeline.of(own)
    parent = settings_folder(cache_root(own.config.cache.dir), pipeline.settings)
    parent.mkdir(parents=True)
    (parent / "build.lock").touch()
    index = Identities(cache_root(own.config.cache.dir))
    keys, identities = [], list[str]()
    for start in range(0, count, TOGETHER):
        marks = []
        (folder / "data" / f"plate_{start // TOGETHER:05d}").mkdir(parents=True)
        for n in range(start, min(count, start + TOGETHER)):
            record = made(folder / "data", n)
            path = str(record.files["dna"])
            Path(path).write_bytes(IMAGE.tobytes() if n == 0 else b"")
            stat, digest = os.stat(path), hashlib.md5(str(n).encode()).hexdigest()
            marks.append(FileMark(path, stat.st_size, stat.st_mtime_ns, digest))
            keys.append(record.key)
            identities.append(digest_json({"dna": [[".", digest]]}))
        index.remember(marks)
    at = cache_folder(parent, keys, identities, "flat")
    at.mkdir()
    array = at / "array-0.bin"
    array.write_bytes(IMAGE.tobytes() * count)
    shapes = Same(IMAGE.shape, count)
    arrays = {"image": ArrayMeta(array.name, "uint8", shapes, IMAGE.nbytes * count, content_checksums(array))}
    settings = pipeline.settings
    write_meta(at, CacheMeta(own.project.name, settings, "flat", keys, Digests(identities), Same({}, count), arrays))


def start(first: bool, count: int, folder: Path, pipe: Connection) -> None:
    """Do what training does with records before its first step, and tell where the manifest is, and what it took."""
    own = setup(folder, count)
    known = read_manifest(pipe.recv())
    assert (known is None) == first
    begun = time.process_time(), time.perf_counter()
    said: list[str] = []
    data = open_data(own, said.append, manifest=folder / ".manifest", known=known)
    opened = time.process_time() - begun[0]
    if first:
        assert any("ready" in line for line in said), said
        save_split(folder, data.records, data.splits)
        index, identities = Identities(cache_root(own.config.cache.dir)), identities_of(data.store)
        save_contents(folder, index, data.records, data.splits["train"], identities)
        release(data.records)
    seconds = time.process_time() - begun[0] - own.project.listing  # type: ignore[attr-defined]
    peak = own_peak()
    pipe.send((manifest_place(data), opened - own.project.listing, seconds, time.perf_counter() - begun[1], peak))  # type: ignore[attr-defined]
    data.store.close()


def started(count: int, folder: Path) -> list[tuple[float, ...]]:
    """Return of the first process and of another: seconds of opening, all seconds, the same by the clock, and bytes."""
    context, place, found = multiprocessing.get_context("spawn"), None, []
    for first in (True, False):
        ours, theirs = context.Pipe()
        process = context.Process(target=start, args=(first, count, folder, theirs))
        process.start()
        theirs.close()
        ours.send(place)
        place, *own = ours.recv()
        found.append(tuple(own))
        process.join()
    return found


def run(options: Options) -> Result:
    count = int(os.environ.get("RUNNER_SURVEY_FILES", QUICK if options.quick else FILES))
    with tempfile.TemporaryDirectory(dir=os.environ.get("RUNNER_SURVEY_DIR")) as name:
        prepared(Path(name), count)
        found = started(count, Path(name))
    rows: list[list[Cell]] = [
        [who, *own[:3], own[1] / count * 1e6, own[3] / 1e9]
        for who, own in zip(("runner, the first process", "runner, each other process"), found, strict=True)
    ]
    heads = ["", "data opened (s)", "until training (s)", "by the clock (s)", "µs a record", "peak memory (GB)"]
    both = sum(own[1] for own in found) / count * 1e6
    return Result(
        "The start of a training on prepared files",
        __doc__ or "",
        [Table(heads, rows)],
        [Aim(f"at most {MOST} µs a record, 60 s for five million: {number(both)}", both <= MOST)],
        [
            f"{count:,} files. Seconds are processor time, the system's for looking at the files included, without "
            "listing them. The first process finds each record's files in the index of known contents, opens the "
            "cache, and writes the run's split and digests; the others open the cache that it found."
        ],
    )
