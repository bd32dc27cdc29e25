"""Location of caches, content of their meta.json, and locks.

    <cache.dir>/identities.sqlite
    <cache.dir>/<project>/<pipeline settings>/build.lock        held by the one builder
    <cache.dir>/<project>/<pipeline settings>/.building-*       left by a killed builder
    <cache.dir>/<project>/<pipeline settings>/<records>.flat/   meta.json, one file per array; of many records, columns

Readers hold a shared lock on meta.json while the cache is open; `prune` needs an exclusive one. A folder with any other
name is not ours: neither it nor its content is listed or removed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.writing import LONG_AGO, flush, has_no_locks, host_word, lock, locked, untouched
from runner_core.contract import Json
from runner_core.data.cache import many
from runner_core.data.cache.identity import digest_json, digest_lists
from runner_core.data.columns import Shapes

BLOCK = 1 << 24
_PIECE = 1 << 22
_DIGITS = 16


class Block(NamedTuple):
    """`size` bytes of a file from `begin` on, and the checksum of what was written there."""

    file: Path
    begin: int
    size: int
    checksum: str

    def sound(self) -> bool:
        """Read the bytes and compare their checksum; raise OSError if the file system reports an error."""
        return _checksum(self.file, self.begin, self.size) == self.checksum


class Checksums:
    """Checksums of a stream of bytes, one block after another."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._block, self._room = xxhash.xxh3_64(), BLOCK

    def update(self, data: memoryview) -> None:
        while len(data):
            part, data = data[: self._room], data[self._room :]
            self._block.update(part)
            self._room -= len(part)
            if not self._room:
                self._done.append(self._block.hexdigest())
                self._block, self._room = xxhash.xxh3_64(), BLOCK

    def text(self) -> str:
        """Return the checksums so far (16 hex digits each), joined."""
        return "".join(self._done) + (self._block.hexdigest() if self._room < BLOCK else "")


def content_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in _files(path))


def content_checksums(path: Path) -> str:
    """Return the checksums of a file's blocks, or of all files in a folder, in the order of their names."""
    return "".join(_checksum(*place) for place in _places(path))


def content_blocks(path: Path, checksums: str) -> list[Block]:
    """Return the blocks of a file or folder with their `checksums`; raise ValueError if the numbers differ."""
    expected = [checksums[i : i + _DIGITS] for i in range(0, len(checksums), _DIGITS)]
    return [Block(*place, checksum) for place, checksum in zip(_places(path), expected, strict=True)]


def changed_ns(path: Path) -> int:
    """Return when a file, or the newest one in a folder, was changed (ns since the epoch)."""
    return max((file.stat().st_mtime_ns for file in _files(path)), default=0)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _places(path: Path) -> Iterator[tuple[Path, int, int]]:
    for file in _files(path):
        size = file.stat().st_size
        for begin in range(0, size, BLOCK):
            yield file, begin, min(BLOCK, size - begin)


def _checksum(file: Path, begin: int, size: int) -> str:
    """Return the checksum of a part of a file.

    It uses reads, which raise if the disk fails; with a memory map such a failure would end the process.
    """
    state, piece = xxhash.xxh3_64(), memoryview(bytearray(min(size, _PIECE)))
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < size and (count := os.preadv(descriptor, [piece[: size - done]], begin + done)):
            state.update(piece[:count])
            done += count
    finally:
        os.close(descriptor)
    return state.hexdigest()


Say = Callable[[str], None]
TEMPORARY = ".building-"
_VERSION = 2
_MARK = "damaged"
_REMEDY = "; delete it (`runner cache prune` does), and the next run builds it again"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags that open a file at once even if it is a pipe, which `read_meta` then refuses."""
_SETTINGS = re.compile(r"[0-9a-f]{16}")
_CACHE = re.compile(r"[0-9a-f]{24}\.[a-z0-9]+")
_LEFTOVER = re.compile(rf"\.building-([0-9a-f]{{32}}|removed-{_CACHE.pattern}-\d+)")
_FILE = re.compile(rf"meta\.json|{_MARK}|verified|array-\d+\.bin|{many.FILE.pattern}")
_MANY = 10_000
"""Records from which on columns hold what meta.json says of each."""


class Damaged(BadInput):
    """A cache folder differs from what was written; the message contains the remedy."""

    @property
    def fault(self) -> str:
        """The message without its remedy, for callers that apply the remedy."""
        return str(self).removesuffix(_REMEDY)


@dataclass(frozen=True)
class ArrayMeta:
    """The shape, type and place of one array of a cache.

    Attributes:
        file: Name of its file or folder.
        dtype: Its dtype.
        shapes: Shape of every record's array.
        size: Bytes of the file, or of all files in the folder.
        checksums: Their checksums (`content_checksums`).
    """

    file: str
    dtype: str
    shapes: Sequence[tuple[int, ...]]
    size: int
    checksums: str


@dataclass(frozen=True)
class CacheMeta:
    """meta.json: the content of a cache folder and its inputs."""

    project: str
    settings: Mapping[str, Json]
    format: str
    """Name of the storage."""
    keys: Sequence[str]
    identities: Sequence[str]
    meta: Sequence[Mapping[str, Json]]
    arrays: Mapping[str, ArrayMeta]

    @property
    def file_bytes(self) -> int:
        return sum(a.size for a in self.arrays.values())


def cache_root(folder: Path | None) -> Path:
    """Return `cache.dir`, or its default below the user's cache folder."""
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runner"
    return folder.expanduser().absolute()


def settings_folder(root: Path, settings: Mapping[str, Json]) -> Path:
    """Return the folder of these settings; caches in it differ only in their records."""
    return root / str(settings["project"]) / digest_json(settings)[:16]


def cache_folder(parent: Path, keys: Sequence[str], identities: Sequence[str], form: str) -> Path:
    return parent / f"{digest_lists(keys, identities)[:24]}.{form}"


def settings_folders(root: Path, project: str | None) -> list[Path]:
    """Return the cache folders below `root`, of one project or of all; each has a build.lock."""
    found = root.glob(f"{project or '*'}/*/build.lock")
    return sorted(lock.parent for lock in found if _SETTINGS.fullmatch(lock.parent.name))


def caches(parent: Path) -> list[Path]:
    """Return the finished caches in a settings folder."""
    return _folders_named(parent, _CACHE)


def write_meta(folder: Path, meta: CacheMeta) -> None:
    if len(meta.keys) < _MANY:
        body = asdict(meta)
    else:
        shapes = [a.shapes for a in meta.arrays.values()]
        columns = many.save_columns(folder, meta.keys, meta.identities, meta.meta, shapes)
        arrays = {name: asdict(replace(a, shapes=())) for name, a in meta.arrays.items()}
        body = {"project": meta.project, "settings": dict(meta.settings), "format": meta.format, "arrays": arrays}
        body |= {"columns": columns}
    body |= {"version": _VERSION}
    text = json.dumps(body | {"checksum": digest_json(body)}, indent=1)
    (folder / "meta.json").write_text(text, encoding="utf-8")
    flush(folder / "meta.json")


def read_meta(folder: Path) -> CacheMeta:
    """Return the content of meta.json.

    Raises Damaged if meta.json or the size of a file differs from what was written, or the content of a file that
    changed since the cache was last used. `verify` checks all contents.
    """
    try:
        if (folder / _MARK).exists():
            raise Damaged(_text_of(folder / _MARK))
        body = json.loads(_text_of(folder / "meta.json"))
        checksum = body.pop("checksum")
    except FileNotFoundError as error:
        raise Damaged(_damage(folder, "meta.json is missing")) from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(_damage(folder, f"meta.json cannot be read ({error})")) from error
    if digest_json(body) != checksum or body.pop("version", None) != _VERSION:
        raise Damaged(_damage(folder, "meta.json was altered or is of another version"))
    try:
        arrays = {name: _array_meta(a) for name, a in body.pop("arrays").items()}
        if columns := body.pop("columns", None):
            mapped, shapes = many.map_columns(folder, columns, len(arrays))
            body |= mapped
            arrays = {name: replace(a, shapes=own) for (name, a), own in zip(arrays.items(), shapes, strict=True)}
        meta = CacheMeta(arrays=arrays, **body)
        if not _consistent(meta):
            raise ValueError("what it says of the arrays does not agree")
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise Damaged(_damage(folder, f"meta.json is not one of a cache ({error})")) from error
    for a in arrays.values():
        size = content_bytes(folder / a.file) if (folder / a.file).exists() else None
        if size != a.size:
            raise Damaged(_damage(folder, f"{a.file} has {size} bytes, {a.size} were written"))
        if changed_ns(folder / a.file) > (folder / "meta.json").stat().st_mtime_ns:
            _check_content(folder, a)  # touched since it was built or last used
    return meta


def verify(folder: Path) -> CacheMeta:
    """Read and check everything.

    Raises Damaged with the name of the file that differs from what was written, and marks the folder, so that the next
    run rebuilds it and `prune` removes it.
    """
    meta = read_meta(folder)
    for a in meta.arrays.values():
        _check_content(folder, a)
    return meta


def blocks_of(folder: Path, meta: CacheMeta) -> list[Block]:
    """Return every block of every array; raise Damaged if their number differs from what was written."""
    return [block for a in meta.arrays.values() for block in _blocks(folder, a)]


def check_block(folder: Path, block: Block) -> None:
    """Raise Damaged and mark the folder if a block differs from what was written or the disk cannot read it.

    Raises OSError if the file is gone or may not be read.
    """
    file, begin, end = block.file.relative_to(folder), block.begin, block.begin + block.size
    try:
        if block.sound():
            return
        what = f"{file} has changed since it was written: the checksum of its bytes {begin:,} to {end:,} differs"
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM):
            raise
        what = f"{file} cannot be read at bytes {begin:,} to {end:,}: {error.strerror}"
    message = _damage(folder, what)
    with suppress(OSError):
        (folder / _MARK).write_text(message)
    raise Damaged(message)


def _check_content(folder: Path, a: ArrayMeta) -> None:
    for block in _blocks(folder, a):
        check_block(folder, block)


def _blocks(folder: Path, a: ArrayMeta) -> list[Block]:
    try:
        return content_blocks(folder / a.file, a.checksums)
    except ValueError as error:
        raise Damaged(_damage(folder, f"{a.file} has another number of blocks than was written")) from error


def _text_of(file: Path) -> str:
    try:
        return refuse_special_file(file).read_text(encoding="utf-8")
    except BadInput as error:
        raise Damaged(_damage(file.parent, str(error))) from error


def open_shared(folder: Path) -> int:
    """Return a descriptor with a shared lock, which keeps `prune` away until it is closed.

    Raises OSError if there is no cache, and Damaged if the folder has no meta.json.
    """
    meta = folder / "meta.json"
    while True:
        try:
            descriptor = os.open(meta, _READ)
        except NotADirectoryError as error:
            raise unwritable(folder, error) from error
        except FileNotFoundError as error:
            if not folder.is_dir():
                raise
            raise Damaged(_damage(folder, "meta.json is missing")) from error
        try:
            try:
                lock(descriptor, shared=True)
            except OSError as error:
                if not has_no_locks(error):  # then `remove` refuses
                    raise
            if os.path.samestat(os.fstat(descriptor), os.stat(folder / "meta.json")):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # while this waited it was pruned and built again: lock the new one


def mark_used(folder: Path) -> None:
    """Set meta.json's time of change, which records when the cache was last opened."""
    with suppress(OSError):
        os.utime(folder / "meta.json")


def remove(folder: Path) -> str:
    """Delete a cache folder, or return why not: a process has it open, or it holds foreign files."""
    if strangers := [p.name for p in folder.iterdir() if not _FILE.fullmatch(p.name)]:
        return f"it also holds {strangers[0]}, which is no file of a cache: delete the folder by hand"
    try:
        descriptor = os.open(folder / "meta.json", _READ)
    except OSError:
        descriptor = None
    try:
        if descriptor is not None:
            lock(descriptor, wait=False)
        gone = folder.with_name(f"{TEMPORARY}removed-{folder.name}-{os.getpid()}")
        folder.rename(gone)  # so that no process finds half a cache
        shutil.rmtree(gone, ignore_errors=True)
        return ""
    except BlockingIOError:
        return "a process has it open"
    except OSError as error:
        return error.strerror or str(error)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def remove_leftovers(parent: Path) -> None:
    """Remove files of killed builders; the caller must hold the build lock, so that no builder here is alive.

    On a disk whose locks other machines do not see, one of theirs may be: its files go if they are untouched for a day.
    """
    for leftover in _folders_named(parent, _LEFTOVER):
        host = leftover.name.removeprefix(TEMPORARY)[:12]
        with suppress(OSError):
            if host == host_word() or host.startswith("removed-") or untouched(leftover, LONG_AGO):
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def build_lock(parent: Path, say: Say) -> Iterator[None]:
    """Let only one process build caches of these settings; another one waits and says so."""
    busy = f"another process is building this cache ({parent}): waiting for it"
    with ExitStack() as held:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(parent / "build.lock", busy=lambda: say(busy)))
        except OSError as error:
            raise unwritable(parent, error) from error
        yield


def unwritable(folder: Path, error: OSError) -> BadInput:
    return BadInput(
        f"the cache folder {folder} cannot be written: {error.strerror or error}; set cache.dir to a folder that can, "
        "or cache.mode to off"
    )


def _folders_named(parent: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(p for p in parent.iterdir() if pattern.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def _damage(folder: Path, what: str) -> str:
    return f"cache {folder} is damaged: {what}{_REMEDY}"


def _array_meta(value: dict[str, Any]) -> ArrayMeta:
    array = ArrayMeta(**(value | {"shapes": [tuple(s) for s in value["shapes"]]}))
    if Path(array.file).name != array.file:
        raise Damaged(f"{array.file!r} is no name of a file in a cache")
    if np.dtype(array.dtype).hasobject or not isinstance(array.checksums, str):
        raise ValueError("arrays have numbers, and checksums are text")
    return array


def _consistent(meta: CacheMeta) -> bool:
    """Return True if the records' names, shapes and sizes agree; raise TypeError for sizes that are no numbers."""
    count = len(meta.keys)
    for a in meta.arrays.values():
        if isinstance(a.shapes, Shapes):
            items = int(a.shapes.starts[-1])
        elif any(type(side) is not int or side < 0 for shape in a.shapes for side in shape):
            return False
        else:
            items = sum(math.prod(shape) for shape in a.shapes)
        if len(a.shapes) != count or (meta.format == "flat" and items * np.dtype(a.dtype).itemsize != a.size):
            return False
    return count > 0 and len(meta.meta) == len(meta.identities) == count and isinstance(meta.settings, Mapping)
