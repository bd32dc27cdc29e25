"""Host memory: how much is free, and how much a run took."""

from __future__ import annotations

import resource
from pathlib import Path

from runner_core.base.cgroups import memory_left


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


def peak_host_memory() -> int:
    """Return this process's peak memory plus the highest peak of its ended child processes, in bytes."""
    return own_peak() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def own_peak() -> int:
    """Return this process's peak memory in bytes.

    `getrusage` is no help: its value starts from the parent's memory.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
