"""Host memory: what there is, and what a run took."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path


def available_ram() -> int:
    """Bytes of RAM that this process may still take: the machine's, or what its control group leaves."""
    import psutil

    available = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        available = min(available, max(0, limit - used))
    return available


def peak_host_memory() -> int:
    """Bytes: the most that this process held, plus the most that any one of its ended child processes held."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
