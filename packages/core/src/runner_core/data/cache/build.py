"""Build a cache: prepare records in parallel, append them in order to a storage of the core, read back, and rename."""

from __future__ import annotations

import errno
import json
import math
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runner_core.base.errors import BadInput, DataErrors, OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.progress import progress
from runner_core.base.workers import Work, Workers
from runner_core.base.writing import NO_SPACE, flush, flush_all, host_word, move
from runner_core.contract import Array, Arrays, Json, Pipeline, StoredArray
from runner_core.contract.records import AnyRecord, Record
from runner_core.data.cache.folder import (
    TEMPORARY,
    ArrayMeta,
    CacheMeta,
    Checksums,
    Damaged,
    Say,
    cache_folder,
    content_bytes,
    content_checksums,
    unwritable,
    write_meta,
)
from runner_core.data.cache.identity import FileMark, Identities, Known, identify, unchanged
from runner_core.data.cache.storage import (
    BLOCK,
    ArrayFile,
    BloscArray,
    FlatArray,
    PreparedStore,
    Shapes,
    Storage,
    in_memory,
)

_CHUNK = 1 << 16
_LARGEST_CHUNK = 1 << 22


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of an array, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class ArrayWriter:
    """A named array of all records, appended record by record."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self._path, self._storage = path, storage
        self._shapes: list[tuple[int, ...]] = []
        self._content = Checksums()
        self._dtype: np.dtype[Any] | None = None
        self._file: ArrayFile | None = None

    def append(self, array: Array) -> None:
        """Append an array; raise OSError (disk full) or ValueError (dtype differs from the records before)."""
        if self._file is None:
            self._dtype = array.dtype
            self._file = self._storage.create(self._path, array)
        if array.dtype != self._dtype:
            raise ValueError(f"has dtype {array.dtype}, records before it have {self._dtype}")
        self._shapes.append(array.shape)
        self._content.update(as_bytes(array))
        self._file.append(array)

    def finish(self) -> ArrayMeta:
        """Close, flush to the disk, and read back; raise Damaged if the content differs from what was written."""
        assert self._file is not None
        assert self._dtype is not None
        self._file.close()
        flush_all(self._path)
        checksums = content_checksums(self._path)
        # A flat file holds only the arrays' bytes, so its checksums suffice.
        if self._content.text() != checksums and self._content.text() != self._read_back():
            raise Damaged(f"{self._path} reads back differently from what was written: is the disk sound?")
        return ArrayMeta(self._path.name, self._dtype.str, self._shapes, content_bytes(self._path), checksums)

    def _read_back(self) -> str:
        assert self._dtype is not None
        state = Checksums()
        array = self._storage.open(self._path, self._dtype, self._shapes)
        for record in range(len(self._shapes)):
            state.update(as_bytes(array.read(record)))
        return state.text()


class FlatFile:
    """A file of bytes whose OSError says why writing failed, which NumPy's `tofile` does not."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115

    def append(self, array: Array) -> None:
        content = as_bytes(array)
        while content:  # one write may take less than all
            content = content[self._file.write(content) :]

    def close(self) -> None:
        self._file.close()


class _BloscFile:
    """A blosc2 file whose chunks hold whole rows and whose blocks hold a few lines.

    A row is then one chunk to decompress, and a patch of a large row needs only the blocks that it touches. LZ4 without
    a filter decodes a 256 × 256 uint8 slice in 0.008 ms (ZSTD: 0.03 ms, for a fifth less space). Wider types are
    shuffled by byte first. Tiles of 32³ would give a patch of 72 × 136 × 136 in a third less time, and a slice in 30
    times as much.
    """

    def __init__(self, path: Path, first: Array) -> None:
        with _disk_full():
            self._chunks = blosc_chunks(first, path)
        self._size = self._chunks.chunksize
        self._rest = bytearray()

    def append(self, array: Array) -> None:
        self._rest += as_bytes(array)
        whole = len(self._rest) - len(self._rest) % self._size
        for begin in range(0, whole, self._size):
            self._write(self._rest[begin : begin + self._size])
        del self._rest[:whole]

    def close(self) -> None:
        if self._rest:
            self._write(self._rest)
        del self._chunks

    def _write(self, chunk: bytearray) -> None:
        with _disk_full():
            self._chunks.append_data(chunk)


@contextmanager
def _disk_full() -> Iterator[None]:
    """Raise OSError for a RuntimeError, which is blosc2's only sign of a full disk."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.ENOSPC, str(error)) from error


def blosc_chunks(first: Array, path: Path | None = None) -> Any:
    """Return an empty blosc2 file (or, without `path`, memory) for arrays such as `first`."""
    import blosc2

    row = int(np.prod(first.shape[1:], dtype=np.int64)) * first.itemsize
    if not 0 < row <= _LARGEST_CHUNK:
        row = first.itemsize
    chunk = row * max(1, _CHUNK // row)
    bytewise = first.itemsize == 1
    return blosc2.SChunk(
        chunksize=chunk,
        urlpath=None if path is None else str(path),
        contiguous=True,
        cparams={
            "codec": blosc2.Codec.LZ4,
            "clevel": 5,
            "typesize": first.itemsize,
            "blocksize": min(chunk, BLOCK - BLOCK % first.itemsize),
            "nthreads": 1,
            "filters": [blosc2.Filter.NOFILTER if bytewise else blosc2.Filter.SHUFFLE],
            "filters_meta": [0],
        },
    )


class _Flat:
    """The arrays' bytes, one after the other, without gaps; read through a memory map."""

    name = "flat"

    def create(self, path: Path, first: Array) -> ArrayFile:
        return FlatFile(path)

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        return FlatArray(path, dtype, shapes)

    def bytes(self, array: Array) -> int:
        return array.nbytes


class _Memory(_Flat):
    """Like `_Flat`, but read whole into memory that worker processes share."""

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        return FlatArray(in_memory(path), dtype, shapes)


class _Blosc2:
    name = "blosc2"

    def create(self, path: Path, first: Array) -> ArrayFile:
        return _BloscFile(path, first)

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        return BloscArray(path, dtype, shapes)

    def bytes(self, array: Array) -> int:
        chunks = blosc_chunks(array)
        content = as_bytes(array)
        for begin in range(0, len(content), chunks.chunksize):
            chunks.append_data(content[begin : begin + chunks.chunksize])
        return int(chunks.cbytes)


FLAT: Storage = _Flat()
MEMORY: Storage = _Memory()
BLOSC2: Storage = _Blosc2()


class Part(NamedTuple):
    """An array that a worker prepared; `path` is its file, or None if only its shape was wanted."""

    dtype: str
    shape: tuple[int, ...]
    path: Path | None

    def load(self) -> Array:
        assert self.path is not None
        return np.fromfile(self.path, dtype=self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Outcome:
    """Result of one record: its arrays, an `error`, or a `full` disk."""

    number: int
    known: Known | None = None
    meta: Mapping[str, Json] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)
    error: str = ""
    full: bool = False


class Task(NamedTuple):
    """A record to prepare; if `known` is None, the worker hashes its files just before it decodes them."""

    number: int
    record: Record
    known: Known | None


@dataclass(frozen=True)
class Prepare:
    """Work of a process: hash, decode, crop, prepare, write into `folder` (None if only shapes are wanted)."""

    pipeline: Pipeline
    folder: Path | None

    def __call__(self, task: Task) -> Outcome:
        number, record, known = task
        try:
            known = known or identify(record)
            prepared = self.pipeline(record)
            meta = as_json(record, prepared.meta)
            if not unchanged(known.marks):
                raise BadInput(f"{record.key}: its files changed while they were read; run again")
        except BadInput as error:
            return Outcome(number, error=str(error))
        except OSError as error:
            return Outcome(number, error=f"{record.key}: {error}")
        except Exception as error:
            error.add_note(f"(preparing record {record.key})")
            raise
        try:
            parts = self.keep(number, record, known, meta, prepared.arrays)
        except OSError as error:
            if error.errno in NO_SPACE:
                return Outcome(number, full=True)
            raise
        return Outcome(number, known, meta, parts)

    def keep(
        self, number: int, record: AnyRecord, known: Known, meta: Mapping[str, Json], arrays: Arrays
    ) -> Mapping[str, Part]:
        """Write what was prepared, and return where it is."""
        return {name: self._write(number, i, array) for i, (name, array) in enumerate(arrays.items())}

    def _write(self, number: int, index: int, array: Array) -> Part:
        path = None
        if self.folder is not None:
            path = self.folder / f"part-{number}-{index}"
            with closing(FlatFile(path)) as file:
                file.append(array)
        return Part(array.dtype.str, array.shape, path)


@contextmanager
def run_all(work: Work, tasks: Iterable[Any], processes: int) -> Iterator[Iterator[Any]]:
    """Yield results of `work` as they become ready; one process means this process.

    After the with-block no process works any more, however the block ended, so their files can be removed.
    """
    if processes <= 1:
        yield map(work, tasks)
        return
    workers = Workers(work, processes, "prepare records (cache.workers)")
    try:
        yield _results(workers, iter(tasks), 2 * processes)
    finally:
        workers.close()


def _results(workers: Workers, tasks: Iterator[Any], ahead: int) -> Iterator[Any]:
    busy = sum(1 for task in islice(tasks, ahead) if workers.submit(task))
    while busy:
        _, result = workers.receive()
        busy -= 1
        for task in islice(tasks, 1):
            workers.submit(task)
            busy += 1
        yield result


@dataclass
class Builder:
    """Builds one cache below `parent`; the caller holds the build lock.

    `identities` (None for unknown records), `known` (record number → what is known of one to prepare), `reuse` (record
    number → open store and number in it) and `ahead` (record number → what returns the arrays and meta of a record that
    was prepared ahead, None if it is damaged) refer to `records`.
    """

    parent: Path
    pipeline: Pipeline
    records: Sequence[Record]
    identities: list[str | None]
    known: Mapping[int, Known]
    reuse: Mapping[int, tuple[PreparedStore, int]]
    ahead: Mapping[int, Callable[[], tuple[Arrays, Mapping[str, Json]] | None]]
    storage: Storage
    processes: int
    index: Identities
    max_bytes: float
    needs: str
    """The space needed according to the plan, for the message if the disk is full after all."""
    _marks: list[FileMark] = field(default_factory=list, init=False)

    def build(self, say: Say) -> Path:
        """Return the finished folder; raise DataErrors, OutOfSpace or BadInput, and then leave nothing on the disk."""
        try:
            temporary = self.parent / f"{TEMPORARY}{host_word()}{uuid.uuid4().hex[12:]}"
            temporary.mkdir()
        except OSError as error:
            raise self._disk_error(error) from error
        try:
            meta = self._write(temporary, say)
            folder = cache_folder(self.parent, meta.keys, meta.identities, self.storage.name)
            write_meta(temporary, meta)
            flush(temporary)
            if not folder.exists():  # it may: files that only moved are known by their contents
                move(temporary, folder)
            return folder
        except OSError as error:
            raise self._disk_error(error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            self.index.remember(self._marks)

    def _write(self, temporary: Path, say: Say) -> CacheMeta:
        writers: dict[str, ArrayWriter] = {}
        meta: list[Mapping[str, Json]] = []
        errors: list[str] = []
        with closing(self._in_order(temporary, say)) as in_order:
            for number, found in enumerate(in_order):
                if isinstance(found, str):
                    errors.append(found)
                if errors:  # go on only to find the other faulty records
                    continue
                arrays, own_meta = found
                meta.append(own_meta)
                if not writers:
                    files = [temporary / f"array-{i}.bin" for i in range(len(arrays))]
                    writers = {name: ArrayWriter(file, self.storage) for name, file in zip(arrays, files, strict=True)}
                _append(writers, arrays, self.records[number].key)
                self._limit(temporary)
        if errors:
            raise DataErrors(errors)
        return CacheMeta(
            project=str(self.pipeline.settings["project"]),
            settings=self.pipeline.settings,
            format=self.storage.name,
            keys=[r.key for r in self.records],
            identities=[identity for identity in self.identities if identity is not None],
            meta=meta,
            arrays={name: writer.finish() for name, writer in writers.items()},
        )

    def _in_order(self, temporary: Path, say: Say) -> Generator[Any]:
        """Yield (arrays, meta) or an error message for each record, in order."""
        numbers = [i for i in range(len(self.records)) if i not in self.reuse and i not in self.ahead]
        tasks = [Task(i, self.records[i], self.known.get(i)) for i in numbers]
        work, early = Prepare(self.pipeline, temporary), dict[int, Outcome]()
        with (
            run_all(work, tasks, min(self.processes, len(tasks))) as outcomes,
            progress("preparing records", len(tasks), say) as advance,
        ):
            for number in range(len(self.records)):
                if number in self.reuse:
                    store, there = self.reuse[number]
                    yield {name: a.read(there) for name, a in store.arrays.items()}, store.meta[there]
                    continue
                if number in self.ahead:
                    task = Task(number, self.records[number], self.known.get(number))
                    yield self.ahead[number]() or self._result(work(task))
                    continue
                while number not in early:
                    outcome = next(outcomes)
                    early[outcome.number] = outcome
                    advance()
                yield self._result(early.pop(number))

    def _result(self, outcome: Outcome) -> Any:
        if outcome.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if outcome.error:
            return outcome.error
        assert outcome.known is not None
        self.identities[outcome.number] = outcome.known.identity
        self._marks += outcome.known.marks
        arrays = {name: part.load() for name, part in outcome.parts.items()}
        for part in outcome.parts.values():
            if part.path is not None:
                part.path.unlink()
        return arrays, outcome.meta

    def _limit(self, temporary: Path) -> None:
        if self.max_bytes == math.inf:
            return
        if sum(content_bytes(path) for path in temporary.glob("array-*")) > self.max_bytes:
            raise OutOfSpace(
                f"the cache grew beyond {size_text(self.max_bytes)} (expected: {self.needs}); raise cache.max_gb, "
                "or set cache.mode to blosc2 or off"
            )

    def _disk_error(self, error: OSError) -> BadInput:
        if error.errno not in NO_SPACE:
            return unwritable(self.parent, error)
        free = shutil.disk_usage(self.parent).free
        return OutOfSpace(
            f"the disk of {self.parent} is full: the cache takes about {self.needs}, {size_text(free)} are free now; "
            "set cache.dir to a larger disk, or cache.mode to blosc2 or off. What was written is removed again"
        )


def _append(writers: Mapping[str, ArrayWriter], arrays: Mapping[str, Array], key: str) -> None:
    if set(arrays) != set(writers):
        raise BadInput(f"{key}: prepare() returned {sorted(arrays)}, for records before it {sorted(writers)}")
    for name, writer in writers.items():
        try:
            writer.append(arrays[name])
        except ValueError as error:
            raise BadInput(f"{key}: '{name}' {error}") from error


def as_json(record: AnyRecord, meta: Mapping[str, Json]) -> dict[str, Json]:
    """Return the part of `Prepared.meta` that is kept; raise BadInput if JSON cannot hold it."""
    try:
        return json.loads(json.dumps(dict(meta)))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{record.key}: what decode() returned as meta is not JSON ({error})") from error
