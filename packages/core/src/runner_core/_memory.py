"""Host memory: what there is, and what a run took."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def available_ram() -> int:
    """Bytes of RAM that this process may still take: the machine's, or what its control group leaves."""
    import psutil

    available = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text()) - _given_back()
        available = min(available, max(0, limit - used))
    return available


def _given_back() -> int:
    """Bytes of files that the kernel keeps in memory for the control group, and drops as soon as it needs the room."""
    lines = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    return int(lines["inactive_file"]) + int(lines["active_file"])


def peak_host_memory() -> int:
    """Bytes: the most that this process held, plus the most that any one of its ended child processes held."""
    return own_peak() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def own_peak() -> int:
    """Bytes: the most that this process held. What `getrusage` says of it begins with what its parent held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
