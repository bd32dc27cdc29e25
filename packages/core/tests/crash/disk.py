"""What a program does to the files below a folder: recorded in order, or made to fail at one operation.

    with Disk(folder) as disk: ...                     # disk.log: what was done
    with Disk(folder, Fault(17, errno.EIO)): ...       # operation 17 raises OSError

It stands in for what Python writes files with: `open`, and functions of `os`. What C and Rust libraries write by
themselves (SQLite, blosc2, safetensors' `save_file`) passes it by.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["create", "mkdir", "write", "resize", "sync", "rename", "unlink", "link", "mark"]
_GROWS = ("create", "mkdir", "write", "resize", "link", "rename")
_OPEN = io.open


class _Real:
    """The functions of `os` as they are."""

    open, close, write, pwrite = os.open, os.close, os.write, os.pwrite
    fallocate, truncate, ftruncate, fsync = os.posix_fallocate, os.truncate, os.ftruncate, os.fsync
    rename, replace, link, unlink, rmdir, mkdir = os.rename, os.replace, os.link, os.unlink, os.rmdir, os.mkdir


@dataclass(eq=False)
class Node:
    """A file or a folder, whatever its name. `content`: of a file, before the recording."""

    entries: dict[str, Node] | None = None
    content: bytes = b""


@dataclass(frozen=True)
class Op:
    """One operation on `node`. `names`: the entries that it changes, each a folder and a name; `data`, `at`: what was
    written where, and for "resize" the size in `at`; `label`: of "mark", what the program has promised by then."""

    kind: Kind
    node: Node
    names: tuple[tuple[Node, str], ...] = ()
    data: bytes = b""
    at: int = 0
    label: Any = None


@dataclass(frozen=True)
class Fault:
    """Operation number `at` (from 0) fails; a write to a full disk does half of its work first. `lasting`: so does all
    that needs room after it."""

    at: int
    errno: int
    lasting: bool = False


class Disk:
    """Context in which this process's changes to files below `root` are watched."""

    def __init__(self, root: Any, fault: Fault | None = None) -> None:
        self.root, self.fault = os.path.abspath(root), fault
        self.log: list[Op] = []
        self.count = 0
        """Operations that could fail, so far."""
        self.failed = ""
        """The first one that did."""
        self.top = _there(self.root)
        self.before = {node: dict(node.entries) for node in _folders(self.top) if node.entries is not None}
        """Entries of each folder at the beginning."""
        self._open: dict[int, Node] = {}
        self._half = False
        self._lock = threading.RLock()

    def mark(self, label: Any) -> None:
        """The program promises something from here on."""
        self.log.append(Op("mark", self.top, label=label))

    def __enter__(self) -> Disk:
        self._before = {name: getattr(os, name) for name in _PATCHED}
        for name, method in _PATCHED.items():
            setattr(os, name, getattr(self, method))
        builtins.open = io.open = self._open_file  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._before.items():
            setattr(os, name, real)
        builtins.open = io.open = _OPEN

    # ------------------------------------------------------------ helpers

    def _find(self, path: Any, dir_fd: int | None = None) -> tuple[Node, str] | None:
        """The folder and the name in it; None for what is elsewhere, or in no folder."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            folder = self._open.get(dir_fd)
            return None if folder is None else (folder, text)
        text = os.path.abspath(text)
        if not text.startswith(self.root + os.sep):
            return None
        *folders, name = text[len(self.root) + 1 :].split(os.sep)
        node: Node | None = self.top
        for part in folders:
            node = None if node is None or node.entries is None else node.entries.get(part)
        return None if node is None or node.entries is None else (node, name)

    def _node(self, path: Any) -> Node | None:
        if isinstance(path, int):
            return self._open.get(path)
        found = self._find(path)
        return None if found is None else (found[0].entries or {}).get(found[1])

    def _may_fail(self, kind: Kind, where: Any, short: bool = False) -> bool:
        """Raises OSError where this is the operation that fails. True: write only half of it."""
        fault, number, self.count = self.fault, self.count, self.count + 1
        if fault is None:
            return False
        now = number == fault.at or self._half
        if now and short and fault.errno == errno.ENOSPC and not self._half:
            self._half = True
            self.failed = f"{kind} {where}"
            return True
        if now or (fault.lasting and number > fault.at and kind in _GROWS):
            self._half = False
            self.failed = self.failed or f"{kind} {where}"
            raise OSError(fault.errno, os.strerror(fault.errno), os.fsdecode(where) if where else None)
        return False

    def _written(self, fd: int, data: bytes, at: int | None, real: Callable[[bytes], int]) -> int:
        """A write at `at`, None: where the file stands."""
        with self._lock:
            node = self._open.get(fd)
            if node is None:
                return real(data)
            if self._may_fail("write", "", short=len(data) > 1):
                data = data[: len(data) // 2]
            count = real(data)
            at = os.lseek(fd, 0, os.SEEK_CUR) - count if at is None else at
            self.log.append(Op("write", node, data=data[:count], at=at))
            return count

    def _resized(self, fd: int, size: int, real: Callable[[], Any]) -> None:
        with self._lock:
            if (node := self._open.get(fd)) is not None:
                self._may_fail("resize", "")
            real()
            if node is not None:
                self.log.append(Op("resize", node, at=size))

    def _entry(self, kind: Kind, node: Node | None, *names: tuple[Node, str]) -> None:
        """Log a change of folders, and make it."""
        before = [(folder.entries or {}).get(name) for folder, name in names]
        node = node or before[0] or Node()
        self.log.append(Op(kind, node, names))
        for number, (folder, name) in enumerate(names):
            assert folder.entries is not None
            if kind == "unlink" or (kind == "rename" and number == 0):
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node

    # ------------------------------------------------------------ what stands in for Python's own

    def _open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+") or self._find(file) is None:
            return _OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _File(self, file, "".join(c for c in mode if c not in "bt"), opener or _opened)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            found = self._find(path, dir_fd)
            inside = found is not None or os.path.abspath(os.fsdecode(path)) == self.root
            node = self.top if found is None else (found[0].entries or {}).get(found[1])
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            new = found is not None and node is None and flags & os.O_CREAT
            if new:
                self._may_fail("create", path)
            elif inside and writes and flags & os.O_TRUNC:
                self._may_fail("resize", path)
            fd = _Real.open(path, flags, mode, dir_fd=dir_fd)
            if new and found is not None:
                node = Node()
                self._entry("create", node, found)
            elif inside and writes and flags & os.O_TRUNC and node is not None:
                self.log.append(Op("resize", node))
            if inside and node is not None:
                self._open[fd] = node
            return fd

    def forget(self, fd: int) -> None:
        self._open.pop(fd, None)

    def _close(self, fd: int) -> None:
        self.forget(fd)
        _Real.close(fd)

    def _write(self, fd: int, data: Any) -> int:
        return self._written(fd, bytes(data), None, lambda part: _Real.write(fd, part))

    def _pwrite(self, fd: int, data: Any, at: int) -> int:
        return self._written(fd, bytes(data), at, lambda part: _Real.pwrite(fd, part, at))

    def _fallocate(self, fd: int, offset: int, length: int) -> None:
        self._resized(fd, offset + length, lambda: _Real.fallocate(fd, offset, length))

    def _ftruncate(self, fd: int, size: int) -> None:
        self._resized(fd, size, lambda: _Real.ftruncate(fd, size))

    def _truncate(self, path: Any, size: int) -> None:
        with self._lock:
            node = self._node(path)
            if node is not None:
                self._may_fail("resize", path)
            _Real.truncate(path, size)
            if node is not None:
                self.log.append(Op("resize", node, at=size))

    def _fsync(self, fd: Any) -> None:
        with self._lock:
            node = self._open.get(fd if isinstance(fd, int) else fd.fileno())
            if node is not None:
                self._may_fail("sync", "")
                self.log.append(Op("sync", node))
            # nothing is brought to the real disk: it takes long, and no power is lost there

    def _rename(self, source: Any, target: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        with self._lock:
            one, two = self._find(source, src_dir_fd), self._find(target, dst_dir_fd)
            if one is None or two is None:
                return _Real.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            self._may_fail("rename", target)
            _Real.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            self._entry("rename", (one[0].entries or {})[one[1]], one, two)

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        with self._lock:
            node, two = self._node(source), self._find(target)
            if node is not None:
                self._may_fail("link", target)
            _Real.link(source, target, **more)
            if node is not None and two is not None:
                self._entry("link", node, two)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed(path, dir_fd, _Real.unlink)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed(path, dir_fd, _Real.rmdir)

    def _removed(self, path: Any, dir_fd: int | None, real: Any) -> None:
        with self._lock:
            found = self._find(path, dir_fd)
            there = found is not None and found[1] in (found[0].entries or {})
            if there:
                self._may_fail("unlink", path)
            real(path, dir_fd=dir_fd)
            if there and found is not None:
                self._entry("unlink", None, found)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            found = self._find(path, dir_fd)
            new = found is not None and found[1] not in (found[0].entries or {})
            if new:
                self._may_fail("mkdir", path)
            _Real.mkdir(path, mode, dir_fd=dir_fd)
            if new and found is not None:
                self._entry("mkdir", Node({}), found)


_PATCHED = {
    "open": "_os_open",
    "close": "_close",
    "write": "_write",
    "pwrite": "_pwrite",
    "posix_fallocate": "_fallocate",
    "truncate": "_truncate",
    "ftruncate": "_ftruncate",
    "fsync": "_fsync",
    "rename": "_rename",
    "replace": "_rename",
    "link": "_link",
    "unlink": "_unlink",
    "remove": "_unlink",
    "rmdir": "_rmdir",
    "mkdir": "_mkdir",
}


class _File(io.FileIO):
    """A file open for writing."""

    def __init__(self, disk: Disk, path: Any, mode: str, opener: Any) -> None:
        self._disk = disk
        super().__init__(path, mode, opener=opener)

    def write(self, data: Any) -> int:
        return self._disk._written(self.fileno(), bytes(data), None, super().write)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self._disk._resized(self.fileno(), size, lambda: super(_File, self).truncate(size))
        return size

    def close(self) -> None:
        if not self.closed:
            self._disk.forget(self.fileno())
        super().close()


def _opened(path: Any, flags: int) -> int:
    return os.open(path, flags, 0o666)


def _there(path: str) -> Node:
    if not os.path.isdir(path):
        with _OPEN(path, "rb") as file:
            return Node(None, file.read())
    return Node({name: _there(os.path.join(path, name)) for name in os.listdir(path)})


def _folders(node: Node) -> Iterator[Node]:
    yield node
    for inside in (node.entries or {}).values():
        if inside.entries is not None:
            yield from _folders(inside)
