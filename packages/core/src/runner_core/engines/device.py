"""Find the device that `train.device` names, for any engine."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

import psutil

from runner_core.base.errors import BadInput
from runner_core.contract import Device


def gpu_number(asked: str, found: int, framework: str, unseen: str = "") -> int | None:
    """Return the number of the GPU that `asked` names among the `found` ones, or None for the CPU.

    `framework` is the framework that sees those GPUs, and `unseen` the remedy for a GPU that it does not see. Raises
    BadInput if there is no such device.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", asked):
        raise BadInput(f"train.device {asked!r}: it is auto, cpu, cuda or cuda:NUMBER")
    kind, _, number = asked.partition(":")
    index = int(number or 0)
    if kind == "cuda" and index >= found:
        there = f"there are {found} GPUs, numbered from 0" if found else f"{framework} sees no GPU here"
        raise BadInput(f"train.device {asked}: {there}; {unseen or 'use auto or cpu'}")
    return index if kind == "cuda" or (kind == "auto" and found) else None


def cpu(note: str = "") -> Device:
    return Device("cpu", name=cpu_name(), memory_bytes=psutil.virtual_memory().total, bfloat16=True, note=note)


def unusable(framework: str, why: str) -> str:
    """Return a message if the machine has an NVIDIA GPU that `framework` does not see, else ""."""
    if not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")):
        return ""
    return (
        f"this machine seems to have an NVIDIA GPU, but {framework} cannot use it ({why}); "
        "without it, training runs on the CPU, many times slower"
    )


def cpu_name() -> str:
    """Return the processor's name from /proc/cpuinfo."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()
