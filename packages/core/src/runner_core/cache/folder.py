"""Where caches lie, what their meta.json says, and who may touch them.

    <cache.dir>/identities.sqlite
    <cache.dir>/<project>/<pipeline settings>/build.lock        held by the one builder
    <cache.dir>/<project>/<pipeline settings>/.building-*       what a killed builder leaves
    <cache.dir>/<project>/<pipeline settings>/<records>.flat/   meta.json and one file per array

Readers hold a shared lock on meta.json for as long as the cache is open; `prune` needs it alone. What does not have
exactly these names is not ours: it is neither listed nor removed, nor anything that it holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock

from runner_core._errors import BadInput
from runner_core._files import flush, hash_file
from runner_core.cache.identity import digest_json
from runner_core.protocols import Json

Say = Callable[[str], None]
TEMPORARY = ".building-"
_VERSION = 1
_MARK = "damaged"
_SETTINGS = re.compile(r"[0-9a-f]{16}")
_CACHE = re.compile(r"[0-9a-f]{24}\.[a-z0-9]+")
_LEFTOVER = re.compile(rf"\.building-([0-9a-f]{{32}}|removed-{_CACHE.pattern}-\d+)")
_FILE = re.compile(rf"meta\.json|{_MARK}|array-\d+\.bin")


class Damaged(BadInput):
    """A cache folder is not what was written."""


@dataclass(frozen=True)
class ArrayMeta:
    """One array of a cache. `file`: where it lies, a file or a folder; `shapes`: of every record's array; `size`,
    `checksum`: of the file, or of all files in the folder."""

    file: str
    dtype: str
    shapes: Sequence[tuple[int, ...]]
    size: int
    checksum: str


@dataclass(frozen=True)
class CacheMeta:
    """meta.json: what is in a cache folder and what it was made of."""

    project: str
    settings: Mapping[str, Json]
    format: str
    """The storage's name."""
    keys: Sequence[str]
    identities: Sequence[str]
    meta: Sequence[Mapping[str, Json]]
    arrays: Mapping[str, ArrayMeta]

    @property
    def file_bytes(self) -> int:
        return sum(a.size for a in self.arrays.values())


def cache_root(folder: Path | None) -> Path:
    """`cache.dir`, or its default below the user's cache folder."""
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runner"
    return folder.expanduser().absolute()


def settings_folder(root: Path, settings: Mapping[str, Json]) -> Path:
    """Caches in one such folder differ only in their records."""
    return root / str(settings["project"]) / digest_json(settings)[:16]


def cache_folder(parent: Path, keys: Sequence[str], identities: Sequence[str], form: str) -> Path:
    return parent / f"{digest_json([list(keys), list(identities)])[:24]}.{form}"


def settings_folders(root: Path, project: str | None) -> list[Path]:
    """Folders of caches below `root`, of one project or of all; each has a build.lock."""
    found = root.glob(f"{project or '*'}/*/build.lock")
    return sorted(lock.parent for lock in found if _SETTINGS.fullmatch(lock.parent.name))


def caches(parent: Path) -> list[Path]:
    """Finished caches in a settings folder."""
    return _folders_named(parent, _CACHE)


def write_meta(folder: Path, meta: CacheMeta) -> None:
    body = asdict(meta) | {"version": _VERSION}
    text = json.dumps(body | {"checksum": digest_json(body)}, indent=1)
    with open(folder / "meta.json", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_meta(folder: Path) -> CacheMeta:
    """Raises Damaged unless meta.json and the sizes of all files are as written, and the content of
    those that changed since the cache was last used (all contents: `verify`)."""
    if (folder / _MARK).exists():
        raise Damaged((folder / _MARK).read_text())
    try:
        body = json.loads((folder / "meta.json").read_text())
        checksum = body.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise Damaged(_damage(folder, f"meta.json cannot be read ({error})")) from error
    if digest_json(body) != checksum or body.pop("version") != _VERSION:
        raise Damaged(_damage(folder, "meta.json was altered or is of another version"))
    arrays = {name: _array_meta(a) for name, a in body.pop("arrays").items()}
    for a in arrays.values():
        size = content_bytes(folder / a.file) if (folder / a.file).exists() else None
        if size != a.size:
            raise Damaged(_damage(folder, f"{a.file} has {size} bytes, {a.size} were written"))
        if _changed_ns(folder / a.file) > (folder / "meta.json").stat().st_mtime_ns:
            _check_content(folder, a)  # touched since it was built or last used
    return CacheMeta(arrays=arrays, **body)


def verify(folder: Path) -> CacheMeta:
    """Reads everything. Raises Damaged naming the file that differs from what was written, and marks the folder, so
    that the next run builds it anew and `prune` removes it."""
    meta = read_meta(folder)
    for a in meta.arrays.values():
        _check_content(folder, a)
    return meta


def _check_content(folder: Path, a: ArrayMeta) -> None:
    if content_hash(folder / a.file) != a.checksum:
        message = _damage(folder, f"{a.file} has changed since it was written (its checksum differs)")
        with suppress(OSError):
            (folder / _MARK).write_text(message)
        raise Damaged(message)


def content_bytes(path: Path) -> int:
    """Size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in _files(path))


def content_hash(path: Path) -> str:
    """Checksum of a file, or of a folder: names and contents of all its files."""
    if not path.is_dir():
        return hash_file(path)
    return digest_json([(str(file.relative_to(path)), hash_file(file)) for file in _files(path)])


def flush_content(path: Path) -> None:
    """fsync a file, or a folder and all that it holds."""
    for inside in [*path.rglob("*"), path]:
        flush(inside)


def _changed_ns(path: Path) -> int:
    return max((file.stat().st_mtime_ns for file in _files(path)), default=0)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def open_shared(folder: Path) -> int:
    """Descriptor with a shared lock, which keeps `prune` away until it is closed. Raises OSError if there is none."""
    while True:
        descriptor = os.open(folder / "meta.json", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder / "meta.json")):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # while we waited it was pruned, and another one built: lock that one


def mark_used(folder: Path) -> None:
    """The time of change of meta.json is when the cache was last opened."""
    with suppress(OSError):
        os.utime(folder / "meta.json")


def remove(folder: Path) -> str:
    """Delete a cache folder; else why not: a process has it open, or it holds what is not of a cache."""
    if strangers := [p.name for p in folder.iterdir() if not _FILE.fullmatch(p.name)]:
        return f"it also holds {strangers[0]}, which is no file of a cache: delete the folder by hand"
    try:
        descriptor = os.open(folder / "meta.json", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        descriptor = None
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = folder.with_name(f"{TEMPORARY}removed-{folder.name}-{os.getpid()}")
        folder.rename(gone)  # nobody may find half a cache
        shutil.rmtree(gone, ignore_errors=True)
        return ""
    except BlockingIOError:
        return "a process has it open"
    finally:
        if descriptor is not None:
            os.close(descriptor)


def remove_leftovers(parent: Path) -> None:
    """What killed builders left. Only for the holder of the build lock: no builder is alive then."""
    for leftover in _folders_named(parent, _LEFTOVER):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def build_lock(parent: Path, say: Say) -> Iterator[None]:
    """Only one process builds caches of these settings; another one waits, saying so."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(parent / "build.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            say(f"another process is building this cache ({parent}): waiting for it")
            lock.acquire()
    except OSError as error:
        raise unwritable(parent, error) from error
    try:
        yield
    finally:
        lock.release()


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
    return f"cache {folder} is damaged: {what}; delete it (`runner cache prune` does), and the next run builds it again"


def _array_meta(value: dict[str, Any]) -> ArrayMeta:
    array = ArrayMeta(**(value | {"shapes": [tuple(s) for s in value["shapes"]]}))
    if Path(array.file).name != array.file:
        raise Damaged(f"{array.file!r} is no name of a file in a cache")
    return array
