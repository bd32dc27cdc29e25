"""`runner doctor`: show the machine, versions, and everything slow or missing, with a remedy for each.

Versions come from metadata, the GPUs from nvidia-smi. No framework is imported here: if there is a GPU, each installed
framework is asked in its own process whether it sees it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from runner_core.cli.arguments import Parser
from runner_core.cli.json_output import show_json
from runner_core.data.cache.folder import cache_root
from runner_core.engines.device import cpu_name
from runner_core.engines.known_bad import KnownBad, known_bad
from runner_core.engines.usage import usable_cores
from runner_core.plugins import discovery
from runner_core.plugins.discovery import Plugin

_PACKAGES = ("runner-core", "numpy", "torch", "tensorflow", "keras", "jax", "monai", "nibabel", "blosc2", "pluggy",
             "tyro")  # fmt: skip
_SEEN = {
    "torch": "import json\n"
    "from runner_core.engines.torch.accelerator import described, found\n"
    "kind, count = found()\n"
    "print(json.dumps([described(kind, i, count).name for i in range(count)]))",
    "tensorflow": "import json, tensorflow as tf; c = tf.config\n"
    "about = [c.experimental.get_device_details(g) for g in c.list_physical_devices('GPU')]\n"
    "print(json.dumps([a.get('device_name', 'GPU') for a in about]))",
}
"""Framework → code that prints the names of the GPUs it sees, as JSON."""
_PROBE_BYTES = 64_000_000
_SLOW_DISK = 100e6
"""Bytes per second; on a slower disk, the disk limits how fast a cache is built."""


class Gpu(NamedTuple):
    name: str
    memory_gb: float
    driver: str


def doctor(arguments: Sequence[str]) -> int:
    """Print the findings and return 0: a slow machine is no error."""
    parser = Parser(prog="runner doctor", description="Show the machine, and what is slow or missing.")
    parser.add_argument("--json", action="store_true", help="print the result on stdout as JSON")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    options = parser.parse_args(list(arguments))
    gpus = find_gpus()
    cache = cache_root(None)
    speed = disk_speed(cache)
    other = other_build()
    seen = seen_gpus() if gpus else seen_gpus(["torch"]) if other else {}
    found = [*advice(gpus, seen, cache, speed), *cuda_only(other), *faults(on_gpu=bool(gpus))]
    machine = machine_facts(gpus, cache, speed)
    if options.json:
        plugins = [plugin.facts() for plugin in _plugins()]
        versions = {package: _version(package) for package in _PACKAGES}
        show_json({**machine, "gpus_seen_by": seen, "versions": versions, "plugins": plugins, "advice": found})
        return 0
    for title, rows in (
        ("machine", machine_rows(machine)),
        ("GPUs seen by", [(name, ", ".join(found) or "NONE") for name, found in seen.items()]),
        ("versions", version_rows()),
        ("plugins", plugin_rows()),
    ):
        lines = [f"  {name:<14} {text}" for name, text in rows]
        if lines:
            print(f"{title}:", *lines, sep="\n")
    print("advice:" if found else "nothing to improve was found")
    for line in found:
        print(f"  - {line}")
    return 0


def machine_facts(gpus: Sequence[Gpu], cache: Path, speed: float | None) -> dict[str, Any]:
    import psutil

    memory, disk = psutil.virtual_memory(), shutil.disk_usage(_existing(cache))
    return {
        **{"system": platform.platform(), "python": platform.python_version()},
        **{"cpu": cpu_name(), "usable_cores": usable_cores(), "cores": os.cpu_count()},
        **{"ram_bytes": memory.total, "free_ram_bytes": memory.available},
        "cache": {"folder": str(cache), "free_bytes": disk.free, "written_bytes_per_second": speed},
        "gpus": [gpu._asdict() for gpu in gpus],
    }


def machine_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "system", f"{facts['system']}, Python {facts['python']}"
    yield "CPU", f"{facts['cpu']}, {facts['usable_cores']} cores usable of {facts['cores']}"
    yield "RAM", f"{facts['ram_bytes'] / 1e9:.1f} GB, {facts['free_ram_bytes'] / 1e9:.1f} GB free"
    cache, speed = facts["cache"], facts["cache"]["written_bytes_per_second"]
    rate = "" if speed is None else f", writes {speed / 1e6:.0f} MB/s"
    yield "cache folder", f"{cache['folder']} ({cache['free_bytes'] / 1e9:.0f} GB free{rate})"
    gpus = [f"{gpu['name']}, {gpu['memory_gb']:.0f} GB, driver {gpu['driver']}" for gpu in facts["gpus"]]
    yield "GPU", "; ".join(gpus) or "none found"


def version_rows() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        yield package, _version(package) or "not installed"


def plugin_rows() -> Iterator[tuple[str, str]]:
    for plugin in _plugins():
        yield plugin.name, f"{plugin.kind}, {plugin.distribution} {plugin.version}"


def _plugins() -> list[Plugin]:
    return [*discovery.projects().values(), *discovery.extensions().values()]


def advice(gpus: Sequence[Gpu], seen: Mapping[str, Sequence[str]], cache: Path, speed: float | None) -> Iterator[str]:
    """Yield everything slow or missing, each with a remedy. `seen`: the GPUs that each installed framework sees."""
    if not discovery.projects():
        yield discovery.none_installed()
    for name, found in seen.items():
        if not found:
            yield f"WARNING: there is a GPU, but {name} does not see it and will train on the CPU: {_why_unseen(name)}"
    if not gpus and (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists()):
        yield "this machine has an NVIDIA device, but nvidia-smi does not answer: check the driver"
    if not (gpus or any(seen.values())):
        yield "no GPU: training runs on the CPU; presets demo, and small where a project has it, are made for that"
    if "microsoft" in platform.release().lower() and str(Path.cwd()).startswith("/mnt/"):
        yield "WSL: this folder is on a Windows drive, which is slow; keep data, cache and runs in your home folder"
    yield from _space_advice(cache, speed)


def other_build() -> str:
    """Return which GPUs other than NVIDIA's the installed torch is for: ROCm, XPU or MPS; "" for none."""
    build = (_version("torch") or "").partition("+")[2]
    if build.startswith(("rocm", "xpu")):
        return "ROCm" if build.startswith("rocm") else "XPU"
    return "MPS" if _version("torch") and (sys.platform, platform.machine()) == ("darwin", "arm64") else ""


def cuda_only(build: str) -> Iterator[str]:
    """Yield what is missing on GPUs other than NVIDIA's."""
    if not build:
        return
    missing = ["the share of the GPU that is used (report)", "the table of known faults"]
    if build != "ROCm":
        missing += ["page-locking of the memory that workers write into", "ssmunet's Triton kernels"]
    if build == "MPS":
        missing += ["copies beside the computation", "its peak memory", "smaller batches when memory runs out",
                    "16-bit precision", "float64 sums"]  # fmt: skip
    yield (
        f"torch is a build for {build}: runner makes the same calls there as for NVIDIA's GPUs, but was never tried "
        f"there. Missing are {', '.join(missing)}"
    )


def faults(on_gpu: bool) -> Iterator[str]:
    """Yield what the installed versions are known to compute wrongly or slowly on this machine."""
    for row in known_bad():
        if on_gpu or row.device != "cuda":
            yield f"known fault: {row.text}{_met(row)}"


def _met(row: KnownBad) -> str:
    """Return which trainings meet a fault, in brackets."""
    conditions = (
        (row.device == "cpu", "a training on the CPU"),
        (row.compile, "train.compile is on"),
        (row.compute, f"precision {' or '.join(row.compute)}"),
        (row.layers, " or ".join(row.layers)),
        (row.channels_last is False, "train.channels_last off"),
        (row.capability, f"GPUs of compute capability {row.capability} and above"),
    )
    met = [text for condition, text in conditions if condition]
    return f" [only with {', '.join(met)}]" if met else ""


def _space_advice(cache: Path, speed: float | None) -> Iterator[str]:
    free = shutil.disk_usage(_existing(cache)).free
    if speed is None:
        yield f"{cache} cannot be written: set cache.dir or XDG_CACHE_HOME to a writable folder"
    elif speed < _SLOW_DISK:
        yield f"{cache} writes only {speed / 1e6:.0f} MB/s: set cache.dir to a faster disk, or cache.mode to blosc2"
    if free < 5e9:
        yield f"only {free / 1e9:.1f} GB free at {cache}: `runner cache prune`, or another cache.dir"


def find_gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that nvidia-smi lists; none if it is missing or fails."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in found.splitlines() if line.count(",") == 2]
    return [Gpu(name, _mebibytes(memory) / 1e9, driver) for name, memory, driver in rows]


def seen_gpus(asked: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return the names of the GPUs that each installed framework (of those `asked`) sees; none if it does not start."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    started = {
        name: subprocess.Popen([sys.executable, "-c", code], env=env, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
        for name, code in _SEEN.items()
        if (asked is None or name in asked) and _version(name)
    }  # fmt: skip
    seen: dict[str, list[str]] = {}
    for name, process in started.items():
        try:
            output, _ = process.communicate(timeout=120)
            seen[name] = json.loads(output.splitlines()[-1]) if process.returncode == 0 else []
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            process.kill()
            seen[name] = []
    return seen


def _why_unseen(framework: str) -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={hidden} hides it"
    build = _version(framework) or ""
    if "+cpu" in build:
        return f"{build} is the build without CUDA; install one with CUDA"
    extra = " (tensorflow[and-cuda])" if framework == "tensorflow" else ""
    return f"its CUDA libraries are missing or newer than the driver; `uv sync` installs those it needs{extra}"


def disk_speed(folder: Path) -> float | None:
    """Return the bytes per second written to the disk of `folder` (fsync included); None if it is not writable."""
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


def _mebibytes(text: str) -> float:
    return float(text) * 1024**2 if text.replace(".", "").isdigit() else 0.0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # tensorflow-cpu installs the same modules
        return (cpu := _version("tensorflow-cpu")) and f"{cpu}+cpu" if package == "tensorflow" else None


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
