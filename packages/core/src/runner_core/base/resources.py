"""Memory and cores that this process may use, by the machine and its control groups, and the memory that it took."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self")


def memory_left() -> int | None:
    """Return the bytes that the tightest limit of any level leaves, None if there is no limit.

    Files that the kernel keeps in memory for a group count as free: it drops them as soon as it needs the room.
    """
    left = []
    for folder in _levels("memory"):
        with suppress(OSError, ValueError, KeyError):
            left.append(_memory_left(folder))
    return min((bytes_ for bytes_ in left if bytes_ is not None), default=None)


def cores() -> float | None:
    """Return the number of cores' worth of time that the tightest quota of any level gives, None if there is none."""
    quotas = []
    for folder in _levels("cpu"):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{of}_us").read_text() for of in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory_left(folder: Path) -> int | None:
    second = (folder / "memory.current").exists()
    names = ("memory.max", "memory.high") if second else ("memory.limit_in_bytes",)
    limits = [int(text) for name in names if (text := _read(folder / name)) not in ("", "max")]
    lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    if not second and "hierarchical_memory_limit" in lines:  # limits of levels that a container does not see
        limits.append(int(lines["hierarchical_memory_limit"]))
    if not limits:
        return None
    cached = sum(int(lines[f"{'' if second else 'total_'}{kind}_file"]) for kind in ("inactive", "active"))
    used = int((folder / ("memory.current" if second else "memory.usage_in_bytes")).read_text())
    return max(0, min(limits) - max(0, used - cached))


def _read(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def _levels(controller: str) -> Iterator[Path]:
    """Yield the folders of the process's groups of `controller`, the innermost first, of either version."""
    with suppress(OSError, ValueError):
        groups = [line.split(":", 2) for line in (_PROCESS / "cgroup").read_text().splitlines()]
        mounts = list(_mounts())
        for number, controllers, path in groups:
            second = number == "0" and not controllers
            if not second and controller not in controllers.split(","):
                continue
            for kind, options, root, point in mounts:
                if kind == ("cgroup2" if second else "cgroup") and (second or controller in options):
                    yield from _folders(point, _below(path, root))
                    break


def _mounts() -> Iterator[tuple[str, list[str], str, Path]]:
    """Yield each file system, its options, the group that it shows as its root, and its mount point."""
    for line in (_PROCESS / "mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        root, point = (_unescaped(text) for text in mount.split()[3:5])
        kind, *_, options = source.split()
        yield kind, options.split(","), root, Path(point)


def _folders(point: Path, group: PurePosixPath) -> Iterator[Path]:
    for level in (group, *group.parents):
        folder = point / level
        if folder.is_dir():
            yield folder


def _below(path: str, root: str) -> PurePosixPath:
    """Return a group's path below the mounted root; in a container the root may be the group itself."""
    group = PurePosixPath(path)
    if group.is_relative_to(root):
        return group.relative_to(root)
    return PurePosixPath()  # another name space: only the mounted part is visible


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def available_ram() -> int:
    """Return the bytes of RAM that this process may still take: the machine's, or what its control groups leave."""
    import psutil

    available = int(psutil.virtual_memory().available)
    left = memory_left()
    return available if left is None else min(available, left)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or PyTorch means that memory did not suffice."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # PyTorch's, of a GPU
        or "can't allocate memory" in str(error)
    )


_ended_peaks: set[int] = set()


def count_peak(pid: int) -> None:
    """Remember the peak memory of a process that is about to end, for `peak_host_memory`.

    `getrusage` would say it later, but begins with the memory that this process had when it started the other.
    """
    with suppress(OSError, StopIteration):
        _ended_peaks.add(own_peak(pid))


def peak_host_memory() -> int:
    """Return this process's peak memory plus the highest peak of its ended workers, in bytes."""
    return own_peak() + max(_ended_peaks, default=0)


def own_peak(pid: int | str = "self") -> int:
    """Return this process's peak memory in bytes, or that of another.

    `getrusage` is no help: its value starts from the parent's memory.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
