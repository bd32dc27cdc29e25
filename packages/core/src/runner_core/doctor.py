"""`runner doctor`: the machine, versions, and what is slow or missing, each with what to do about it.

Frameworks are not imported: their versions come from metadata, the GPUs from nvidia-smi.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from runner_core import discovery
from runner_core._errors import BadInput
from runner_core.cache.folder import cache_root

_PACKAGES = ("runner-core", "numpy", "torch", "tensorflow", "keras", "monai", "nibabel", "blosc2", "pluggy", "tyro")
_PROBE_BYTES = 64_000_000
_SLOW_DISK = 100e6
"""Bytes a second; below it building a cache is limited by the disk."""


class Gpu(NamedTuple):
    name: str
    memory_gb: float
    driver: str


def doctor(arguments: Sequence[str]) -> int:
    """Print the findings; the exit code is 0: a slow machine is no error."""
    if set(arguments) - {"--debug"}:
        raise BadInput(f"`runner doctor` takes no arguments, not {' '.join(arguments)}")
    gpus = find_gpus()
    cache = cache_root(None)
    speed = disk_speed(cache)
    for title, rows in (
        ("machine", machine_rows(gpus, cache, speed)),
        ("versions", version_rows()),
        ("plugins", plugin_rows()),
    ):
        print(f"{title}:")
        for name, text in rows:
            print(f"  {name:<14} {text}")
    found = list(advice(gpus, cache, speed))
    print("advice:" if found else "nothing to improve was found")
    for line in found:
        print(f"  - {line}")
    return 0


def machine_rows(gpus: Sequence[Gpu], cache: Path, speed: float | None) -> Iterator[tuple[str, str]]:
    import psutil

    memory = psutil.virtual_memory()
    yield "system", f"{platform.platform()}, Python {platform.python_version()}"
    yield "CPU", f"{cpu_name()}, {usable_cores()} cores usable of {os.cpu_count()}"
    yield "RAM", f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB free"
    disk = shutil.disk_usage(_existing(cache))
    rate = "" if speed is None else f", writes {speed / 1e6:.0f} MB/s"
    yield "cache folder", f"{cache} ({disk.free / 1e9:.0f} GB free{rate})"
    yield "GPU", "; ".join(f"{g.name}, {g.memory_gb:.0f} GB, driver {g.driver}" for g in gpus) or "none found"


def version_rows() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        yield package, _version(package) or "not installed"


def plugin_rows() -> Iterator[tuple[str, str]]:
    for plugin in (*discovery.projects().values(), *discovery.extensions().values()):
        yield plugin.name, f"{plugin.kind}, {plugin.distribution} {plugin.version}"


def advice(gpus: Sequence[Gpu], cache: Path, speed: float | None) -> Iterator[str]:
    """What is slow or missing, and what to do."""
    torch = _version("torch")
    if not discovery.projects():
        yield "no project is installed: `uv sync --package runner-NAME` or `pip install runner-NAME`"
    if gpus and torch and "+cpu" in torch:
        yield f"there is a GPU, but torch {torch} is the build without CUDA: install torch with CUDA"
    if not gpus and (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists()):
        yield "an NVIDIA device is there, but nvidia-smi does not answer: check the driver"
    if not gpus:
        yield "no GPU: training runs on the CPU; presets demo, and small where a project has it, are made for that"
    if "microsoft" in platform.release().lower() and str(Path.cwd()).startswith("/mnt/"):
        yield "WSL: this folder lies on a Windows drive, which is slow; keep data, cache and runs below your home"
    yield from _space_advice(cache, speed)


def _space_advice(cache: Path, speed: float | None) -> Iterator[str]:
    free = shutil.disk_usage(_existing(cache)).free
    if speed is None:
        yield f"{cache} cannot be written: set cache.dir, or XDG_CACHE_HOME, to a folder that can"
    elif speed < _SLOW_DISK:
        yield f"{cache} writes only {speed / 1e6:.0f} MB/s: set cache.dir to a faster disk, or cache.mode to blosc2"
    if free < 5e9:
        yield f"only {free / 1e9:.1f} GB free at {cache}: `runner cache prune`, or another cache.dir"


def find_gpus() -> list[Gpu]:
    """NVIDIA GPUs, as nvidia-smi lists them; none where it is missing or fails."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in found.splitlines() if line.count(",") == 2]
    return [Gpu(name, _mebibytes(memory) / 1e9, driver) for name, memory, driver in rows]


def disk_speed(folder: Path) -> float | None:
    """Bytes a second written to the disk of `folder` (fsync included); None where nothing can be written."""
    block = os.urandom(1_000_000)
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)) as file:
            begun = time.perf_counter()
            for _ in range(_PROBE_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return _PROBE_BYTES / (time.perf_counter() - begun)
    except OSError:
        return None


def cpu_name() -> str:
    """The processor's name, as /proc/cpuinfo has it."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _mebibytes(text: str) -> float:
    return float(text) * 1024**2 if text.replace(".", "").isdigit() else 0.0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
